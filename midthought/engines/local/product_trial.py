"""Measures which kernels compute the products and the attention of a decoding pass fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from midthought.engines.local import kernel_choice
from midthought.engines.local.decoder_layer import Layer
from midthought.engines.local.gpu_kernels import kernels_of
from midthought.engines.local.layer_products import LayerProducts
from midthought.engines.local.weight_copies import Projection

_KINDS = {"queries_keys_values": "after_norm", "output": "added", "gate_up": "gated", "down": "added"}
"""Of the products of `Layer`."""
HEAD = "head"
NUM_KEYS = 128
NUM_CACHES = 6
"""So many layers' keys and values are more than a cache holds."""


class ProductTrial:
    """Compares kernels on random inputs and the model's own weights. The products of all layers are measured together: a kernel
    begins while the one ahead of it still computes, so the time of one depends on its neighbors.

    Args:
        norm, head: the last norm, and the output layer.
        num_rows: number of inputs.
    """

    def __init__(self, products: LayerProducts, layers: Sequence[Layer], norm: Any, head: Any, num_rows: int) -> None:
        self._products, self._layers, self._norm, self._head = products, layers, norm, head
        self._num_rows = num_rows

    def fastest(self) -> dict[str, Any]:
        """Returns the tiles of each product, an attribute of `Layer` or `head`; None for separate kernels."""
        layer = self._layers[0]
        ways = {kind: self._right(kind, getattr(layer, kind), layer.mlp_norm) for kind in _KINDS}
        plan = kernel_choice.fastest(ways, self._seconds)
        if not isinstance(self._head, Projection):
            return plan | {HEAD: None}
        ways = {HEAD: self._right(HEAD, self._head, self._norm)}
        return plan | kernel_choice.fastest(ways, self._seconds_of_head)

    def _right(self, kind: str, projection: Projection, norm: Any) -> list[Any]:
        weights, operation = projection.weights or (), _KINDS.get(kind, "after_norm")
        inputs = self._numbers(weights[0], weights[0].shape[1])
        numbers = self._numbers(weights[0], len(weights[0])) if operation == "added" else inputs

        def compute(tiles: Any) -> Tensor:
            hidden = self._products.with_norm(numbers.clone(), norm)
            if operation == "added":
                after: Tensor = self._products.added(tiles, inputs, hidden, projection, norm).numbers
                return after
            if operation == "gated":
                return self._products.gated(tiles, hidden, projection, norm)
            return torch.cat(list(self._products.parts(tiles, hidden, projection, norm)), dim=1)

        candidates = self._products.candidates(operation, weights, self._num_rows)
        title = f"{kind} of {self._num_rows} rows, {weights[0].shape[1]} inputs"
        return kernel_choice.those_that_are_right(title, None, candidates, compute)

    def _seconds(self, plan: Mapping[str, Any]) -> float:
        weight = (self._layers[0].output.weights or ())[0]
        attended = self._numbers(weight, weight.shape[1])
        numbers = self._numbers(weight, len(weight))
        hidden = self._products.with_norm(numbers, self._layers[0].input_norm)

        def compute(layer: Layer) -> None:
            self._products.parts(plan["queries_keys_values"], hidden, layer.queries_keys_values, layer.input_norm)
            after = self._products.added(plan["output"], attended, hidden, layer.output, layer.mlp_norm)
            inner = self._products.gated(plan["gate_up"], after, layer.gate_up, layer.mlp_norm)
            self._products.added(plan["down"], inner, after, layer.down, layer.input_norm)

        return kernel_choice.seconds([partial(compute, layer) for layer in self._layers])

    def _seconds_of_head(self, plan: Mapping[str, Any]) -> float:
        weight = self._head.weights[0]
        hidden = self._products.with_norm(self._numbers(weight, weight.shape[1]), self._norm)
        return kernel_choice.seconds(
            [partial(self._products.parts, plan[HEAD], hidden, self._head, self._norm) for _ in range(2)]
        )

    def _numbers(self, like: Tensor, size: int) -> Tensor:
        """Returns the same random numbers `[n, size]` each time."""
        generator = torch.Generator().manual_seed(size)
        return torch.randn(self._num_rows, size, generator=generator).to(like.device, like.dtype)


def is_fused_faster(new: Sequence[Tensor], norms: tuple[Any, Any] | None, head_dim: int) -> bool:
    """Whether `triton_attention` is faster for as many rows, and right. `new`: queries, keys and values of new tokens."""
    queries, key, _ = new
    num_rows, num_kv_heads = len(queries), key.shape[1] // head_dim
    attention, separate = (kernels_of(queries.device, name) for name in ("triton_attention", "triton_decoder"))
    caches = [queries.new_zeros((2, num_rows, num_kv_heads, NUM_KEYS + 1, head_dim)) for _ in range(NUM_CACHES)]
    if not attention.can_attend_new(queries, *caches[0], has_norms=norms is not None):
        return False
    turns = queries.new_ones((NUM_KEYS + 1, 2, head_dim))
    positions = torch.full((num_rows,), NUM_KEYS, device=queries.device)
    slots = torch.arange(num_rows, device=queries.device)

    def compute(is_fused: bool, cache: Tensor) -> None:
        keys, values = cache
        if is_fused:
            attention.attend_new(*new, norms, turns, positions, slots, keys, values, scale=1.0)
        else:
            turned = separate.turn_and_write(*new, norms, turns, positions, slots, keys, values)
            separate.attend(turned, keys, values, positions, slots, scale=1.0)

    def seconds(plan: Mapping[str, bool]) -> float:
        return kernel_choice.seconds([partial(compute, plan["attention"], cache) for cache in caches])

    return kernel_choice.fastest({"attention": [True, False]}, seconds)["attention"]
