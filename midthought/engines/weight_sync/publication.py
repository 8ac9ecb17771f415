"""A version of the policy's weights for an engine to load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from midthought.engines.weight_sync.shared_tensors import Manifest
from midthought.engines.weight_sync.weight_check import WeightCheck

if TYPE_CHECKING:
    from torch import Tensor

Reads = Literal["folder", "shared memory", "tensors"]
"""How an engine gets a whole model: from files, from `SharedTensors`, or sent tensor by tensor."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Publication:
    """Weights that an engine must load: a whole model from a folder, from shared memory or tensor by tensor, then the adapter.

    Exactly one of `path`, `tensors` and `weights` has the whole model, if one is sent.
    """

    path: Path | None = None
    """Folder of the adapter, or else of a whole model. Servers see it under the same path."""
    tensors: Manifest | None = None
    """A whole model in shared memory; with an adapter, its base model."""
    weights: Callable[[], Iterable[tuple[str, Tensor]]] | None = None
    """Returns a whole model's tensors, on the policy's device, to send them to each server. They are the published ones until the
    policy changes; a server that loads them later fails the check."""
    adapter: str | None = None
    """Name of the adapter in the folder."""
    proof: WeightCheck
    likely_cause: str
    """Likely reason if an engine loads the weights and still computes something else."""
