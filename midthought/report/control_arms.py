"""The control arms of a run beside the run itself, as an HTML table. Depends only on the summary's keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midthought.report.results import ARMS, duration, number
from midthought.report.templates import macro

_PREFIX = "arms."


def arm_names(summary: Mapping[str, Any]) -> list[str]:
    """Returns the arms that were evaluated, in the order of the summary.

    >>> arm_names({"after.exact_match": 0.5, "arms.rft.exact_match": 0.4, "arms.rft.none.exact_match": 0.3})
    ['rft']
    """
    keys = (key.split(".") for key in summary if key.startswith(_PREFIX) and key.endswith(".exact_match"))
    return list(dict.fromkeys(key[1] for key in keys))


def control_arms_table(summary: Mapping[str, Any], reports: Sequence[str] = ()) -> str:
    """Returns the metrics of the run and of its arms side by side; empty without arms. `reports`: arms with a report of their own
    in `arms/NAME/report.html`."""
    names = arm_names(summary)
    if not names:
        return ""
    prefixes = ["after", *(f"{_PREFIX}{name}" for name in names)]
    metrics = [(arm.label, arm.note, (arm.after or "").removeprefix("after.")) for arm in ARMS]
    metrics.insert(2, ("Sampled", "temperature 1, as in training", "sampled.exact_match"))
    rows = []
    for label, note, key in metrics:
        cells = [number(summary, f"{prefix}.{key}") for prefix in prefixes]
        if any(cell is not None for cell in cells[1:]):
            rows.append((label, note, ["–" if cell is None else f"{cell:.3f}" for cell in cells]))
    seconds = [
        number(summary, key) for key in ("train_seconds", *(f"{prefix}.train_seconds" for prefix in prefixes[1:]))
    ]
    shown = ["–" if spent is None else duration(spent) for spent in seconds]
    rows.append(("Training", "without evaluation and checkpoints", shown))
    heads = [("This run", ""), *((name, f"arms/{name}/report.html" if name in reports else "") for name in names)]
    return macro("control_arms")(heads, rows)
