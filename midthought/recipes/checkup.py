"""`midthought doctor RECIPE`: sets a recipe's run up in a temporary folder, as far as possible, and examines it.

Nothing is trained, downloaded or written into a run folder. What cannot be set up is a finding; checks that need it are skipped.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from midthought.checks.before import Report, Setup, examine, refusal
from midthought.config import RecipeConfig
from midthought.config.references import load
from midthought.errors import MidthoughtError, SettingsError
from midthought.models.pretrained import is_on_this_machine
from midthought.plan.choices import Choice
from midthought.recipes.recipe import Recipe
from midthought.recipes.run import RecipeRun
from midthought.report.console import Console
from midthought.trainer.trainer import Trainer

T = TypeVar("T")
LOCAL_ENGINE = {"backend": "local", "in_process": False, "base_url": []}
"""The checks sample with the local engine, so that no server is started or changed."""


def examine_recipe(
    recipe: Recipe,
    *,
    words: Sequence[str] = (),
    config: Path | None = None,
    from_path: Path | None = None,
    run_path: Path = Path("runs"),
) -> Report:
    """Examines the run that `midthought train RECIPE` with the same arguments would start.

    Raises `SettingsError` for settings that cannot be read, and for a recipe without a `RecipeRun`.
    """
    chosen, begin_with = recipe.begin(run_path, words=words, config=config, from_path=from_path)
    run_class = load(recipe.run_class) if isinstance(recipe.run_class, str) else recipe.run_class
    if not (isinstance(run_class, type) and issubclass(run_class, RecipeRun)):
        raise SettingsError(f"the recipe {recipe.name!r} has no RecipeRun, which the checks need to set a run up")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="midthought-doctor-") as folder:
        run = run_class(chosen, Path(folder) / "run", Console(quiet=True), "all", begin_with)
        run.open()
        report = _examined(run, run_path)
    report.seconds = time.perf_counter() - began
    return report


def _examined(run: RecipeRun, run_path: Path) -> Report:
    """Sets the run up step by step, and examines it. A step that fails hides the checks that need it."""
    report, setup = Report(), Setup(config=run.config, path=run_path)

    def step(name: str, do: Callable[[RecipeRun], T]) -> T | None:
        try:
            done = do(run)
        except MidthoughtError as error:  # the user can correct it
            report.findings.append(refusal(error, name))
            return None
        report.passed.append(name)
        return done

    choice = step("settings", _choose)
    if choice is not None:
        setup = replace(setup, config=choice.config, choice=choice)
    has_data = step("data", _prepare) is not None
    if has_data:
        setup = replace(setup, tasks=run.tasks.parts["train"])
    with ExitStack() as opened:
        if not (has_data and choice is not None and choice.fits and _has_model(run)):
            why = "the model is not loaded, because the run cannot be set up: see the findings"
            setup = replace(setup, why_no_policy=why)
        elif (trainer := step("policy", _trainer)) is None:
            setup = replace(setup, why_no_policy="the model cannot be loaded here: see the finding of policy")
        else:
            own = opened.enter_context(trainer).setup
            why = _why_not_sampled(run)
            setup = replace(own, config=setup.config, choice=choice, path=run_path, why_not_sampled=why)
        found = examine(setup)
    report.findings += found.findings
    report.passed += found.passed
    report.skipped |= found.skipped
    return report


def _choose(run: RecipeRun) -> Choice:
    run.choose(run.beginning)
    return run.choice


def _prepare(run: RecipeRun) -> bool:
    run.prepare()
    run.tasks = run.make_tasks(run.config)
    return True


def _has_model(run: RecipeRun) -> bool:
    return not run.beginning or is_on_this_machine(run.beginning)


def _why_not_sampled(run: RecipeRun) -> str:
    """Why no episodes are sampled: the warm-up of this run, or of any run for a model without training, comes first."""
    if run.from_path is not None or not run.supervised.num_steps:
        return ""
    return "the warm-up comes first; after `train --stage sft`, give its run: --from RUN"


def _trainer(run: RecipeRun) -> Trainer:
    if not _why_not_sampled(run):
        run.build_data()
    policy, tokenizer = run.load(run.beginning)
    if run.supervised.num_steps and run.from_path is None:
        run.demonstrations(run.config).of_step(0)  # raises if the demonstrations cannot be read
    config: RecipeConfig = run.config.merged({"inference": LOCAL_ENGINE, "ray": {"use_ray": False}})
    return run.trainer(config, run.tasks, policy, tokenizer, None)
