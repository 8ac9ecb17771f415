"""Supervised steps of a recipe's run, with checkpoints: the warm-up's, or a control arm's."""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass
from typing import Any

from midthought.config import RecipeConfig, SupervisedSection
from midthought.learning.learner import Learner
from midthought.learning.sft import run_sft
from midthought.models.precision import PrecisionChoice
from midthought.recipes.stages import Stages
from midthought.report.console import Console
from midthought.trainer.supervised import Demonstrate, cut_off_note, is_mixed, saving, shown_steps


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
        steps = {"start": start, "num_steps": num_steps}
        if start < num_steps and (note := cut_off_note(demonstrations(start), self.config.inference.max_tokens)):
            self.console.note(f"  {note}")
        log = functools.partial(run.log, log_as)
        save = saving(self.stages.checkpoints(stage), learner, self.tokenizer, stop, lambda: state)
        with shown_steps(title, self.console, stop, log, save, **steps) as on_step:
            run_sft(
                learner,
                demonstrations,
                **steps,
                mixed_precision=is_mixed(self.section, self.config, self.stages.progress.precision),
                on_step=on_step,
                on_precision=self._note_precision,
                deadline=time.monotonic() + max_seconds - run.num_seconds(log_as),
            )

    def _note_precision(self, choice: PrecisionChoice) -> None:
        progress = self.stages.progress
        progress.precision = choice.precision
        if math.isfinite(choice.speedup):
            progress.metrics["warmup.bfloat16_speedup"] = choice.speedup
        progress.save()
        self.console.note(f"  Supervised steps are computed in {choice}")
