"""Metrics as curves: one chart per subject as inline SVG, and the points for the page's script.

Known metric names only decide a chart's title and position; every other key gets its own chart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from markupsafe import Markup

from midthought.report.templates import macro

Points = list[tuple[int, float]]
"""(step, value) in the order of writing."""

LANES = ("sampling", "learning", "new weights", "waiting")
"""Rows of the timeline. Waiting: for tools and environments, without sampling or learning."""
MAX_ITERATIONS = 40
"""Last iterations in the timeline."""
TIMELINE_WIDTH, LANE_HEIGHT, LANE_LEFT = 900, 22, 130

WIDTH, HEIGHT = 420, 192
LEFT, RIGHT, TOP, BOTTOM = 50, 402, 10, 168
MAX_POINTS = 500
MAX_SERIES = 8
MIN_POINTS_TO_SMOOTH = 25

STAGES = {
    "sft": "Warm-up (SFT)",
    "ppo": "Reinforcement learning",
    "validation": "Validation",
    "validation.sampled": "Validation, sampled",
    "validation.tool_off": "Validation, tool off",
    "validation.shuffled": "Validation, results shuffled",
}
SUBJECTS: Mapping[str, str] = {
    "Reward": "reward/mean reward/std",
    "Success": "env/success_share exact_match",
    "Reward by part": "reward/*",
    "Calls per episode": "episode/calls episode/invalid_calls",
    "Calls that fail or repeat an earlier one, share of the calls": "tool/*/failures episode/repeated_calls",
    "Tokens per episode": "episode/policy_tokens episode/response_tokens",
    "How episodes end": "episode/answered episode/length episode/max_turns episode/max_steps episode/failed",
    "Agents: errors, exactly continued, without a required call": "agent/errors agent/continued agent/required_missed",
    "KL to the reference model": "kl_reference",
    "Entropy": "entropy",
    "KL of an update": "approx_kl",
    "Clip fraction": "clip_fraction value_clip_fraction",
    "Sampled − recomputed log-probability": "logprob_difference_*",
    "Age of tokens, in updates": "staleness/mean staleness/max",
    "Share of the tokens by age": "staleness/share_*",
    "Loss": "loss policy_loss value_loss",
    "Gradient norm": "grad_norm critic_grad_norm",
    "Seconds per stage": "time/rollout_seconds time/scoring_seconds time/update_seconds time/weight_update_seconds",
    "Seconds without sampling, without learning": "time/wall time/idle_engine time/idle_learner time/waiting",
}
"""Title of each chart with a subject, and the patterns of its metrics."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its title, and its lines by label."""

    title: str
    lines: Mapping[str, Points]


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear scale from the values `low..high` to the pixels `start..end`, with its ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def curves(metrics: Mapping[str, Mapping[str, Points]]) -> tuple[str, list[dict[str, Any]]]:
    """Returns all charts as HTML, by stage, and their points for the page's script, in the order of `data-chart`."""
    html: list[str] = []
    data: list[dict[str, Any]] = []
    for stage, series in metrics.items():
        main, rest = plan_charts(series)
        last_step = max((line[-1][0] for chart in (*main, *rest) for line in chart.lines.values()), default=0)
        parts = [[_chart(chart, data) for chart in charts] for charts in (main, rest)]
        title = STAGES.get(stage, stage)
        html.append(macro("stage")(title, f"{last_step:,}", *parts, timeline(series), stage != "sft"))
    return Markup("").join(html), data


def plan_charts(series: Mapping[str, Points]) -> tuple[list[Chart], list[Chart]]:
    """Returns the charts of one stage with a subject, in the order of `SUBJECTS`, and the charts of all other keys."""
    left = {key: points for key, points in series.items() if points}
    main = []
    for title, patterns in SUBJECTS.items():
        keys = [key for key in left if any(fnmatchcase(key, pattern) for pattern in patterns.split())][:MAX_SERIES]
        if keys:
            main.append(Chart(title, _labelled({key: left.pop(key) for key in keys})))
    rest = [Chart(key, {key: points}) for key, points in sorted(left.items())]
    return (main, rest) if main else (rest, [])


