"""`midthought settings`, `report`, `compare` and `guard`: what a run would use, wrote, and what went wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from midthought.cli.output import tell
from midthought.cli.training import RECIPE_NAMES
from midthought.files.storage_errors import value_errors


def settings(
    recipe: Annotated[
        str,
        typer.Argument(
            help=f"Whose settings: {RECIPE_NAMES}, or library (the Trainer).",
        ),
    ] = "library",
) -> None:
    """Print every setting with its default and meaning."""
    from midthought.config import ConfigStore
    from midthought.config.page import settings_page
    from midthought.recipes import find_recipe

    store = ConfigStore if recipe == "library" else find_recipe(recipe).config_class()
    tell(settings_page(store, recipe))


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    max_mib: Annotated[float, typer.Option(min=0.0, help="Size of the episodes in the page, at most.")] = 20.0,
) -> None:
    """Write RUN/report.html again from the run's files."""
    from midthought.report.html import write_report

    with value_errors(run):
        tell(write_report(run, max_mib=max_mib))


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
    from midthought.report.console import Console

    with value_errors(", ".join(map(str, runs))):
        comparison = compare(runs, arm=arm)
        if as_json:
            tell(json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False))
        else:
            print_comparison(comparison, Console())


def guard(
    run: Annotated[Path, typer.Argument(help="Run folder, of a finished run or of one that is running.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
) -> None:
    """Say what the checks have found during a run, and what to try; exit code 1 if there is a finding (docs/runs.md)."""
    from midthought.report.run_record import read_run, shown_findings

    with value_errors(run):
        rows = [row for row in read_run(run).findings if row.get("step")]
    shown = ["{title}  ({when})\n  {observation}\n  try: {action}".format_map(each) for each in shown_findings(rows)]
    tell(json.dumps(rows, indent=1, ensure_ascii=False) if as_json else "\n".join(shown) or "No check has a finding.")
    if rows:
        raise typer.Exit(1)
