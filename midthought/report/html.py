"""`report.html`: a run folder as one self-contained page that needs no network and no server.

Texts of a run are untrusted: they enter the page escaped, or as JSON that the page's script shows with `textContent`.
"""

from __future__ import annotations

import os
from pathlib import Path

from midthought.report.control_arms import control_arms_table
from midthought.report.curves import curves
from midthought.report.findings import STAGES, findings_list, marks, shown_findings
from midthought.report.results import arms_table, cards, more_metrics, verdict
from midthought.report.run_folder import RunFolder, write_whole
from midthought.report.run_record import RunRecord, is_right, read_run
from midthought.report.templates import render_page


def write_report(run_path: str | os.PathLike[str], *, max_trajectories: int = 200) -> Path:
    """Writes `report.html` into the run folder from its present contents, and returns its path.

    At most `max_trajectories` episodes are included. Raises `CheckpointError` if there is no run at `run_path`,
    `OutputPathError` if there is a report and the folder is not a run that this library wrote.
    """
    page = render(read_run(run_path, max_trajectories=max_trajectories))
    folder = RunFolder(run_path)
    path = folder.report_path
    if path.exists():
        folder.require_ours()
    write_whole(path, page)
    return path


def render(run: RunRecord) -> str:
    """Returns the whole page as HTML."""
    sentence, support = verdict(run.summary)
    findings = shown_findings(run.findings)
    charts, chart_points = curves(run.metrics, dict.fromkeys(STAGES, marks(findings)))
    return render_page(
        "report.html",
        ("curves.js", "report.js"),
        name=run.name,
        data={"charts": chart_points, "trajectories": [{**row, "right": is_right(row)} for row in run.trajectories]},
        verdict=sentence,
        support=support,
        cards=cards(run.summary),
        table=arms_table(run.summary),
        control_arms=control_arms_table(run.summary, run.arm_reports),
        has_reward="reward/mean" in run.summary,
        more_metrics=more_metrics(run.summary),
        findings=findings_list(findings),
        curves=charts,
        num_shown=len(run.trajectories),
        num_trajectories=run.num_trajectories,
        config=run.config,
    )