def timeline(series: Mapping[str, Points]) -> str:
    """Returns the seconds of the last iterations of asynchronous training as HTML, one row per kind of work; empty for others.

    Learning and new weights are at the end of an iteration, as they were. When the engine sampled is not recorded: its bar starts
    with the iteration, and waiting is just before learning.
    """
    names = ("time/wall", "time/idle_engine", "time/idle_learner", "time/weight_update_seconds", "time/waiting")
    values = [dict(series.get(name, ())) for name in names]
    steps = list(values[0])[-MAX_ITERATIONS:]
    if not steps:
        return ""
    x = Axis(0.0, math.fsum(values[0][step] for step in steps), LANE_LEFT, TIMELINE_WIDTH - 10, ())
    bars, borders, totals, start = [], [], [0.0] * len(LANES), 0.0
    for step in steps:
        wall, idle_engine, idle_learner, publishing, waiting = (each.get(step, 0.0) for each in values)
        seconds = (wall - idle_engine, wall - idle_learner, publishing, waiting)
        end = start + wall
        learns_at = end - publishing - seconds[1]
        for lane, begin in enumerate((start, learns_at, end - publishing, learns_at - waiting)):
            left = x.place(max(begin, start))
            width = f"{max(x.place(begin + seconds[lane]) - left, 0.0):.1f}"
            label = f"iteration {step}: {LANES[lane]} {seconds[lane]:.2g} of {wall:.2g} s"
            bars.append((lane, f"{left:.1f}", width, label))
            totals[lane] += seconds[lane]
        borders.append((f"{x.place(start):.1f}", "" if (step - steps[0]) % max(len(steps) // 8, 1) else f"{step}"))
        start = end
    shares = [f"{name} {total / x.high:.0%}" for name, total in zip(LANES, totals, strict=True)]
    return macro("timeline")(TIMELINE_WIDTH, LANE_HEIGHT, LANE_LEFT, shares, bars, borders, f"{start:.3g}")


def smoothed(values: Sequence[float]) -> list[float]:
    """Returns a centred Gaussian average without lag; its standard deviation is a sixtieth of the number of points."""
    deviation = max(len(values) / 60, 0.5)
    reach = math.ceil(3 * deviation)
    weights = [math.exp(-0.5 * (offset / deviation) ** 2) for offset in range(reach + 1)]
    result = []
    for centre in range(len(values)):
        near = range(max(centre - reach, 0), min(centre + reach + 1, len(values)))
        total = math.fsum(weights[abs(index - centre)] for index in near)
        result.append(math.fsum(weights[abs(index - centre)] * values[index] for index in near) / total)
    return result


def thinned(points: Points, max_points: int = MAX_POINTS) -> Points:
    """Returns at most `max_points` points: means of equal runs of neighbours, each at its run's last step."""
    run = -(-len(points) // max_points)
    if run <= 1:
        return points
    runs = [points[start : start + run] for start in range(0, len(points), run)]
    return [(part[-1][0], math.fsum(value for _, value in part) / len(part)) for part in runs]


def nice_ticks(low: float, high: float, num_ticks: int, *, whole: bool = False) -> tuple[float, ...]:
    """Returns about `num_ticks` round numbers (1, 2 or 5 times a power of ten apart) within `low..high`.

    >>> nice_ticks(0.0, 1.0, 5)
    (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """
    rough = (high - low) / num_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(float(f"{index * step:.12g}") for index in range(first, last + 1))


def _labelled(series: dict[str, Points]) -> dict[str, Points]:
    """Returns lines by the shortest distinct labels: the last part of the key, else the whole key."""
    short = [key.rsplit("/", 1)[-1].replace("_", " ") for key in series]
    return dict(zip(short, series.values(), strict=True)) if len(set(short)) == len(short) else series


def _chart(chart: Chart, data: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the values of the template's macro `chart`, and appends the points for the page's script to `data`."""
    points_of = {label: thinned(points) for label, points in chart.lines.items()}
    raw = {label: [value for _, value in points] for label, points in points_of.items()}
    shown = {label: smoothed(v) if len(v) >= MIN_POINTS_TO_SMOOTH else v for label, v in raw.items()}
    steps = [step for points in points_of.values() for step, _ in points]
    x = _step_axis(min(steps), max(steps))
    y = _value_axis(raw, shown)
    lines, series = [], []
    for label, points in points_of.items():
        places = [x.place(step) for step, _ in points]
        dots = zip(places, shown[label], strict=True) if len(points) <= MIN_POINTS_TO_SMOOTH else ()
        lines.append(
            {
                "label": label,
                "raw": "" if shown[label] is raw[label] else _polyline(places, raw[label], y),
                "points": _polyline(places, shown[label], y),
                "dots": [(f"{px:.1f}", f"{y.place(value):.1f}") for px, value in dots],
            }
        )
        values, has_means = [float(f"{v:.5g}") for v in raw[label]], len(points) < len(chart.lines[label])
        series.append({"steps": [step for step, _ in points], "values": values, "has_means": has_means})
    frame = {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM, "width": WIDTH, "height": HEIGHT}
    data.append({**frame, "low": x.low, "high": x.high, "lines": series})
    return {
        **frame,
        "number": len(data) - 1,
        "title": chart.title,
        "steps": (min(steps), max(steps)),
        "description": "; ".join(f"{label} from {v[0]:.3g} to {v[-1]:.3g}" for label, v in shown.items()),
        "lines": lines,
        "x_ticks": [(f"{x.place(tick):.1f}", f"{tick:.0f}") for tick in x.ticks],
        "y_ticks": list(zip([f"{y.place(tick):.1f}" for tick in y.ticks], _value_labels(y), strict=True)),
    }


def _step_axis(low: int, high: int) -> Axis:
    if low == high:
        low, high = low - 1, high + 1
    return Axis(low, high, LEFT, RIGHT, nice_ticks(low, high, 6, whole=True))


def _value_axis(raw: Mapping[str, list[float]], shown: Mapping[str, list[float]]) -> Axis:
    """The range of the smoothed lines and the middle 96 % of the raw points, with a margin; from 0 if that is near."""
    values = [value for line in shown.values() for value in line]
    for line in map(sorted, raw.values()):
        values += [line[len(line) // 50], line[-1 - len(line) // 50]]
    low, high = min(values), max(values)
    spread = high - low
    margin = 0.06 * spread if spread > 1e-6 * max(abs(low), abs(high)) else 0.1 * abs(high) or 1.0
    low = 0.0 if 0 <= low <= 0.35 * high else low - margin
    return Axis(low, high + margin, BOTTOM, TOP, nice_ticks(low, high + margin, 5))


def _value_labels(y: Axis) -> list[str]:
    decimals = max(0, -math.floor(math.log10(y.ticks[1] - y.ticks[0]) + 1e-9)) if len(y.ticks) > 1 else 3
    labels = [f"{tick:.{decimals}f}" if decimals <= 4 else f"{tick:.3g}" for tick in y.ticks]
    return [label.replace("-", "−") for label in labels]


def _polyline(places: Sequence[float], values: Sequence[float], y: Axis) -> str:
    return " ".join(f"{px:.1f},{y.place(value):.1f}" for px, value in zip(places, values, strict=True))
