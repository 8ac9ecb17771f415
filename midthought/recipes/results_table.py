"""The final table on the console: the metrics before and after reinforcement learning and of every control arm, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from midthought.report.console import Console


def print_results(
    console: Console, title: str, rows: Iterable[tuple[str, str]], summary: Mapping[str, Any], arms: Sequence[str]
) -> None:
    """Prints the metrics that were measured, in per cent. `rows`: each row's title and metric; `arms`: names of control arms.

    Prints nothing if nothing was evaluated.
    """
    has_before = "before.exact_match" in summary
    columns = {"before": "before RL", "after": "after RL" if has_before else "this policy"}
    columns |= {f"arms.{name}": name for name in arms}
    measured = [prefix for prefix in columns if f"{prefix}.exact_match" in summary]
    lines = [
        (row, *(_cell(summary.get(f"{prefix}.{metric}")) for prefix in measured))
        for row, metric in rows
        if any(f"{prefix}.{metric}" in summary for prefix in measured)
    ]
    if lines:
        console.table(title, ("", *(columns[prefix] for prefix in measured)), lines)


def _cell(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.1%}"
