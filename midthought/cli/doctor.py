"""`midthought doctor`: examines a recipe's run, or a script's first trainer, before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from midthought.cli import completion
from midthought.cli.output import tell
from midthought.cli.training import RECIPE_NAMES
from midthought.errors import SettingsError

if TYPE_CHECKING:
    from midthought.checks.before import Report


def doctor(
    target: Annotated[
        str,
        typer.Argument(
            help=f"A recipe ({RECIPE_NAMES}), or a Python file that calls fit().", autocompletion=completion.recipes
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORDS]…",
            help="Settings KEY=VALUE of the recipe; after --, arguments of the file.",
            autocompletion=completion.settings,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings, or the name of one that is included.")
    ] = None,
    from_: Annotated[Path | None, typer.Option("--from", help="Run, checkpoint or model to start from.")] = None,
    run: Annotated[Path, typer.Option(help="Run folder of the later run, for the disk space.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Check whether a run can work and learn, without training; exit code 1 if there is a finding (docs/runs.md)."""
    report = _report(target, words or [], config, from_, run)
    tell(json.dumps(report.to_dict(), indent=1, ensure_ascii=False) if as_json else "\n".join(report.to_lines()))
    if not report.is_healthy:
        raise typer.Exit(1)


def _report(target: str, words: list[str], config: Path | None, from_path: Path | None, run: Path) -> Report:
    if target.endswith(".py"):
        if config is not None or from_path is not None:
            raise SettingsError("--config and --from belong to a recipe; a file gets its arguments after --")
        from midthought.trainer.checked_script import examine_script

        return examine_script(target, words)
    from midthought.recipes import find_recipe
    from midthought.recipes.checkup import examine_recipe

    return examine_recipe(find_recipe(target), words=words, config=config, from_path=from_path, run_path=run)
