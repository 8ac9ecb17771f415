"""Supervised steps on demonstrations: `Trainer.sft`. Does not depend on their source."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from midthought.config import RecipeConfig, SupervisedSection, settled
from midthought.errors import SettingsError, TrainingStoppedError
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.model import add_adapters, has_adapters
from midthought.learning.optimizer import TrainingSchedule
from midthought.models.memory import max_positions
from midthought.models.peft_folders import merge
from midthought.models.pretrained import require_finite, save_model
from midthought.plan.choices import ADAPTER_RATES, supervised_rate
from midthought.rollout.selection import TaskStream
from midthought.trainer.checkpoint import SFT
from midthought.trainer.demonstrations import DemonstrationReader, ShuffledDemonstrations, StepDemonstrations
from midthought.trainer.initial_policy import TrainedPolicy, generation_values
from midthought.trainer.run import Run
from midthought.types import Trajectory

_log = logging.getLogger(__name__)

STAGE = "sft"
SMALL_MODEL_RATE = 3e-3
"""Learning rate of a small model with random weights, as in the recipes' preset `tiny`."""
MAX_LONG_SHARE = 0.05
"""A larger share of demonstrations that are longer than an episode is reported."""
SAVE_RATIO = 10
"""Supervised steps are short: they are saved every `SAVE_RATIO * checkpoint.save_interval` steps."""
MAX_SKIPPED_STEPS = 5
"""Supervised steps in a row without a finite gradient."""
MAX_DIVERGED_STEPS = 10
"""Supervised steps in a row whose loss is far above the first one."""


def _warn_if_cut_off(demonstrations: Sequence[Trajectory], max_tokens: int) -> None:
    """Warns if many demonstrations are longer than an episode may be (`inference.max_tokens`)."""
    lengths = [each.num_response for each in demonstrations]
    num_long = sum(length > max_tokens for length in lengths)
    if num_long and num_long >= MAX_LONG_SHARE * len(lengths):
        _log.warning(
            f"{num_long} of {len(lengths)} demonstrations are longer than an episode may be (inference.max_tokens={max_tokens}): "
            f"episodes like these end without an answer; set inference.max_tokens={64 * math.ceil(max(lengths) / 64)}"
        )


def supervised_settings(
    config: RecipeConfig, policy: Any, values: Mapping[str, Any], *, is_created: bool
) -> SupervisedSection:
    """Returns the settings with these values. The default learning rate depends on what learns: adapters, all weights (by
    their number), or a small model that was created with random weights. Raises `SettingsError` for an unknown name or a wrong
    value."""
    section = SupervisedSection(**{"learning_rate": "auto", **values})
    num_parameters = sum(weights.numel() for weights in policy.parameters())
    given = ADAPTER_RATES[1] if config.model.adapter_rank else supervised_rate(num_parameters)
    return section.changed(learning_rate=settled(section.learning_rate, SMALL_MODEL_RATE if is_created else given))


def read_demonstrations(
    given: Any, policy: TrainedPolicy, stream: TaskStream, batch_tokens: int, seed: int
) -> StepDemonstrations:
    """Returns the demonstrations of each step. `given`: as in `Trainer.sft`; a function is called with the tasks of `stream`.
    Raises SettingsError without demonstrations and for a policy with adapters of its own, DataError for unreadable ones."""
    if has_adapters(policy.model):
        raise SettingsError(
            "sft() of a model with adapters of its own: merge them (merge_and_unload() of a PEFT model) and set lora_rank, or "
            "train the adapters on the demonstrations before"
        )
    if given is None:
        raise SettingsError("sft() has no demonstrations: give sft(demonstrations) or Trainer(demonstrations=…)")
    if isinstance(given, StepDemonstrations):
        return given
    longest = max_positions(policy.model.config) or sys.maxsize
    read = DemonstrationReader(policy.prompts, policy.renderer, longest).read(given, stream)
    return ShuffledDemonstrations(read, batch_tokens, f"sft-{seed}")


