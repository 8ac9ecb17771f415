"""`report.html`: a run folder as one self-contained page that needs no network and no server. It begins with the results of the
summary: a sentence, the table before and after, control arms. They depend on the summary's keys, not on how it was measured.

Texts of a run are untrusted: they enter the page escaped, or as JSON that the page's script shows with `textContent`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from midthought.report.console import duration
from midthought.report.curves import curves
from midthought.report.run_folder import RunFolder, write_whole
from midthought.report.run_record import read_run, shown_findings
from midthought.report.templates import macro, render_page

MAX_TRAJECTORIES = 5_000
"""Episodes in the page at most."""
MAX_BYTES = 20 * 2**20
"""Size of the episodes in the page at most."""
_PAGE = "store quantities tokens filters list timeline episode samples diff address browser"
SCRIPTS = ("curves.js", *(f"page/{name}.js" for name in _PAGE.split()))


def write_report(run_path: str | os.PathLike[str]) -> Path:
    """Writes `report.html` into the run folder from its present contents, and returns its path.

    Raises `CheckpointError` if there is no run at `run_path` or a file of it is damaged, `OutputPathError` if
    there is a report and the folder is not a run that this library wrote.
    """
    page = _page(run_path)
    folder = RunFolder(run_path)
    path = folder.report_path
    if path.exists():
        folder.require_ours()
    write_whole(path, page)
    return path


def _page(run_path: str | os.PathLike[str]) -> str:
    # both import numpy, which a run's first lines do not need
    from midthought.report.page_episodes import column_layout, pack_episodes, read_page_episodes
    from midthought.report.recorded_episodes import QUANTITIES

    run = read_run(run_path)
    limits = {"max_episodes": MAX_TRAJECTORIES, "max_bytes": MAX_BYTES}
    packed = pack_episodes(read_page_episodes(run_path, **limits), **limits)
    sentence, support = verdict(run.summary)
    findings = shown_findings(run.findings)
    charts, chart_points = curves(run.metrics)
    return render_page(
        "report.html",
        SCRIPTS,
        name=run.name,
        data={
            "charts": chart_points,
            "quantities": [asdict(each) for each in QUANTITIES],
            "columns": column_layout(),
            "num_blocks": len(packed.blocks),
        },
        index=packed.index,
        blocks=packed.blocks,
        episodes_sentence=packed.sentence(RunFolder(run_path).trajectories.num_lines),
        verdict=sentence,
        support=support,
        table=arms_table(run.summary),
        control_arms=control_arms_table(run.summary, run.arm_reports),
        has_reward="reward/mean" in run.summary,
        more_metrics=more_metrics(run.summary),
        findings=macro("findings")(findings) if findings else "",
        curves=charts,
        config=run.config,
        starts=run.starts,
    )


# -- results ----------------------------------------------------------------------------------------------------------


Summary = Mapping[str, Any]
ARMS = (
    ("exact_match", "Exact match, greedy", "held-out questions that need the tool"),
    ("balanced_accuracy", "Balanced", "mean of questions with and without an answer"),
    ("unfinished", "Unfinished", "ended without an answer: at a limit, or failed"),
    ("sampled.exact_match", "Sampled", "as in training; in a recipe at temperature 1"),
    ("tool_off.exact_match", "Tool off", "no call is answered"),
    ("shuffled.exact_match", "Results shuffled", "each call gets another question’s result"),
    ("first_try", "First try", "the answer before any feedback"),
    ("none.exact_match", "Retry only", "told only that the answer is wrong"),
    ("wrong.exact_match", "Wrong feedback", "told something false"),
    ("oracle.exact_match", "Oracle results", "every call gets the passage that proves the answer"),
    ("no_memory.exact_match", "No memory needed", "the question contains the answer"),
    ("constant_guess", "Constant guess", "the best that one fixed answer gets"),
    ("call_rate_needed", "Calls where needed", "share of questions"),
    ("call_rate_needless", "Calls where needless", "share of questions"),
    ("goes_on_after_right", "Calls after a confirmation", "share of episodes whose answer was confirmed"),
    ("wrong_to_right", "Wrong → right", "from the first answer to the last, with feedback"),
    ("right_to_wrong", "Right → wrong", "from the first answer to the last, with feedback"),
    ("still_wrong", "Still wrong", "the first answer and the last, with feedback"),
)
"""Key of the metric after `before.` or `after.`, label and note of each row of the table."""


def number(summary: Summary, key: str) -> float | None:
    """Returns the metric under `key`; None if it is missing or null."""
    value = summary.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def verdict(summary: Summary) -> tuple[str, str]:
    """Returns the result of the run in one sentence, and what supports or weakens it (both `Markup` or plain text).

    If both were measured, the sentence is about sampled answers, which is what training changes.
    """
    num_questions = number(summary, "num_questions")
    where = f" on {num_questions:,.0f} held-out questions" if num_questions else ""
    for key, label in (("sampled.exact_match", "Sampled exact match"), ("exact_match", "Exact match")):
        if (after := number(summary, f"after.{key}")) is not None:
            change = _change(number(summary, f"before.{key}"), after)
            return Markup("{}{}: {}").format(label, where, change), _without_tool(summary)
    if (reward := number(summary, "validation/reward/mean")) is not None:
        return Markup("Reward of held-out episodes, greedy: <b>{:.3f}</b>").format(reward), ""
    if (reward := number(summary, "reward/mean")) is None:
        return "This run has not been evaluated yet.", "Its results will be shown here after the last evaluation."
    sentence = Markup("Reward of the last iteration: <b>{:.3f}</b>").format(reward)
    return sentence, "No held-out episodes were evaluated: Trainer(validation=…), training.validate_every, evaluate()."


def _change(before: float | None, after: float) -> str:
    if before is None:
        return Markup("<b>{:.3f}</b>").format(after)
    gain = after - before
    return macro("change")(f"{before:.3f}", f"{after:.3f}", gain, signed(gain))


def _without_tool(summary: Summary) -> str:
    """The greedy score without the tool's results: what a score that depends on them falls to."""
    arms = {"with the tool off": "tool_off.exact_match", "with shuffled results": "shuffled.exact_match"}
    arms["by a constant guess"] = "constant_guess"
    seen = {words: number(summary, f"after.{key}") for words, key in arms.items()}
    shown = [f"{value:.3f} {words}" for words, value in seen.items() if value is not None]
    return f"Without the tool's results: {', '.join(shown)}." if shown else ""


