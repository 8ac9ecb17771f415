"""Attention that reads the slotted cache in place, for all rows of one forward pass.

It is registered in transformers' attention interface, so the models' own code runs unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from midthought.engines.local.slot_batch import Group, RowGroup, SlotBatch
from midthought.models.varlen_attention import attend_cache, attend_rows, is_cache_usable, is_usable

ATTENTION_NAME = "midthought_slots"


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slot_batch: SlotBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """`attend` with transformers' signature: takes `[1, heads, T, head_dim]`, returns `[1, T, heads, head_dim]` and no
    weights."""
    index: int = module.layer_idx  # type: ignore[assignment]
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
    attended = attend(slot_batch, index, query, key, value, scaling=scaling, window=sliding_window, softcap=softcap)
    return attended[None], None


class _Call(NamedTuple):
    """Attention of one layer: all but the queries."""

    keys: Tensor
    values: Tensor
    batch: SlotBatch
    scaling: float | None
    window: int | None
    softcap: float | None
    kernels: Any


def attend(slot_batch: SlotBatch, index: int, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Computes attention over the slots. Query heads that share a key head are packed into its query axis: nothing is
    repeated.

    Args:
        index: index of the layer.
        query: `[T, heads, head_dim]`; `key`, `value`: `[T, kv_heads, head_dim]` of the new tokens.
        options: as for `attend_cached`.

    Returns:
        `[T, heads, head_dim]`.
    """
    return attend_cached(slot_batch, index, query, *slot_batch.write(index, key, value), **options)


def attend_cached(
    slot_batch: SlotBatch,
    index: int,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scaling: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    kernels: Any = None,
) -> Tensor:
    """`attend` after the new keys and values were written into the layer's cache, `[slots, kv_heads, length, head_dim]`.

    `softcap`: logits become `softcap · tanh(logits / softcap)` (Gemma 2). `kernels`: the module `triton_decoder` if it is used.
    """
    slot_batch.cache.windows[index] = window
    call = _Call(keys, values, slot_batch, scaling, window, softcap, kernels)
    num_singles = len(slot_batch.slots)
    attended: list[Tensor] = []
    if num_singles:
        attended.append(_attend_singles(query[:num_singles] if slot_batch.several else query, call))
    is_packable = slot_batch.several and softcap is None
    if is_packable and is_usable(query, keys[0].transpose(0, 1), values[0].transpose(0, 1), window):
        attended.append(_attend_packed(query[num_singles:], call))
        return torch.cat(attended) if num_singles else attended[0]
    for rows in slot_batch.several:
        over = _attend_several(rows.of_rows(query), rows, call)
        attended.append(over.transpose(1, 2).flatten(0, 1))
    return torch.cat(attended) if len(attended) > 1 else attended[0]


