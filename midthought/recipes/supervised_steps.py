"""Supervised steps of a recipe's run, with checkpoints: the warm-up's, or a control arm's."""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass
from typing import Any

from midthought.config import RecipeConfig, SupervisedSection
from midthought.learning.learner import Learner
from midthought.models.precision import PrecisionChoice
from midthought.recipes.stages import Stages
from midthought.report.console import Console
from midthought.trainer.sft import Demonstrate, take_steps


@dataclass
class SupervisedSteps:
    """Takes supervised steps with the settings of the warm-up (`section`)."""

    stages: Stages
    config: RecipeConfig
    section: SupervisedSection
    console: Console
    tokenizer: Any

    def take(
        self,
        learner: Learner,
        demonstrations: Demonstrate,
        num_steps: int,
        *,
        title: str,
        stage: str,
        log_as: str,
        max_seconds: float = math.inf,
    ) -> None:
        """Takes the steps of `stage` that are left, `num_steps` in all, for at most `max_seconds`. `title` is its name on the
        console, `log_as` in the metrics."""
        run, stop = self.stages.run, self.stages.stop
        start, state = self.stages.restore(learner, stage, self.tokenizer), {"stage": stage}
        checkpoints = self.stages.checkpoints(stage)
        take_steps(
            learner,
            demonstrations,
            self.section,
            self.config,
            start=start,
            num_steps=num_steps,
            title=title,
            console=self.console,
            stop=stop,
            log=functools.partial(run.log, log_as),
            save=lambda step: checkpoints.save(learner, self.tokenizer, step, state),
            checkpoints=checkpoints,
            precision=self.stages.progress.precision,
            on_precision=self._note_precision,
            deadline=time.monotonic() + max_seconds - run.num_seconds(log_as),
        )

    def _note_precision(self, choice: PrecisionChoice) -> None:
        progress = self.stages.progress
        progress.precision = choice.precision
        if math.isfinite(choice.speedup):
            progress.metrics["warmup.bfloat16_speedup"] = choice.speedup
        progress.save()
