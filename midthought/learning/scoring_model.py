"""Models that only score, such as the reference, on their device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch


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
