"""`report.html`: a run folder as one self-contained page that needs no network and no server.

Texts of a run are untrusted: they enter the page escaped, or as JSON that the page's script shows with `textContent`.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from midthought.report.curves import curves
from midthought.report.results import arms_table, control_arms_table, more_metrics, verdict
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
    from midthought.report.page_episodes import (  # numpy, which a run's first lines do not need
        column_layout,
        pack_episodes,
        read_page_episodes,
    )
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
        episodes_sentence=packed.sentence,
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