def arms_table(summary: Summary) -> str:
    """Returns the table of all arms, with a plot of each on the scale 0 to 1; empty if nothing was evaluated."""
    rows = []
    for name, label, note in ARMS:
        before, after = number(summary, f"before.{name}"), number(summary, f"after.{name}")
        if before is None and after is None:
            continue
        ends = number(summary, f"after.{name}.low"), number(summary, f"after.{name}.high")
        change = "" if before is None or after is None else signed(after - before)
        row = {"label": label, "note": note, "before": before, "after": after, "change": change}
        rows.append(row | {"bounds": None if None in ends else ends})
    return macro("arms_table")(rows, any(row["bounds"] for row in rows)) if rows else ""


def more_metrics(summary: Summary) -> str:
    """Returns every metric of the summary that the table does not show, as a folded table."""
    names = [f"{name}{end}" for name, *_ in ARMS for end in ("", ".low", ".high")]
    shown = {f"{when}.{name}" for when in ("before", "after") for name in names}
    rest = {key: value for key, value in summary.items() if key not in shown}
    return macro("more_metrics")([(key, _plain(value)) for key, value in rest.items()]) if rest else ""


def signed(value: float) -> str:
    """Formats a change with its sign, with a typographic minus: `+0.556`, `−0.020`."""
    return f"{value:+.3f}".replace("-", "−")


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return "–" if value is None else str(value)


def control_arms_table(summary: Mapping[str, Any], reports: Sequence[str] = ()) -> str:
    """Returns the metrics of the run and of its arms side by side; empty without arms. `reports`: arms with a report of their own
    in `arms/NAME/report.html`."""
    keys = (key.split(".") for key in summary if key.startswith("arms.") and key.endswith(".exact_match"))
    names = list(dict.fromkeys(key[1] for key in keys))
    if not names:
        return ""
    prefixes = ["after", *(f"arms.{name}" for name in names)]
    rows = []
    for key, label, note in ARMS:
        cells = [number(summary, f"{prefix}.{key}") for prefix in prefixes]
        if any(cell is not None for cell in cells[1:]):
            rows.append((label, note, ["–" if cell is None else f"{cell:.3f}" for cell in cells]))
    seconds = [number(summary, key) for key in ("train_seconds", *(f"{each}.train_seconds" for each in prefixes[1:]))]
    shown = ["–" if spent is None else duration(spent) for spent in seconds]
    rows.append(("Training", "without evaluation and checkpoints", shown))
    heads = [("This run", ""), *((name, f"arms/{name}/report.html" if name in reports else "") for name in names)]
    return macro("control_arms")(heads, rows)
