"""A decoding pass in few kernels: norms, gates and additions are parts of the kernels of products (`triton_products`).

For each product it is measured on the model's own weights whether such a kernel is right and faster than separate kernels
(cuBLAS).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from midthought.engines.local.device import kernels_of
from midthought.engines.local.layer_products import LayerProducts, is_fused_faster
from midthought.engines.local.slot_batch import SlotBatch
from midthought.engines.local.weight_copies import Layer, Projection
from midthought.models.varlen_attention import HALF

DTYPES = HALF
MAX_ROWS = 128
MIN_TILE_ROWS = 32
"""Rows that are not there are not read: fewer save nothing but time to compile."""

Attend = Callable[..., Tensor]
"""`Decoder._attend_each`"""


class FusedStep:
    """Computes passes in which every token's attention is computed by itself: one new token per row, or few of any rows.

    Args:
        norm, head: the last norm, and the output layer.
        attend: attention by other kernels, for rows or heads that `triton_attention` does not take.
    """

    def __init__(self, layers: Sequence[Layer], embeddings: Any, norm: Any, head: Any, attend: Attend) -> None:
        self._layers, self._embeddings, self._norm, self._head = layers, embeddings, norm, head
        self._attend = attend
        self._attention = kernels_of(embeddings.weight.device, "triton_attention")
        self._products = LayerProducts(embeddings.weight.device)
        self._plans: dict[int, dict[str, Any] | None] = {}

    @property
    def is_used(self) -> bool:
        """Whether it computes passes of some number of rows."""
        return any(self._plans.values())

    def __call__(self, token_ids: Tensor, positions: Tensor, batch: SlotBatch, turns: Tensor) -> Tensor | None:
        """Returns logits `[n, V]` after `[n]` tokens; None if other kernels are to compute this pass.

        `turns`: `[length, 2, head_dim]`, as in `triton_decoder`.
        """
        plan = self._plan_for(len(token_ids), turns.shape[2], is_measured=not batch.shares_slots)
        if plan is None:
            return None
        products = self._products
        hidden = products.embedded(token_ids, self._embeddings.weight, self._layers[0].input_norm)
        next_norms = [*(layer.input_norm for layer in self._layers[1:]), self._norm]
        attend = self._attended if plan["attention"] and not batch.shares_slots else self._attend
        for index, (layer, next_norm) in enumerate(zip(self._layers, next_norms, strict=True)):
            attended = functools.partial(attend, index, layer, turns=turns, positions=positions, batch=batch)
            hidden = products.layer(plan, layer, hidden, attended, next_norm)
        if plan["head"] is None:
            logits: Tensor = self._head(products.normed(hidden, self._norm))
        else:
            [logits] = products.parts(plan["head"], hidden, self._head, self._norm)
        return logits

    def _attended(
        self, index: int, layer: Layer, parts: Sequence[Tensor], turns: Tensor, positions: Tensor, batch: SlotBatch
    ) -> Tensor:
        """As `attend`, in one kernel if possible."""
        queries, new_keys, new_values = parts
        shape = (len(queries), -1, turns.shape[2])
        keys, values = batch.cache.layer(index, new_keys.view(shape), new_values.view(shape))
        norms = None if layer.head_norms is None else layer.head_norms.modules
        if not self._attention.can_attend_new(queries, keys, values, has_norms=norms is not None):
            return self._attend(index, layer, parts, turns, positions, batch)
        batch.cache.windows[index] = layer.window
        attended: Tensor = self._attention.attend_new(
            *parts, norms, turns, positions, batch.slots, keys, values, scale=layer.scaling, window=layer.window
        )
        return attended

    def _plan_for(self, num_rows: int, head_dim: int, *, is_measured: bool) -> dict[str, Any] | None:
        """Returns the plan for about as many rows.

        It is measured, which takes seconds, at their first pass that is not being recorded; if `is_measured` is false, never.
        """
        if num_rows > MAX_ROWS or not self._is_plain():
            return None
        num_tile_rows = max(MIN_TILE_ROWS, 1 << (num_rows - 1).bit_length())
        if num_tile_rows not in self._plans:
            is_recording = self._embeddings.weight.is_cuda and torch.cuda.is_current_stream_capturing()
            if not is_measured or is_recording:
                return None
            self._plans[num_tile_rows] = self._measured(num_tile_rows, head_dim)
        return self._plans[num_tile_rows]

    def _measured(self, num_rows: int, head_dim: int) -> dict[str, Any] | None:
        """Returns the tiles of each product, None for separate kernels, and whether one kernel computes `attention`."""
        plan = self._products.fastest(self._layers, self._norm, self._head, num_rows)
        if all(tiles is None for tiles in plan.values()):
            return None
        layer, like = self._layers[0], self._embeddings.weight
        new = [like.new_ones((num_rows, len(each))) for each in layer.queries_keys_values.weights or ()]
        norms = None if layer.head_norms is None else layer.head_norms.modules
        return plan | {"attention": is_fused_faster(new, norms, head_dim)}

    def _is_plain(self) -> bool:
        """Whether layers are products with weights; that changes when adapters are merged."""
        if self._embeddings.weight.dtype not in DTYPES:
            return False
        heads = [self._head] if isinstance(self._head, Projection) else []
        used = itertools.chain(heads, *(layer.projections for layer in self._layers))
        return all(projection.weights is not None for projection in used)
