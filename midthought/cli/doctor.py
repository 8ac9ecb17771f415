"""`midthought doctor`: examines a recipe's run before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from midthought.cli.output import tell
from midthought.cli.training import RECIPE_NAMES, Assignments


def doctor(
    recipe: Annotated[str, typer.Argument(help=f"Name of the recipe: {RECIPE_NAMES}.")],
    words: Assignments = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings, or the name of one that is included.")
    ] = None,
    from_: Annotated[Path | None, typer.Option("--from", help="Run, checkpoint or model to start from.")] = None,
    run: Annotated[Path, typer.Option(help="Run folder of the later run, for the disk space.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Check whether a run can work and learn, without training; exit code 1 if there is a finding (docs/runs.md)."""
    from midthought.recipes import find_recipe
    from midthought.recipes.checkup import examine_recipe

    report = examine_recipe(find_recipe(recipe), words=words or [], config=config, from_path=from_, run_path=run)
    tell(json.dumps(report.to_dict(), indent=1, ensure_ascii=False) if as_json else "\n".join(report.to_lines()))
    if not report.is_healthy:
        raise typer.Exit(1)
