"""`midthought watch`: shows a run while it runs, from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from midthought.cli.output import tell
from midthought.files.storage_errors import value_errors


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder, of a run that is running or has ended.")],
    once: Annotated[bool, typer.Option("--once", help="Print the latest metrics and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks at the folder.")] = 1.0,
) -> None:
    """Print the metrics of a run while it runs, one line per step; exit code 1 if it ended before its last evaluation.

    Reads the run folder only, so it works from another terminal or machine.
    """
    from midthought.report.watch import RunState, follow, state_of

    with value_errors(run):
        for line in follow(run, None if once else interval):
            tell(line)
    state = state_of(run)
    tell(f"{run}: {state}")
    if state is RunState.ENDED:
        raise typer.Exit(1)
