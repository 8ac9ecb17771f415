"""Supervised steps with all that surrounds them: progress, metrics, checkpoints, precision, Ctrl-C.

`Trainer.sft` and the recipes' warm-up use it. Does not depend on the source of the demonstrations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from midthought.config import RecipeConfig, SupervisedSection, settled
from midthought.learning.adapters import add_adapters
from midthought.learning.learner import Learner
from midthought.learning.lr_schedule import TrainingSchedule
from midthought.learning.sft import OnStep
from midthought.learning.stopping import StopRequest
from midthought.report.console import Console
from midthought.trainer.checkpoint_manager import CheckpointManager
from midthought.types import Trajectory

Demonstrate = Callable[[int], Sequence[Trajectory]]
"""Maps a step, from 0, to its demonstrations."""
MAX_LONG_SHARE = 0.05
"""A larger share of demonstrations that are longer than an episode is reported."""
SAVE_RATIO = 10
"""Supervised steps are short: they are saved every `SAVE_RATIO * checkpoint.save_interval` steps."""


def supervised_learner(policy: Any, config: RecipeConfig, settings: SupervisedSection, num_steps: int) -> Learner:
    """Creates a learner of demonstrations, whose learning rate falls to 0 at `num_steps`. It has no critic and no reference, and
    adapters if `model.lora_rank` asks for them."""
    model = config.model
    learned = policy
    if model.adapter_rank:
        learned = add_adapters(policy, model.adapter_rank, model.lora_alpha, config.training.seed)
    training = config.training.changed(
        learning_rate=settled(settings.learning_rate),
        warmup_steps=settings.warmup_steps,
        lr_schedule="linear",
    )
    return Learner(learned, None, None, training.freeze(), TrainingSchedule(total_steps=num_steps))


@contextmanager
def shown_steps(
    title: str,
    console: Console,
    stop: StopRequest,
    log: Callable[[int, Mapping[str, float]], None],
    save: Callable[[int], None],
    *,
    start: int,
    num_steps: int,
) -> Iterator[OnStep]:
    """Shows a stage with steps `start` to `num_steps` on the console. Yields the function that `run_sft` calls after each step.

    It passes the number of steps taken and their metrics to `log`, and the number to `save`, for example `saving(…)`. Ctrl-C
    takes effect between two steps.
    """
    with console.stage(title, total=num_steps, unit="steps") as bar:
        bar.start_at(start)

        def after_step(step: int, metrics: Mapping[str, float]) -> None:
            log(step, metrics)
            bar.advance(1, loss=metrics["loss"])
            save(step)
            stop.check()

        yield after_step


def saving(
    checkpoints: CheckpointManager,
    learner: Learner,
    tokenizer: Any,
    stop: StopRequest,
    state: Callable[[], Mapping[str, Any]],
) -> Callable[[int], None]:
    """Returns a function of the step that saves a checkpoint if it is due, or if a stop was requested."""

    def save(step: int) -> None:
        if checkpoints.is_due(step, SAVE_RATIO) or stop.requested:
            checkpoints.save(learner, tokenizer, step, state())

    return save


def cut_off_note(demonstrations: Sequence[Trajectory], max_tokens: int) -> str:
    """Returns a warning if many demonstrations are longer than an episode may be (`inference.max_tokens`); else an empty text."""
    lengths = [each.num_response for each in demonstrations]
    num_long = sum(length > max_tokens for length in lengths)
    if not num_long or num_long < MAX_LONG_SHARE * len(lengths):
        return ""
    return (
        f"{num_long} of {len(lengths)} demonstrations are longer than an episode may be (inference.max_tokens={max_tokens}): "
        f"episodes like these end without an answer; set inference.max_tokens={64 * math.ceil(max(lengths) / 64)}"
    )


def is_mixed(settings: SupervisedSection, config: RecipeConfig, chosen: str | None) -> bool | None:
    """Returns whether supervised steps run under bfloat16 autocast; None: the first step measures it.

    `chosen`: the precision that an interrupted run measured to be faster. Repeatable runs depend on no measurement.
    """
    if settings.mixed_precision is None and config.inference.deterministic:
        return False
    return chosen == "bfloat16" if settings.mixed_precision is None and chosen else settings.mixed_precision
