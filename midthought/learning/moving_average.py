"""A copy of a policy whose weights follow the policy's as an exponential moving average. Does not depend on a loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FIELD = "average"
"""Field of the state, beside the optimizer's moments of the same parameters."""


class MovingAverage:
    """Updates a frozen copy of a policy: `average ← (1 - rate) average + rate weight`, for the parameters that learn. With a rate
    of 0 it stays as it was.

    The average is kept in float32 if the weights are in half precision, because most steps are too small for it.
    """

    def __init__(self, policy: Any, copied: Any, rate: float) -> None:
        """`copied`: from `model.frozen_copy(policy)`; it is changed in place."""
        self._rate = rate
        self._policy = policy
        self._copied = dict(copied.named_parameters())
        self.restore({})

    @property
    def _learned(self) -> dict[str, Tensor]:
        return {name: each.detach() for name, each in self._policy.named_parameters() if each.requires_grad}

    @torch.no_grad()
    def update(self) -> None:
        """Moves the average to the policy's current weights by `rate`. Call it after all steps on a batch."""
        for name, weight in self._learned.items():
            average = self._averages[name]
            average.lerp_(weight.to(average), self._rate)
            self._copied[name].copy_(average)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the averages as `policy.NAME/average`."""
        return {f"policy.{name}/{FIELD}": average for name, average in self._averages.items()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restores the averages of a state. Averages that it does not have start at the policy's current weights."""
        self._averages: dict[str, Tensor] = {}
        for name, weight in self._learned.items():
            copied = self._copied[name]
            found = state.get(f"policy.{name}/{FIELD}", weight)
            dtype = torch.promote_types(weight.dtype, torch.float32)
            self._averages[name] = found.to(copied.device, dtype, copy=True)
            copied.copy_(found)
