"""Rows of figures with their goals, as Markdown and JSON, and the machine that they were measured on."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.timing import Spread

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "trl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One figure, with what was asked of it."""

    part: str
    setting: str
    """The model and the work."""
    figure: str
    """What is given, in words."""
    value: Spread
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Medians of what the figure was worked out from: to understand it by, not to compare with another run's."""

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"

    @property
    def is_met(self) -> bool | None:
        """Whether the median meets the goal; None without a goal."""
        if self.at_least is not None:
            return self.value.median >= self.at_least
        return None if self.at_most is None else self.value.median <= self.at_most

    def to_markdown(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        value = self.value
        met = {None: "", True: "met", False: "**not met**"}[self.is_met]
        seconds = ", ".join(f"{name} {figure:.3g}" for name, figure in self.seconds.items())
        cells = [
            self.part,
            self.setting,
            self.figure,
            f"{value.median:.3g}{unit}",
            f"{value.lowest:.3g} … {value.highest:.3g}",
            self.goal,
            met,
            seconds,
        ]
        return f"| {' | '.join(cells)} |"


def to_markdown(rows: Sequence[Row]) -> str:
    head = "| part | setting | figure | median | range | goal | | medians, seconds |"
    return "\n".join([head, "| --- " * 8 + "|", *(row.to_markdown() for row in rows)])


def write_json(path: Path, rows: Sequence[Row], machine: Mapping[str, Any]) -> None:
    found = [{**asdict(row), "goal": row.goal, "is_met": row.is_met} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "rows": found}, indent=1, ensure_ascii=False) + "\n", "utf-8")


def describe_machine(device: str) -> dict[str, Any]:
    """Processor, cores, threads, versions and the commit. No name of the machine."""
    import torch

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    def git(*words: str) -> str:
        root = Path(__file__).parent
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        print("no commit: this is not a git checkout", file=sys.stderr)
        return "unknown"
