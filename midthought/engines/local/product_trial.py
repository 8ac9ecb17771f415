"""Measures which kernels compute a product of a decoding pass fastest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from midthought.engines.local.decoder_layer import Layer
from midthought.engines.local.kernel_choice import Way, fastest_right
from midthought.engines.local.layer_products import LayerProducts
from midthought.engines.local.weight_copies import Projection

NUM_HEAD_CALLS = 2
"""The output layer alone is larger than a cache."""


_KINDS = {"gate_up": "gated", "output": "added", "down": "added"}


class ProductTrial:
    """Compares kernels on random inputs and the model's own weights.

    Args:
        norm, head: the last norm, and the output layer.
        num_rows: number of inputs.
    """

    def __init__(self, products: LayerProducts, layers: Sequence[Layer], norm: Any, head: Any, num_rows: int) -> None:
        self._products, self._layers, self._norm, self._head = products, layers, norm, head
        self._num_rows = num_rows

    def fastest(self, kind: str) -> Any:
        """Returns the tiles of the fastest kernel of a product, which is an attribute of `Layer` or `head`; None if separate
        kernels are faster."""
        if kind != "head":
            norms = [layer.input_norm if kind == "queries_keys_values" else layer.mlp_norm for layer in self._layers]
            projections = [getattr(layer, kind) for layer in self._layers]
        elif isinstance(self._head, Projection):
            norms, projections = [self._norm] * NUM_HEAD_CALLS, [self._head] * NUM_HEAD_CALLS
        else:
            return None
        weights = projections[0].weights
        candidates = self._products.candidates(_KINDS.get(kind, "after_norm"), weights, self._num_rows)
        ways = (self._way(kind, tiles, projections, norms) for tiles in (None, *candidates))
        title = f"{kind} of {self._num_rows} rows, {weights[0].shape[1]} inputs"
        return fastest_right(title, next(ways), ways)

    def _way(self, kind: str, tiles: Any, projections: Sequence[Projection], norms: Sequence[Any]) -> Way:
        products, weight = self._products, (projections[0].weights or ())[0]
        inputs, is_added = self._numbers(weight, weight.shape[1]), _KINDS.get(kind) == "added"
        numbers = self._numbers(weight, len(weight)) if is_added else inputs

        def compute(projection: Projection, norm: Any, hidden: Any) -> Sequence[Tensor]:
            if is_added:
                return [products.added(tiles, inputs, hidden, projection, norm).numbers]
            if kind == "gate_up":
                return [products.gated(tiles, hidden, projection, norm)]
            return products.parts(tiles, hidden, projection, norm)

        def first() -> Tensor:
            hidden = products.with_norm(numbers.clone(), norms[0])
            return torch.cat(list(compute(projections[0], norms[0], hidden)), dim=1)

        hidden = products.with_norm(numbers.clone(), norms[0])
        places = zip(projections, norms, strict=True)
        return Way(tiles, first, [partial(compute, *place, hidden) for place in places])

    def _numbers(self, like: Tensor, size: int) -> Tensor:
        """Returns the same random numbers `[n, size]` each time."""
        generator = torch.Generator().manual_seed(size)
        return torch.randn(self._num_rows, size, generator=generator).to(like.device, like.dtype)
