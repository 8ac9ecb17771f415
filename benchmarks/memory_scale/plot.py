"""`python -m benchmarks.memory_scale.plot JSON SVG`: plots `memory_scale.json` over the size, on logarithmic scales."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

WIDTH, HEIGHT, MARGIN, GAP = 300, 250, 52, 20
COLOURS = ("#1b6ca8", "#c0392b", "#2e7d32", "#8e5ea2", "#777777")
PANELS = (
    (
        "build, seconds (without embedding)",
        {"elapsed": "build, without embedding", "processor": "build, of all threads"},
    ),
    (
        "p95 of a search, ms",
        {name: f"{name}, p95" for name in ("vector", "full_text", "hybrid", "filtered", "exact")},
    ),
    ("most memory, MiB", {"build": "build, peak of memory", "search": "search, peak of memory"}),
)

Line = Sequence[tuple[float, float]]


def main(source: str, target: str) -> None:
    rows = json.loads(Path(source).read_text("utf-8"))["rows"]
    panels = [(title, {name: line_of(rows, figure) for name, figure in named.items()}) for title, named in PANELS]
    Path(target).write_text(to_svg(panels), "utf-8")


def line_of(rows: Sequence[Mapping[str, object]], figure: str) -> Line:
    """(chunks, median) of every row of this figure, by size."""
    found = [row for row in rows if row["figure"] == figure]
    return sorted((_size(str(row["setting"])), float(row["value"]["median"])) for row in found)  # type: ignore[index]


def to_svg(panels: Sequence[tuple[str, Mapping[str, Line]]]) -> str:
    """Panels side by side."""
    width = len(panels) * (WIDTH + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    for number, (title, lines) in enumerate(panels):
        parts.append(f'<g transform="translate({number * (WIDTH + GAP)} 0)">{_panel(title, lines)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(title: str, lines: Mapping[str, Line]) -> str:
    points = [point for line in lines.values() for point in line]
    left, right = (bound(math.log10(point[0]) for point in points) for bound in (min, max))
    low = math.floor(min(math.log10(point[1]) for point in points))
    high = math.ceil(max(math.log10(point[1]) for point in points))

    def x(value: float) -> float:
        return MARGIN + (math.log10(value) - left) / max(right - left, 1e-9) * (WIDTH - MARGIN - 12)

    def y(value: float) -> float:
        return HEIGHT - 30 - (math.log10(value) - low) / max(high - low, 1) * (HEIGHT - 62)

    parts = [f'<text x="{MARGIN}" y="16" font-weight="bold">{title}</text>']
    for power in range(low, high + 1):
        parts.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - 12}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{MARGIN - 6}" y="{y(10**power) + 4:.1f}" text-anchor="end">{10**power:,g}</text>')
    for power in range(math.ceil(left), math.floor(right) + 1):
        parts.append(f'<text x="{x(10**power):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{10**power:,}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour, path = COLOURS[number], " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts += [f'<circle cx="{x(size):.1f}" cy="{y(value):.1f}" r="2.4" fill="{colour}"/>' for size, value in line]
        parts.append(f'<text x="{MARGIN + 8}" y="{34 + 13 * number}" fill="{colour}">{name}</text>')
    return "".join(parts)


def _size(setting: str) -> float:
    return float(setting.split()[0].replace(",", ""))


if __name__ == "__main__":
    main(*sys.argv[1:])
