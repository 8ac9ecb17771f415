"""A version of the policy's weights for an engine to load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from midthought.engines.weight_sync.shared_tensors import Manifest
from midthought.engines.weight_sync.weight_check import WeightCheck


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Publication:
    """Weights that an engine must load: a whole model from a folder or from shared memory, then the adapter, if there is one."""

    path: Path | None = None
    """Folder of the adapter, or else of a whole model. Servers see it under the same path."""
    tensors: Manifest | None = None
    """A whole model in shared memory; with an adapter, its base model."""
    adapter: str | None = None
    """Name of the adapter in the folder."""
    proof: WeightCheck
    likely_cause: str
    """Likely reason if an engine loads the weights and still computes something else."""
