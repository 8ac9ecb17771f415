"""`midthought settings`, `doctor`, `watch`, `report` and `compare`: what a run would use and whether it can work, what it
writes, and how it differs from others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from midthought.cli.training import RECIPE_NAMES, Assignments
from midthought.errors import CheckpointError
from midthought.files.output_folder import kind_of
from midthought.files.regular import value_errors
from midthought.report.console import Console, tell


def settings(
    recipe: Annotated[
        str, typer.Argument(help=f"Whose settings: {RECIPE_NAMES}, or library (the Trainer).")
    ] = "library",
) -> None:
    """Print every setting with its default and meaning."""
    from midthought.config import ConfigStore
    from midthought.config.section import settings_page
    from midthought.recipes import find_recipe

    store = ConfigStore if recipe == "library" else find_recipe(recipe).config_class()
    tell(settings_page(store, recipe))


def report(run: Annotated[Path, typer.Argument(help="Run folder.")]) -> None:
    """Write RUN/report.html again from the run's files."""
    from midthought.report.html import write_report

    with value_errors(run):
        tell(write_report(run))


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Two or more run folders; the first is the baseline.")
    ],
    arm: Annotated[
        str | None,
        typer.Option(help="Whose answers: after.sampled, after, validation, …; default: the first of these."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Compare runs: the settings that differ, and one table of paired tests on the same held-out questions.

    Runs that differ only in training.seed are seeds of one configuration.
    """
    from midthought.report.comparison import compare, print_comparison

    with value_errors(", ".join(map(str, runs))):
        comparison = compare(runs, arm=arm)
        if as_json:
            tell(json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False))
        else:
            print_comparison(comparison, Console())


def doctor(
    recipe: Annotated[str, typer.Argument(help=f"Name of the recipe: {RECIPE_NAMES}.")],
    words: Assignments = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings, or the name of one that is included.")
    ] = None,
    from_: Annotated[Path | None, typer.Option("--from", help="Run, checkpoint or model to start from.")] = None,
    run: Annotated[Path, typer.Option(help="Run folder of the later run, for the disk space.")] = Path("runs"),
) -> None:
    """Check whether a run can work and learn, without training; exit code 1 if there is a finding (docs/runs.md)."""
    from midthought.recipes import find_recipe
    from midthought.recipes.checkup import examine_recipe

    report = examine_recipe(find_recipe(recipe), words=words or [], config=config, from_path=from_, run_path=run)
    tell("\n".join(report.to_lines()))
    if not report.is_healthy:
        raise typer.Exit(1)


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder, of a run that is running or has ended.")],
    once: Annotated[bool, typer.Option("--once", help="Print the latest metrics and exit.")] = False,
) -> None:
    """Print the metrics of a run while it runs, one line per step; exit code 1 if it ended before its last evaluation.

    Reads the run folder only, so it works from another terminal or machine.
    """
    from midthought.report.run_record import RunState, follow, state_of

    with value_errors(run):
        if run.is_dir() and kind_of(run) != "run":
            raise CheckpointError(f"{run} is no run folder; give the folder that `midthought train` writes")
        for line in follow(run, None if once else 1.0):
            tell(line)
    state = state_of(run)
    tell(f"{run}: {state}")
    if state is RunState.ENDED:
        raise typer.Exit(1)
