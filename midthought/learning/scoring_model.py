"""Models that only score: a frozen one, such as the reference, on its device, and a moving average of the policy's weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

FIELD = "average"
"""Field of the state, beside the optimizer's moments of the same parameters."""


class ScoringModel:
    """A model that computes log-probabilities and does not learn. With `offload` it is in CPU memory except while it scores."""

    def __init__(self, model: Any, policy: Any, *, offload: bool = False) -> None:
        """`model` is the policy itself if it is scored without its adapters."""
        self._model = model.eval()
        self._is_policy = model is policy
        self._is_offloaded = offload and not self._is_policy
        if self._is_offloaded:
            model.to("cpu")

    @contextmanager
    def on(self, device: torch.device) -> Iterator[Any]:
        """Yields the model on a device. A policy that is its own reference runs without adapters."""
        if self._is_offloaded:
            self._model.to(device)
        try:
            with self._model.disable_adapter() if self._is_policy else nullcontext():
                yield self._model
        finally:
            if self._is_offloaded:
                self._model.to("cpu")


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
