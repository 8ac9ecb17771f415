"""`midthought doctor RECIPE`: sets a recipe's run up in a temporary folder, as far as possible, and examines it.

Nothing is trained, downloaded or written into a run folder. The first thing that cannot be set up is a finding; checks that need
it are skipped.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from midthought.checks.examination import Report, Setup, examine, refusal
from midthought.config import RecipeConfig
from midthought.errors import MidthoughtError
from midthought.models.pretrained import is_on_this_machine
from midthought.recipes.recipe import Recipe
from midthought.recipes.run import RecipeRun
from midthought.report.console import Console

STEPS = ("settings", "data", "policy")
"""What is set up, in this order."""
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

    Raises `SettingsError` for settings that cannot be read.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="midthought-doctor-") as folder, ExitStack() as opened:
        given: dict[str, Any] = {"words": words, "config": config, "from_path": from_path}
        run: RecipeRun = recipe.make_run(Path(folder) / "run", Console(quiet=True), **given)
        run.open()
        why = "the model is not loaded, because the run cannot be set up: see the findings"
        setup, report = Setup(config=run.config, path=run_path, why_no_policy=why), Report()
        try:
            run.choose(run.beginning)
            setup = replace(setup, config=run.config, choice=run.choice)
            report.passed.append(STEPS[0])
            run.prepare()
            run.tasks = run.make_tasks(run.config)
            setup = replace(setup, all_tasks=run.tasks.parts["train"])
            report.passed.append(STEPS[1])
            if run.choice.fits and (not run.beginning or is_on_this_machine(run.beginning)):
                setup = replace(_with_policy(run, opened), config=run.config, choice=run.choice, path=run_path)
                report.passed.append(STEPS[2])
        except MidthoughtError as error:  # the user can correct it
            report.findings.append(refusal(error, STEPS[len(report.passed)]))
        found = examine(setup)
    found.findings[:0], found.passed[:0] = report.findings, report.passed
    found.seconds = time.perf_counter() - began
    return found


def _with_policy(run: RecipeRun, opened: ExitStack) -> Setup:
    """Loads the policy. Without training, it is sampled only if no warm-up comes before."""
    is_untaught = run.from_path is None and run.supervised.num_steps > 0
    if not is_untaught:
        run.build_data()
    policy, tokenizer = run.load(run.beginning)
    if is_untaught:
        run.demonstrations(run.config).of_step(0)  # raises if the demonstrations cannot be read
    config: RecipeConfig = run.config.merged({"inference": LOCAL_ENGINE, "ray": {"use_ray": False}})
    setup = opened.enter_context(run.trainer(config, run.tasks, policy, tokenizer, None)).setup
    why = "the warm-up comes first; after `train --stage sft`, give its run: --from RUN" if is_untaught else ""
    return replace(setup, why_not_sampled=why)
