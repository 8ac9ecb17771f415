"""Checks of supervised steps and weights. What the trainer checks during a run: `midthought.checks`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from midthought.errors import TrainingStoppedError

MAX_SKIPPED_STEPS = 5
"""Supervised steps in a row without a finite gradient."""
MAX_DIVERGED_STEPS = 10
"""Supervised steps in a row whose loss is far above the loss of the first step."""

_NOTHING_WRITTEN = (
    "Nothing was written; earlier checkpoints are untouched. Lower the learning rate and resume from the last one"
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
