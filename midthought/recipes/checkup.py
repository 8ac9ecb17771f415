"""`midthought doctor RECIPE`: sets a recipe's run up in a temporary folder, as far as possible, and examines it.

Nothing is trained, downloaded or written into a run folder. What cannot be set up is a finding; checks that need it are skipped.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from midthought.checks.before import Report, Setup, examine, refusal
from midthought.config import RecipeConfig
from midthought.config.references import load
from midthought.errors import MidthoughtError, SettingsError
from midthought.models.pretrained import is_on_this_machine, placed
from midthought.plan.choices import Choice, choose_and_plan
from midthought.plan.hardware import find_hardware, require_device
from midthought.recipes.progress import RunProgress
from midthought.recipes.recipe import Recipe, is_given
from midthought.recipes.run import RecipeRun
from midthought.report.console import Console
from midthought.report.run_folder import RunFolder
from midthought.tokenization import Renderer

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
        report = _Examination(run, run_path).report()
    report.seconds = time.perf_counter() - began
    return report


class _Examination:
    """Sets a run up step by step. The first step that fails hides those that need it."""

    def __init__(self, run: RecipeRun, run_path: Path) -> None:
        self._run, self._run_path = run, run_path
        self._report = Report()
        self._setup = Setup(config=run.config, path=run_path)

    def report(self) -> Report:
        """Returns the findings of setting the run up, then the findings of the checks."""
        choice = self._step("settings", self._choose)
        if choice is not None:
            self._setup = dataclasses.replace(self._setup, config=choice.config, choice=choice)
        is_possible = choice is not None and choice.fits and self._has_model
        has_data = self._step("data", self._prepare) is not None
        if has_data:
            tasks = self._run.tasks.parts["train"]
            self._setup = dataclasses.replace(self._setup, tasks=tasks)
        if not (is_possible and has_data):
            why = "the model is not loaded, because the run cannot be set up: see the findings"
            return self._examined(dataclasses.replace(self._setup, why_no_policy=why))
        trainer = self._step("policy", self._trainer)
        if trainer is None:
            why = "the model cannot be loaded here: see the finding of policy"
            return self._examined(dataclasses.replace(self._setup, why_no_policy=why))
        with trainer:
            own = trainer.setup
            self._setup = dataclasses.replace(own, config=self._setup.config, choice=choice, path=self._run_path)
            why = self._why_not_sampled
            return self._examined(dataclasses.replace(self._setup, why_not_sampled=why))

    def _examined(self, setup: Setup) -> Report:
        found = examine(setup)
        self._report.findings += found.findings
        self._report.passed += found.passed
        self._report.skipped |= found.skipped
        return self._report

    def _step(self, name: str, do: Callable[[], T]) -> T | None:
        """Returns what `do` returns; None, and a finding, if it raises an error that the user can correct."""
        try:
            done = do()
        except MidthoughtError as error:
            self._report.findings.append(refusal(error, name))
            return None
        self._report.passed.append(name)
        return done

    def _choose(self) -> Choice:
        run = self._run
        given = is_given(run.config, run.from_path)
        if given:
            require_device(run._device)
        choice = choose_and_plan(run.config, find_hardware(run._device), source=run._beginning, is_given=given)
        run.config = choice.config
        return choice

    def _prepare(self) -> bool:
        run = self._run
        run.folder = RunFolder(run.path)
        run.progress = RunProgress(run.folder)
        run._prepare()
        run.tasks = run._make_tasks(run.config)
        return True

    @property
    def _has_model(self) -> bool:
        source = self._run._beginning
        return not source or is_on_this_machine(source)

    @property
    def _why_not_sampled(self) -> str:
        """Why no episodes are sampled: the warm-up of this run, or of any run for a model without training, comes first."""
        run = self._run
        if run.from_path is not None or not run._supervised.num_steps:
            return ""
        return "the warm-up comes first; after `train --stage sft`, give its run: --from RUN"

    def _trainer(self) -> Any:
        run = self._run
        source = run._beginning
        if not self._why_not_sampled:
            run._build_data()
        policy, tokenizer = run._loaded_from(source) if source else run._make_policy()
        run.policy = placed(policy, run._device)
        run.tasks.open(Renderer(tokenizer, run.config.model.template_arguments))
        if run._supervised.num_steps and run.from_path is None:
            run._demonstrations(run.config)(0)  # raises if the demonstrations cannot be read
        config: RecipeConfig = run.config.merged({"inference": LOCAL_ENGINE, "ray": {"use_ray": False}})
        return run._trainer(config, run.tasks, None, resume=False)