def train_supervised(
    policy: TrainedPolicy,
    config: RecipeConfig,
    run: Run,
    settings: SupervisedSection,
    demonstrations: StepDemonstrations,
    max_seconds: float | None,
) -> None:
    """Trains the policy in place, without critic and reference; adapters (`model.lora_rank`) are merged into its weights. The
    learning rate falls to 0 at `num_steps`. Ctrl-C takes effect between two steps. `Run.sft_rows` gets the metrics."""
    model, tokenizer, rank = policy.model, policy.tokenizer, config.model.adapter_rank
    learned = add_adapters(model, rank, config.model.lora_alpha, config.training.seed) if rank else model
    training = config.frozen().training.changed(
        learning_rate=settings.learning_rate, warmup_steps=settings.warmup_steps, lr_schedule="linear"
    )
    learner = Learner(learned, None, None, training.freeze(), TrainingSchedule(total_steps=settings.num_steps))
    try:
        start = _restored(run, learner, tokenizer, settings)
        if start < settings.num_steps:
            _warn_if_cut_off(demonstrations.of_step(start), config.inference.max_tokens)
        spent = math.fsum(row.get("time/seconds", 0.0) for row in run.sft_rows)

        def after_step(step: int, metrics: Mapping[str, float]) -> None:
            run.sft_rows.append({"step": step, **metrics})
            run.log(STAGE, step, metrics)
            bar.advance(1, loss=metrics["loss"])
            if run.sft_checkpoints.is_due(step, SAVE_RATIO, is_needed=stop.requested):
                run.sft_checkpoints.save(learner, tokenizer, step, {"settings": settings.model_dump()})
            stop.check()

        title = "Supervised steps (SFT)"
        with run.stop as stop, run.console.stage(title, total=settings.num_steps, unit="steps") as bar:
            bar.start_at(start)
            run_sft(
                learner,
                demonstrations.of_step,
                start=start,
                num_steps=settings.num_steps,
                mixed_precision=False if config.inference.deterministic else None,
                on_step=after_step,
                deadline=None if max_seconds is None else time.monotonic() + max_seconds - spent,
            )
    finally:
        if has_adapters(learned):
            merge(learned)
    require_finite(model, "the model after the supervised steps")
    if run.folder is not None:
        path = run.folder.path / SFT
        save_model(model, tokenizer, path, in_run=True, generation=generation_values(policy.renderer))
        run.folder.expect_folder(SFT)
        run.progress.finish(SFT)
        model.name_or_path = str(path)  # the base model that new adapters name
    run.has_sft, run.newest_sft = True, None


def _restored(run: Run, learner: Learner, tokenizer: Any, settings: SupervisedSection) -> int:
    """Continues an interrupted stage. Returns the number of steps that are done."""
    run.sft_rows = []
    if run.newest_sft is None:
        return 0
    state = run.sft_checkpoints.restore(learner, tokenizer, run.newest_sft, "settings")
    before = state["settings"]
    for name, value in settings.model_dump().items():
        if value != before.get(name) and not run.allows_changes:
            raise SettingsError(
                f"sft({name}={value!r}): the run was interrupted in supervised steps with {name}={before.get(name)!r}; "
                "give the same value, or another run_path"
            )
    run.sft_rows = run.logged_sft_rows()
    return int(state["step"])


# -- the steps --------------------------------------------------------------------------------------------------------


class SupervisedChecks:
    """The checks of supervised steps. Raises `TrainingStoppedError`."""

    def __init__(self) -> None:
        self._num_skipped = self._num_diverged = 0
        self._first_loss = math.nan

    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Stops after `MAX_SKIPPED_STEPS` steps in a row without a finite gradient, or `MAX_DIVERGED_STEPS` in a row whose loss
        is more than 1 nat above twice the first finite loss."""
        self._num_skipped = self._num_skipped + 1 if metrics["num_skipped_steps"] else 0
        if self._num_skipped >= MAX_SKIPPED_STEPS:
            raise TrainingStoppedError(
                f"the gradients of {self._num_skipped} supervised steps in a row, up to step {step}, were not finite: loss "
                f"{metrics['loss']:g}, gradient norm {metrics['grad_norm']:g}. The weights are too large or not finite. Lower "
                "the learning rate of the supervised steps"
            )
        if not math.isfinite(self._first_loss):
            self._first_loss = metrics["loss"]
        self._num_diverged = self._num_diverged + 1 if metrics["loss"] > 2 * self._first_loss + 1 else 0
        if self._num_diverged >= MAX_DIVERGED_STEPS:
            raise TrainingStoppedError(
                f"the loss of supervised steps diverges: {metrics['loss']:.3g} nats per token in step {step}, "
                f"{self._first_loss:.3g} in the first one with a finite loss. Lower the learning rate of the supervised steps"
            )


def run_sft(
    learner: Learner,
    demonstrate: Callable[[int], Sequence[Trajectory]],
    *,
    start: int,
    num_steps: int,
    mixed_precision: bool | None,
    on_step: Callable[[int, Mapping[str, float]], None],
    deadline: float | None = None,
) -> None:
    """Takes optimizer steps `start` to `num_steps`, each on `demonstrate(step)`; `on_step(steps taken, metrics)` after each.

    With `mixed_precision` the forward and backward passes run under bfloat16 autocast; weights stay as they are. None: for
    float32 weights on a GPU. `deadline` (of `time.monotonic`) ends it earlier. Raises `TrainingStoppedError` if
    `SupervisedChecks` stops the run.
    """
    checks = SupervisedChecks()
    if mixed_precision is None:
        weight = next(learner.policy.parameters())
        mixed_precision = weight.device.type == "cuda" and weight.dtype == torch.float32
    for step in range(start, num_steps):
        if deadline is not None and time.monotonic() >= deadline:
            return
        began = time.perf_counter()
        batch = TokenBatch.from_trajectories(demonstrate(step), demonstrations=True)
        with torch.autocast(learner.device.type, dtype=torch.bfloat16, enabled=mixed_precision):
            metrics = learner.sft_step(batch)
        seconds = time.perf_counter() - began
        checks.after_step(step + 1, metrics)
        on_step(step + 1, {**metrics, "time/seconds": seconds, "time/tokens_per_second": batch.num_tokens / seconds})
