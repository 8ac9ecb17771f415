"""Measures whether one kernel computes attention of new tokens faster than separate kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from midthought.engines.local import kernel_choice
from midthought.engines.local.gpu_kernels import kernels_of

NUM_KEYS = 128
NUM_CACHES = 6
"""So many layers' keys and values are more than a cache holds."""


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
