"""The matrix products of a decoding pass: each with its norm, gate or sum by one Triton kernel, or by several kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from midthought.engines.local.gpu_kernels import kernels_of
from midthought.engines.local.weight_copies import Projection


class LayerProducts:
    """Products of hidden numbers (`triton_products.Hidden`). With `tiles`, one kernel computes one; without, separate kernels."""

    def __init__(self, device: torch.device) -> None:
        self._kernels, self._separate = kernels_of(device, "triton_products"), kernels_of(device, "triton_decoder")
        self._workspace = self._kernels.Workspace(device)

    def candidates(self, kind: str, weights: Sequence[Tensor], num_rows: int) -> Sequence[Any]:
        """Tiles that may be fast for these weights `[out, in]` and as many rows. `kind`: `after_norm`, `gated`, `added`."""
        tiles: Sequence[Any] = self._kernels.candidates(kind, num_rows, weights)
        return tiles

    def embedded(self, token_ids: Tensor, table: Tensor, norm: Any) -> Any:
        """Hidden numbers of `[n]` tokens, for a product after that norm."""
        return self._kernels.scaled(table, norm, token_ids)

    def with_norm(self, numbers: Tensor, norm: Any) -> Any:
        """Hidden numbers `[n, C]` for a product after that norm."""
        return self._kernels.scaled(numbers, norm)

    def normed(self, hidden: Any, norm: Any) -> Tensor:
        """The norm of hidden numbers."""
        normed: Tensor = self._separate.normed(norm, hidden.numbers)
        return normed

    def parts(self, tiles: Any, hidden: Any, projection: Projection, norm: Any) -> Sequence[Tensor]:
        """The outputs of each map for the norm of hidden numbers; their rows may be parts of longer rows."""
        if tiles is None:
            return projection.parts(self.normed(hidden, norm))
        weights = projection.weights
        assert weights is not None
        out: Tensor = self._kernels.after_norm(hidden, weights, norm, tiles, self._workspace)
        return [out] if len(weights) == 1 else out.split([len(weight) for weight in weights], dim=1)

    def gated(self, tiles: Any, hidden: Any, projection: Projection, norm: Any) -> Tensor:
        """`silu(gate) · up` of two maps for the norm of hidden numbers."""
        gated: Tensor
        if tiles is None:
            gated = self._separate.gated(*self.parts(None, hidden, projection, norm))
        else:
            weights = projection.weights
            gated = self._kernels.after_norm(hidden, weights, norm, tiles, self._workspace, is_gated=True)
        return gated

    def added(self, tiles: Any, inputs: Tensor, hidden: Any, projection: Projection, next_norm: Any) -> Any:
        """Hidden numbers after the outputs of the only map were added, in place."""
        if tiles is None:
            return self.with_norm(projection.added(inputs, hidden.numbers), next_norm)
        [weight] = projection.weights or ()
        return self._kernels.added(inputs, weight, hidden, next_norm, tiles, self._workspace)
