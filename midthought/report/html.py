"""`report.html`: one run folder as one self-contained page that needs no network and no server.

Texts of a run are foreign: they enter the page escaped, or as JSON that the page's script shows with `textContent`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from midthought.report.curves import curves
from midthought.report.figures import arms_table, cards, more_figures, verdict
from midthought.report.run_folder import RunFolder, write_whole
from midthought.report.run_record import RunRecord, is_right, read_run


def write_report(run_path: str | os.PathLike[str], *, max_trajectories: int = 200) -> Path:
    """Write `report.html` into the run folder from what lies there so far, and give its path.

    At most `max_trajectories` episodes are put into the page. Raises `CheckpointError` if there
    is no run at `run_path`, `OutputPathError` if a report is there and the folder is not a run that this library wrote.
    """
    page = render(read_run(run_path, max_trajectories=max_trajectories))
    folder = RunFolder(run_path)
    path = folder.report_path
    if path.exists():
        folder.require_ours()
    write_whole(path, page)
    return path


def render(run: RunRecord) -> str:
    """The whole page as HTML."""
    script = _asset("report.js")
    sentence, support = verdict(run.summary)
    charts, chart_points = curves(run.metrics)
    data = {
        "charts": chart_points,
        "trajectories": [{**row, "right": is_right(row)} for row in run.trajectories],
    }
    return Template(_asset("report.html")).substitute(
        name=escape(run.name),
        style=_asset("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=embedded_json(data),
        verdict=sentence,
        support=support,
        cards=cards(run.summary),
        table=arms_table(run.summary) or _nothing(_why_no_arms(run)),
        more_figures=more_figures(run.summary),
        curves=charts or _nothing("Nothing has been logged yet."),
        trajectories_note=_trajectories_note(run),
        config=_config(run.config),
    )


def embedded_json(data: Mapping[str, Any]) -> str:
    """`data` as JSON that can stand inside a script element: whatever it says, it can neither end nor open a tag.

    ASCII only; `<`, `>` and `&` become escapes that mean the same in JSON.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return resources.files("midthought.report").joinpath(name).read_text(encoding="utf-8")


def _why_no_arms(run: RunRecord) -> str:
    if "reward/mean" in run.summary:
        return "This run was not evaluated with and without its tool; its rewards stand above and in the curves."
    return "No arm has been evaluated yet."


def _nothing(sentence: str) -> str:
    return f'<p class="nothing">{escape(sentence)}</p>'


def _trajectories_note(run: RunRecord) -> str:
    if not run.trajectories:
        return "No episode has been written down yet."
    if len(run.trajectories) < run.num_trajectories:
        return f"{len(run.trajectories):,} of {run.num_trajectories:,} episodes; all stand in trajectories.jsonl."
    return f"All {run.num_trajectories:,} episodes that were written down."


def _config(text: str | None) -> str:
    if text is None:
        return _nothing("config.yaml has not been written.")
    return (
        f"<details><summary>config.yaml</summary>"
        f'<pre tabindex="0" aria-label="config.yaml">{escape(text)}</pre></details>'
    )
