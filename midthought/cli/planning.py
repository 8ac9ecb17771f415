"""`midthought settings`, `plan`, `report`, `compare` and `guard`: what a run would use, needs, wrote, and what went wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from midthought.cli.output import tell
from midthought.cli.training import RECIPE_NAMES, require_verl_options
from midthought.errors import SettingsError
from midthought.files.storage_errors import value_errors

if TYPE_CHECKING:
    from midthought.config import RecipeConfig


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


def plan(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]…", help="e.g. model=Qwen/Qwen3-8B gpus=8 (docs/scaling.md)"),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help=f"Plan a run with the settings of this recipe: {RECIPE_NAMES}.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="With --recipe: YAML file of settings, or the name of one that is included.")
    ] = None,
    engine: Annotated[str, typer.Option(help="With --recipe: the trainer, midthought or verl.")] = "midthought",
    as_json: Annotated[bool, typer.Option("--json", help="Print bytes as JSON.")] = False,
) -> None:
    """Estimate a run's memory per GPU before starting it; no weights are loaded."""
    from midthought.config import parse_assignments
    from midthought.plan.choices import chosen_plan
    from midthought.plan.memory import Memory
    from midthought.plan.settings import PlanSettings
    from midthought.plan.shape import find_shape
    from midthought.plan.table import to_dict, to_lines

    of_recipe = [word for word in words or [] if "." in word.partition("=")[0]]
    given = parse_assignments([word for word in words or [] if word not in of_recipe])
    if recipe is not None:
        settings = _recipe_settings(recipe, of_recipe, config, engine)
        source = str(given.get("model", settings.model.local_path))
        memory = chosen_plan(settings, source, given, is_given=bool(source), has_vllm=False)[1]
    elif config is not None or of_recipe:
        raise SettingsError(f"{config or of_recipe[0]}: a recipe's setting; name the recipe with --recipe")
    else:
        arguments = PlanSettings(**given)
        memory = Memory(find_shape(arguments), arguments)
    tell(json.dumps(to_dict(memory), indent=1) if as_json else "\n".join(to_lines(memory)))


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
    from midthought.report.findings import shown_findings
    from midthought.report.run_record import read_run

    with value_errors(run):
        rows = [row for row in read_run(run).findings if "check" in row]
    shown = ["{title}  ({when})\n  {observation}\n  try: {action}".format_map(each) for each in shown_findings(rows)]
    tell(json.dumps(rows, indent=1, ensure_ascii=False) if as_json else "\n".join(shown) or "No check has a finding.")
    if rows:
        raise typer.Exit(1)


def _recipe_settings(recipe: str, words: list[str], config: Path | None, engine: str) -> RecipeConfig:
    from midthought.recipes import find_recipe

    found = find_recipe(recipe)
    if engine != "midthought":
        require_verl_options(engine, "all", resume=False)
        chosen: RecipeConfig = found.for_verl().settings(words, config)
        return chosen
    return found.begin(Path(), words=words, config=config)[0]
