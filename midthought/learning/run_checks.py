"""Checks that stop a run which does not learn. They read an iteration's logged metrics and its episodes' errors.

Does not depend on a particular task, engine or learner; the training loops call them.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from midthought.config import TrainingConfig, settled
from midthought.errors import EngineError, SettingsError, TrainingStoppedError
from midthought.types import StopReason, Trajectory

_log = logging.getLogger(__name__)

MAX_FAILED_ITERS = 3
"""Iterations in a row whose episodes all fail. The run stops after them, or after one if no episode had a reward before."""
MAX_LEARNING_RATE = 1.0
"""A step of AdamW changes a weight by about the learning rate, whatever its gradient is."""
MAX_SKIPPED_STEPS = 5
"""Supervised steps in a row without a finite gradient."""
MAX_DIVERGED_STEPS = 10
"""Supervised steps in a row whose loss is far above the loss of the first step."""

_CAUSES = (
    "Likely causes, the most frequent first: (1) the engine computes in another precision or with another runner than the "
    "learner (model.dtype, inference.backend); (2) a server returns log-probabilities of another distribution than the one "
    "it samples from (vLLM: --logprobs-mode processed_logprobs); (3) the engine does not apply the adapters "
    "(model.lora_rank); (4) the engine did not load the last update's weights (inference.sync_tolerance is too large); "
    "(5) the model's forward pass is random, or depends on what else is in the batch"
)
_NOTHING_WRITTEN = (
    "Nothing was written; earlier checkpoints are untouched. Lower the learning rate and resume from the last one"
)
_TOO_LARGE = "Lower training.learning_rate or training.max_grad_norm, and resume from the last checkpoint"


def check_training(training: TrainingConfig) -> None:
    """Raises `SettingsError` if a learning rate is too large to learn anything."""
    for name in ("learning_rate", "critic_learning_rate"):
        if (rate := settled(getattr(training, name), 0.0)) > MAX_LEARNING_RATE:
            raise SettingsError(
                f"training.{name}={rate:g}: a step of AdamW changes every weight by about this much, so nothing can be "
                f"learned; set at most {MAX_LEARNING_RATE:g} (usual: 1e-6 to 1e-4, LoRA and small models up to 3e-3)"
            )


class RunChecks:
    """The checks of one run of reinforcement learning. All of them raise `TrainingStoppedError`.

    `before_update` compares sampled with recomputed log-probabilities. `after_iteration` stops the run if all episodes
    failed; if no gradient was finite; if the first `training.no_signal_iters` iterations had nothing to learn from; or if
    all rewards of that many iterations in a row are equal and lower than before.
    """

    def __init__(self, training: TrainingConfig, history: Iterable[Mapping[str, Any]] = ()) -> None:
        """`history`: metrics of the iterations that a resumed run has already done."""
        self._training = training
        self._has_warned = False
        self._num_iters = 0
        self._num_signal = 0
        """Iterations that had something to learn from."""
        self._num_failed = 0
        """Iterations in a row, up to now, whose episodes all failed."""
        self._best = -math.inf
        """Largest mean reward of an iteration."""
        self._constant = math.nan
        """Reward of all episodes since `_num_constant` iterations."""
        self._num_constant = 0
        for metrics in history:
            self._count({name: math.nan if value is None else value for name, value in metrics.items()})

    def before_update(self, metrics: Mapping[str, float]) -> None:
        """Compares `logprob_difference_mean` with both limits of the settings."""
        mean = metrics["logprob_difference_mean"]
        if not mean > self._training.logprob_difference_warn:  # NaN: no token of the current policy
            return
        found = (
            f"sampled and recomputed log-probabilities differ by {mean:.3g} nats on average "
            f"(at most {metrics['logprob_difference_max']:.3g}), over the tokens of the current policy"
        )
        stop = self._training.logprob_difference_stop
        if stop is not None and mean > stop:
            raise TrainingStoppedError(
                f"{found}; training.logprob_difference_stop is {stop:g}. No step was taken from them. {_CAUSES}. "
                "training.logprob_difference_stop=null disables this check"
            )
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s; training.logprob_difference_warn is %g. %s. Further iterations: logprob_difference_mean in the metrics",
                found,
                self._training.logprob_difference_warn,
                _CAUSES,
            )

    def after_iteration(self, metrics: Mapping[str, float], trajectories: Sequence[Trajectory]) -> None:
        """Stops a run that cannot learn. Call it after the metrics are logged, before anything is saved."""
        had_rewards = self._best > -math.inf
        self._count(metrics)
        if self._num_failed:
            self._check_failed(trajectories, had_rewards)
        if 0 < metrics.get("num_optimizer_steps", 0) <= metrics["num_skipped_steps"]:
            raise TrainingStoppedError(
                f"no gradient of iteration {self._num_iters} was finite: loss {metrics.get('loss', math.nan):g}, "
                f"gradient norm {metrics.get('grad_norm', math.nan):g}. No step was taken. Likely causes: weights that are "
                f"too large or not finite, or rewards of this size (mean {metrics['reward/mean']:g}). {_TOO_LARGE}, or scale the "
                "reward"
            )
        num_iters = self._training.no_signal_iters
        if num_iters is None:
            return
        if not self._num_signal and self._num_iters >= num_iters and not self._num_failed:
            raise TrainingStoppedError(f"{self._no_signal()}. training.no_signal_iters=null disables this check")
        if self._num_constant >= num_iters and self._has_collapsed():
            raise TrainingStoppedError(f"{self._collapsed()}. training.no_signal_iters=null disables this check")

    def after_run(self) -> None:
        """Warns of problems that would have stopped a longer run."""
        if self._num_iters and not self._num_signal:
            _log.warning("%s", self._no_signal())
        elif self._num_constant >= MAX_FAILED_ITERS and self._has_collapsed():
            _log.warning("%s", self._collapsed())

    def _count(self, metrics: Mapping[str, float]) -> None:
        self._num_iters += 1
        mean, std = metrics["reward/mean"], metrics["reward/std"]
        self._num_failed = self._num_failed + 1 if metrics["episode/failed"] == 1 else 0
        if std <= 1e-9 * max(1.0, abs(mean)) and not self._training.teacher:  # a teacher's signal is in every token
            is_same = math.isclose(mean, self._constant, rel_tol=1e-9, abs_tol=1e-12)
            self._num_constant = self._num_constant + 1 if is_same else 1
            self._constant = mean
        else:
            self._num_constant = 0
        is_constant = self._num_constant > 1 or self._num_constant == self._num_iters
        if (
            metrics.keys() & {"reward/turns", "reward/per_call"} and self._training.gamma < 1
        ):  # the time of a reward also matters
            is_constant = False
        has_gradient = metrics.get("grad_norm") != 0
        self._num_signal += bool(metrics["batch/num_episodes"]) and has_gradient and not is_constant
        self._best = max(self._best, -math.inf if math.isnan(mean) else mean)

    def _has_collapsed(self) -> bool:
        """Whether equal rewards are a change: at least half of the earlier iterations had something to learn from, and one
        of them had a higher mean. (Rare rewards in small batches are often all equal by chance.)"""
        num_before = self._num_iters - self._num_constant
        is_lower = self._constant < self._best and not math.isclose(self._constant, self._best)
        return is_lower and 2 * self._num_signal >= num_before

    def _check_failed(self, trajectories: Sequence[Trajectory], had_rewards: bool) -> None:
        errors = Counter(t.error for t in trajectories if t.stop_reason is StopReason.FAILED)
        error = errors.most_common(1)[0][0] if errors else None
        is_engine = str(error).startswith(EngineError.__name__)
        if had_rewards and not is_engine and self._num_failed < MAX_FAILED_ITERS:
            return
        remedy = (
            "See that the engine works (servers: inference.base_url; inference.server_wait_seconds says how long they are "
            "waited for), and resume"
            if is_engine
            else "See that the environment and the reward function work on a single episode: trainer.rollout() runs "
            "episodes without learning"
        )
        raise TrainingStoppedError(
            f"all {len(trajectories)} episodes of iteration {self._num_iters} failed, so there is nothing to learn from. The "
            f"most frequent error: {error}. {remedy}"
        )

    def _collapsed(self) -> str:
        return (
            f"all episodes of the last {self._num_constant} iterations have the same reward, {self._constant:g}; the best "
            f"iteration had {self._best:g} on average: the policy has collapsed. {_TOO_LARGE} or from the best one"
        )

    def _no_signal(self) -> str:
        rewards = (
            f"all rewards were {self._constant:g}"
            if self._num_constant == self._num_iters
            else "all rewards were equal"
        )
        where = "" if self._num_constant == self._num_iters else " within every group"
        return (
            f"none of the {self._num_iters} iterations so far had anything to learn from: {rewards}{where} (mean reward of the "
            f"best iteration: {self._best:g}). Give tasks of another difficulty, a longer warm-up (the policy never gets a "
            "better reward by chance), a reward that tells episodes apart, more episodes per group (training.group_size), or "
            "a temperature above 0 (inference.temperature)"
        )


class SupervisedChecks:
    """The checks of supervised steps. Raises `TrainingStoppedError`."""

    def __init__(self) -> None:
        self._num_skipped = self._num_diverged = 0
        self._first_loss: float | None = None

    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Stops after `MAX_SKIPPED_STEPS` steps in a row without a finite gradient, or `MAX_DIVERGED_STEPS` in a row whose loss
        is more than 1 nat above twice the loss of the first step."""
        self._num_skipped = self._num_skipped + 1 if metrics["num_skipped_steps"] else 0
        if self._num_skipped >= MAX_SKIPPED_STEPS:
            raise TrainingStoppedError(
                f"the gradients of {self._num_skipped} supervised steps in a row, up to step {step}, were not finite: loss "
                f"{metrics['loss']:g}, gradient norm {metrics['grad_norm']:g}. The weights are too large or not finite. Lower "
                "the learning rate of the supervised steps"
            )
        if self._first_loss is None:
            self._first_loss = metrics["loss"]
        self._num_diverged = self._num_diverged + 1 if metrics["loss"] > 2 * self._first_loss + 1 else 0
        if self._num_diverged >= MAX_DIVERGED_STEPS:
            raise TrainingStoppedError(
                f"the loss of supervised steps diverges: {metrics['loss']:.3g} nats per token in step {step}, "
                f"{self._first_loss:.3g} in the first one. Lower the learning rate of the supervised steps"
            )


def require_finite(model: Any, what: str, remedy: str = _NOTHING_WRITTEN) -> None:
    """Raises `TrainingStoppedError` if a weight of a module is NaN or infinite. `what` names the module."""
    parameters = {name: value.detach() for name, value in model.named_parameters() if value.is_floating_point()}
    flags = {name: torch.isfinite(value).all() for name, value in parameters.items()}
    wrong = [name for name, flag in flags.items() if not flag]
    if wrong:
        count = int((~torch.isfinite(parameters[wrong[0]])).sum())
        raise TrainingStoppedError(
            f"{what}: {len(wrong)} of {len(flags)} tensors hold values that are not finite, first {wrong[0]!r} ({count} of "
            f"{parameters[wrong[0]].numel()} values). {remedy}"
        )
