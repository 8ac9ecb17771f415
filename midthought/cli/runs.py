"""`midthought init`, `train` and `evaluate`: write a project that trains at once, run a recipe here, or write a bundle that verl
trains from. `settings`, `doctor`, `watch`, `report` and `compare`: what a run would use and whether it can work, what it writes,
and how it differs from others.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midthought.errors import OutputPathError, SettingsError, near_names
from midthought.files.regular import value_errors
from midthought.recipes import recipe_names
from midthought.report.console import Console, tell

if TYPE_CHECKING:
    from midthought.recipes.recipe import Recipe

RECIPE_NAMES = ", ".join(recipe_names())

Assignments = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Settings, e.g. training.seed=1")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the final table.")]
_SUFFIX = ".txt"
"""Suffix of the templates in `new_project/`, which are no modules of this package."""


def train(
    recipe: Annotated[str, typer.Argument(help=f"Name of the recipe: {RECIPE_NAMES}.")],
    settings: Assignments = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings, or the name of one that is included.")
    ] = None,
    stage: Annotated[str, typer.Option(help="sft (warm-up only), rl, or all.")] = "all",
    from_: Annotated[Path | None, typer.Option("--from", help="Run, checkpoint or model to start from.")] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder; default: runs/RECIPE-TIME.")] = None,
    arms: Annotated[
        str, typer.Option(help="Control arms to train and compare with, e.g. rft,clean (docs/commands.md).")
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --run.")] = False,
    allow_changes: Annotated[
        bool,
        typer.Option("--allow-changes", help="With --resume or --from: accept settings that change what is learned."),
    ] = False,
    quiet: Quiet = False,
    engine: Annotated[
        str, typer.Option(help="Trainer: midthought, or verl for a cluster (docs/cluster.md).")
    ] = "midthought",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what is chosen and whether it fits; with verl, write its bundle.")
    ] = False,
    gpu_gib: Annotated[
        float | None,
        typer.Option(min=0.001, help="With --dry-run: choose for a GPU of this memory, not for this machine."),
    ] = None,
) -> None:
    """Train a policy: warm-up, reinforcement learning, evaluation, report."""
    from midthought.recipes import find_recipe

    found = find_recipe(recipe)
    path, words = run or _timed_folder(found.name), settings or []
    if arms:
        words = [*words, f"evaluation.control_arms=[{arms}]"]
    if gpu_gib is not None and (not dry_run or engine != "midthought"):
        raise SettingsError("--gpu-gib describes a GPU for --dry-run, without --engine; add --dry-run, or leave it out")
    if allow_changes and not (resume or from_):
        raise SettingsError("--allow-changes permits a resumed run to change; add --resume or --from, or leave it out")
    if engine != "midthought":
        require_verl_options(engine, stage, resume, arms)
        _train_with_verl(found, path, words, config, stage, from_, dry_run)
        return
    given: dict[str, Any] = {"words": words, "config": config, "stage": stage, "from_path": from_}
    if dry_run and resume:
        raise SettingsError(
            f"--dry-run with --resume: a resumed run keeps what it chose, see {path}/config.yaml; leave out one"
        )
    if dry_run:
        _print_choice(found, path, given, gpu_gib)
        return
    console = Console(quiet=quiet)
    try:
        found.run(path, console, **given, resume=resume, allow_changes=allow_changes)
    except KeyboardInterrupt:
        from midthought.report.run_folder import PROGRESS
        from midthought.trainer.checkpoint import what_is_saved

        if (path / PROGRESS).is_file():
            command = shlex.join([_program(), "train", recipe, "--run", str(path), "--resume"])
            console.error(f"Stopped. {what_is_saved(path)}. Continue with: {command}")
        else:
            console.error("Stopped before the run began. Nothing is saved: start it again")
        raise typer.Exit(130) from None


def evaluate(
    model: Annotated[Path, typer.Argument(help="Run folder, checkpoint, or Hugging Face model folder.")],
    settings: Assignments = None,
    recipe: Annotated[str, typer.Option(help=f"Recipe whose evaluation is run: {RECIPE_NAMES}.")] = "podcast",
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings; default: the settings of the model's run.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Folder for the results; default: runs/evaluate-TIME.")] = None,
    quiet: Quiet = False,
) -> None:
    """Run a model through a recipe's evaluation: metrics, trajectories, report."""
    from midthought.recipes import find_recipe

    path, console = run or _timed_folder("evaluate"), Console(quiet=quiet)
    given: dict[str, Any] = {"words": settings or [], "config": config, "stage": "evaluate", "from_path": model}
    try:
        find_recipe(recipe).run(path, console, **given)
    except KeyboardInterrupt:
        console.error("Stopped. An evaluation cannot be resumed: run it again.")
        raise typer.Exit(130) from None