def _attend_singles(query: Tensor, call: _Call) -> Tensor:
    """Computes attention of rows with one new token each: `[n, heads, head_dim]` of queries -> the same."""
    keys, values, batch, scaling, window, softcap, kernels = call
    if kernels is not None and softcap is None and kernels.can_attend(query, keys, values):
        attended: Tensor = kernels.attend(
            query, keys, values, batch.positions, batch.slots, scale=scaling, window=window
        )
        return attended
    if softcap is None and window is None and is_cache_usable(query, keys, values):
        return attend_cache(query, keys, values, batch.cached_rows(keys), scale=scaling)
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    packed = batch.spread(query).reshape(-1, num_kv_heads, num_heads // num_kv_heads, head_dim)
    mask = batch.mask_of_singles(window, query.dtype)
    its_keys, its_values = batch.of_singles(keys), batch.of_singles(values)
    shares_keys = packed.shape[2] > 1 and packed.device.type == "cpu" and packed.dtype == torch.float32
    if batch.groups and shares_keys and softcap is None and window is None:
        scale = head_dim**-0.5 if scaling is None else scaling
        over = attend_in_groups(packed, its_keys, its_values, mask, scale, batch.groups)
    elif softcap is not None or shares_keys:
        over = _attend_in_steps(packed, its_keys, its_values, mask, scaling, softcap)
    else:
        over = F.scaled_dot_product_attention(packed, its_keys, its_values, attn_mask=mask, scale=scaling)
    return batch.collect(over).reshape(num_rows, num_heads, -1)


def _attend_packed(query: Tensor, call: _Call) -> Tensor:
    """Computes attention of the new tokens of all rows with several, `[T, heads, head_dim]`, in one call. Their cached keys and
    values are copied."""
    key, value = (
        torch.cat([cached[rows.slots, :, : rows.length].transpose(1, 2).flatten(0, 1) for rows in call.batch.several])
        for cached in (call.keys, call.values)
    )
    return attend_rows(query, key, value, *call.batch.bounds_of_several, scale=call.scaling, window=call.window)


def _attend_several(query: Tensor, rows: RowGroup, call: _Call) -> Tensor:
    """Computes attention of the rows' new tokens. `query` and the result: `[num_rows, heads, Q, head_dim]`."""
    keys, values = (each[rows.slots, :, : rows.length] for each in (call.keys, call.values))
    num_repeats = query.shape[1] // keys.shape[1]
    if call.softcap is not None:
        packed = query.reshape(len(query), keys.shape[1], -1, query.shape[3])
        mask = call.batch.mask_of(rows, call.window, query.dtype).repeat(num_repeats, 1)
        return _attend_in_steps(packed, keys, values, mask, call.scaling, call.softcap).reshape(query.shape)
    on_cpu = query.device.type == "cpu"
    if not on_cpu:  # not every kernel of other devices shares keys among heads
        keys, values = (each.repeat_interleave(num_repeats, 1) for each in (keys, values))
    attend = partial(F.scaled_dot_product_attention, scale=call.scaling, enable_gqa=on_cpu and num_repeats > 1)
    is_seen_whole = call.window is None or rows.length <= call.window
    if is_seen_whole and rows.num_cached <= query.shape[2]:
        # With as many queries as keys, kernels skip what a causal mask hides: padding queries replace the cached tokens.
        if not rows.num_cached:
            return attend(query, keys, values, is_causal=True)
        return attend(F.pad(query, (0, 0, rows.num_cached, 0)), keys, values, is_causal=True)[:, :, rows.num_cached :]
    return attend(query, keys, values, attn_mask=call.batch.mask_of(rows, call.window, query.dtype))


def _attend_in_steps(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float | None, softcap: float | None
) -> Tensor:
    """Computes attention in separate operations: for soft-capped scores, and, because it is faster there, for few queries
    that share keys in fp32 on a CPU."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scaled = query if scale == 1.0 else query * scale
    scores = torch.bmm(scaled.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores.unflatten(0, query.shape[:2]).add_(mask)
    in_fp32 = scores.dtype == torch.float32
    weights = scores.softmax(-1) if in_fp32 else scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    return torch.bmm(weights, values.flatten(0, 1)).unflatten(0, query.shape[:2])


def attend_in_groups(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, groups: Sequence[Group]
) -> Tensor:
    """Returns `[n, kv_heads, repeats, head_dim]`.

    Args:
        query: `[n, kv_heads, repeats, head_dim]`; `keys`, `values`: `[n, kv_heads, length, head_dim]`.
        mask: `[n, 1, 1, length]`, added to the scores.
        groups: cover all `n` rows.
    """
    query = query * scale
    attended = []
    for start, end, num_tokens in groups:
        rows = slice(start, end)
        its_mask = None if mask is None else mask[rows]
        attended.append(_attend_group(query[rows], keys[rows], values[rows], its_mask, num_tokens))
    return torch.cat(attended)


def _attend_group(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, num_tokens: int) -> Tensor:
    """Uses the first row's prefix for all rows; later keys and values are each row's own."""
    scores = query @ keys[:, :, num_tokens:].transpose(2, 3)
    if num_tokens:
        of_prefix = _by_row(_by_head(query) @ keys[0, :, :num_tokens].transpose(1, 2), len(query))
        scores = torch.cat([of_prefix, scores], dim=-1)
    if mask is not None:
        scores += mask
    weights = scores.softmax(-1)
    attended = weights[..., num_tokens:] @ values[:, :, num_tokens:]
    if num_tokens:
        attended += _by_row(_by_head(weights[..., :num_tokens]) @ values[0, :, :num_tokens], len(query))
    return attended


def _by_head(rows: Tensor) -> Tensor:
    """Reshapes `[n, kv_heads, repeats, C]` to `[kv_heads, n · repeats, C]`."""
    return rows.transpose(0, 1).flatten(1, 2)


def _by_row(heads: Tensor, num_rows: int) -> Tensor:
    """Inverse of `_by_head`."""
    return heads.unflatten(1, (num_rows, -1)).transpose(0, 1)


AttentionInterface.register(ATTENTION_NAME, slot_attention)