def require_verl_options(engine: str, stage: str, resume: bool, arms: str = "") -> None:
    """Raises SettingsError unless these options can be used with verl."""
    if engine != "verl":
        raise SettingsError(f"unknown engine {engine!r}. {near_names(engine, ('midthought', 'verl'))}")
    if stage == "sft":
        raise SettingsError(
            "--stage sft with --engine verl: leave --engine out for the warm-up, then give its run to verl with --from RUN"
        )
    if stage not in ("rl", "all"):
        raise SettingsError(f"unknown stage {stage!r}. {near_names(stage, ('rl', 'all'))}")
    if resume:
        raise SettingsError("--resume with --engine verl: run the bundle's train.sh again; verl resumes by itself")
    if arms:
        raise SettingsError(f"--arms {arms} with --engine verl: verl trains no control arms; leave --arms out")


def _program() -> str:
    """Returns how a shell starts this command: by its name if it is on the path, otherwise as it was started."""
    return "midthought" if shutil.which("midthought") else sys.argv[0]


def _timed_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _print_choice(recipe: Recipe, path: Path, given: dict[str, Any], gpu_gib: float | None) -> None:
    """Prints what a run would choose and whether it fits. Raises SettingsError, with the remedy, if it does not fit."""
    from midthought.plan.hardware import Hardware

    run = recipe.make_run(path, Console(quiet=True), **given)
    run.choose(run.beginning, Hardware("gpu", f"a GPU of {gpu_gib:g} GiB", gpu_gib) if gpu_gib else None)
    tell("\n".join(run.choice.table()))
    run.choice.require_possible()


def _train_with_verl(
    recipe: Recipe, path: Path, words: list[str], config: Path | None, stage: str, from_path: Path | None, dry_run: bool
) -> None:
    """Write a bundle for verl's RL trainer and start it."""
    from midthought.cluster.verl.bundle import SCRIPT, launch, require_verl, write_bundle

    supplied = import_module(f"{recipe.module}.verl")
    chosen = recipe.begin_with_verl(words, config, from_path)
    if not dry_run:
        require_verl()
    files = write_bundle(supplied.job(chosen, path), chosen.verl, path)
    tell(f"{path}: {len(files)} files. Train with: {path / SCRIPT}")
    if not dry_run:
        raise typer.Exit(launch(path / SCRIPT))


def init(
    path: Annotated[Path, typer.Argument(metavar="[NAME]", help="Folder to write.")] = Path("my-training"),
) -> None:
    """Write a project with a tool, an environment and a reward of your own, which trains on a CPU. Overwrites nothing."""
    texts = {
        template.name.removesuffix(_SUFFIX): template.read_text(encoding="utf-8")
        for template in sorted(files("midthought.cli").joinpath("new_project").iterdir(), key=lambda each: each.name)
        if template.name.endswith(_SUFFIX)
    }
    if path.exists() and not path.is_dir():
        raise OutputPathError(f"{path} is a file; give the name of a new folder")
    if existing := [name for name in texts if (path / name).exists() or (path / name).is_symlink()]:
        raise OutputPathError(
            f"{path} already has {', '.join(existing)}; nothing was written. Give the name of a new folder"
        )
    path.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with (path / name).open("x", encoding="utf-8") as file:
            file.write(text.replace("# NAME\n", f"# {path.resolve().name}\n"))
    tell(f"{path}: {', '.join(texts)}\nTrain with: cd {shlex.quote(str(path))} && python train.py")


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
        for line in follow(run, None if once else 1.0):
            tell(line)
    state = state_of(run)
    tell(f"{run}: {state}")
    if state is RunState.ENDED:
        raise typer.Exit(1)
