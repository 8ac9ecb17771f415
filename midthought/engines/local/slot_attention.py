"""Attention that reads the slotted cache in place, for all rows of one forward pass.

It is registered in transformers' attention interface, so the models' own code runs unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from midthought.engines.local.device_memory import to_device
from midthought.engines.local.kv_cache import SlotCache
from midthought.engines.local.prefix_attention import Group, attend_in_groups
from midthought.varlen_attention import CachedRows, RowBounds, attend_cache, attend_rows, is_cache_usable, is_usable

ATTENTION_NAME = "midthought_slots"
NUM_MASKED_AHEAD = 64
"""Number of further tokens for which a mask of singles has room when its rows advance."""
MAX_JOINED_TOKENS = 16_384
"""Maximum number of keys in one call for several rows with several new tokens: each call costs time, each key memory."""


class RowGroup(NamedTuple):
    """Rows with several new tokens: adjacent slots from `slot` on, the same number of new and of cached tokens. Their new
    tokens are `start:end` of the batch. Usually one row."""

    start: int
    end: int
    slot: int
    num_cached: int
    num_rows: int = 1

    @property
    def num_new(self) -> int:
        """Per row."""
        return (self.end - self.start) // self.num_rows

    @property
    def length(self) -> int:
        """Per row."""
        return self.num_cached + self.num_new

    @property
    def slots(self) -> slice:
        return slice(self.slot, self.slot + self.num_rows)

    def of_rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns `[num_rows, heads, num_new, head_dim]` from the batch's `[T, heads, head_dim]`."""
        return tokens[self.start : self.end].unflatten(0, (self.num_rows, -1)).transpose(1, 2)

    def joined(self, other: RowGroup) -> RowGroup | None:
        """Returns these rows and the next one as one group; None if they cannot be computed in one call."""
        follows = other.slot == self.slot + self.num_rows and other.num_cached == self.num_cached
        if not follows or other.num_new != self.num_new or self.length * (self.num_rows + 1) > MAX_JOINED_TOKENS:
            return None
        return self._replace(end=other.end, num_rows=self.num_rows + 1)


@dataclass(slots=True)
class SlotBatch:
    """Input of the attention of one forward pass.

    The `T` new tokens of all rows are concatenated without padding: first the rows with one new token (`singles`, computed
    in one call), then the rows with several, computed per `RowGroup`.
    """

    cache: SlotCache
    slots: torch.Tensor
    """`[n]`: slots of the singles."""
    positions: torch.Tensor
    """`[n]`: positions of the singles' tokens."""
    length: int
    """Length of the longest single, including the new token."""
    span: int | None
    """Singles are attended over slots `0:span` in place. None: their slots are gathered."""
    ordered: bool
    """True if single i is in slot i and the span contains no other slots."""
    is_level: bool
    """True if all singles have the same length."""
    several: Sequence[RowGroup]
    longest: int
    """Length of the longest row, including the new tokens."""
    groups: Sequence[Group] = ()
    """Singles with a common prefix; only if the batch is `ordered`."""
    num_advances: int = 0
    """Number of earlier passes of the same rows."""
    _masks: dict[tuple[int | None, int, int], torch.Tensor] = field(default_factory=dict)
    _growing_mask: torch.Tensor | None = None
    """`[rows, 1, 1, length or more]`: mask of singles without a sliding window."""
    _bounds: tuple[RowBounds, RowBounds] | None = None
    _token_slots: torch.Tensor | None = None
    _cached_rows: CachedRows | None = None

    @property
    def token_slots(self) -> torch.Tensor:
        """`[T]`: the slot of each new token."""
        if not self.several:
            return self.slots
        if self._token_slots is None:
            slots = [np.arange(rows.num_rows).repeat(rows.num_new) + rows.slot for rows in self.several]
            self._token_slots = torch.cat([self.slots, to_device(np.concatenate(slots), self.slots.device)])
        return self._token_slots

    def cached_rows(self, keys: torch.Tensor) -> CachedRows:
        """Places of the singles' keys in a layer's cache `[slots, kv_heads, length, head_dim]`."""
        if self._cached_rows is None:
            self._cached_rows = CachedRows.of(self.slots, self.positions + 1, self.length, keys)
        return self._cached_rows

    @property
    def bounds_of_several(self) -> tuple[RowBounds, RowBounds]:
        """Bounds of the new tokens, and of all tokens, of the rows with several new tokens."""
        if self._bounds is None:
            device = self.positions.device
            new = [rows.num_new for rows in self.several for _ in range(rows.num_rows)]
            lengths = [rows.length for rows in self.several for _ in range(rows.num_rows)]
            self._bounds = RowBounds.of(new, device), RowBounds.of(lengths, device)
        return self._bounds

    def advance(self) -> None:
        """Advances each row by one token. Only for batches of singles."""
        assert not self.several
        self.positions += 1
        self.length += 1
        self.longest += 1
        self.num_advances += 1
        self._cached_rows = None
        self._masks.clear()
        if (mask := self._growing_mask) is not None:
            if mask.shape[-1] < self.length:
                self._growing_mask = None
            else:
                mask[self._rows, 0, 0, self.positions] = 0.0

    def forget_positions(self) -> None:
        """Discards what depends on the positions after they have changed; it is computed again when needed."""
        self._cached_rows = None
        self._masks.clear()
        self._growing_mask = None

    def write(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the new keys and values, `[T, kv_heads, head_dim]`, into the cache. Returns all keys and values of the
        layer."""
        keys, values = self.cache.layer(index, key, value)
        num_singles = len(self.slots)
        if num_singles:
            where = self._level_place if self.ordered and self.is_level else (self.slots, slice(None), self.positions)
            keys[where] = key[:num_singles] if self.several else key
            values[where] = value[:num_singles] if self.several else value
        for rows in self.several:
            keys[rows.slots, :, rows.num_cached : rows.length] = rows.of_rows(key)
            values[rows.slots, :, rows.num_cached : rows.length] = rows.of_rows(value)
        return keys, values

    @property
    def _level_place(self) -> tuple[slice, slice, int]:
        return slice(len(self.slots)), slice(None), self.length - 1

    def of_singles(self, cached: torch.Tensor) -> torch.Tensor:
        """Returns the cached keys or values of the singles, `[rows, kv_heads, length, head_dim]`."""
        if self.span is not None:
            return cached[: self.span, :, : self.length]
        return cached[:, :, : self.length][self.slots]

    def mask_of_singles(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns `[rows, 1, 1, length]` to add to the scores: 0 if position p attends to key j (p - window < j ≤ p), else
        minus infinity. Returns None if every single attends to all keys."""
        if self.is_level and (window is None or self.length <= window):
            return None
        if window is None:
            if self._growing_mask is None:
                num_ahead = NUM_MASKED_AHEAD if self.num_advances else 0
                self._growing_mask = self._new_mask(self.length + num_ahead, None, dtype)
            return self._growing_mask[..., : self.length]
        key = (window, -1, 0)
        if key not in self._masks:
            self._masks[key] = self._new_mask(self.length, window, dtype)
        return self._masks[key]

    def _new_mask(self, length: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        return _added(_seen(self.spread(self.positions)[:, None], length, window)[:, None, None], dtype)

    @property
    def _rows(self) -> torch.Tensor:
        """`[n]`: indices of the singles among the attended rows."""
        if self.span is None or self.ordered:
            return torch.arange(len(self.slots), device=self.slots.device)
        return self.slots

    def mask_of(self, rows: RowGroup, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Returns `[Q, length]` to add to the scores of rows with several new tokens."""
        key = (window, rows.num_cached, rows.length)
        if key not in self._masks:
            device = self.positions.device
            if window is None:
                mask = torch.zeros(rows.num_new, rows.length, dtype=dtype, device=device)
                mask[:, rows.num_cached :] = torch.full_like(mask[:, rows.num_cached :], -torch.inf).triu_(1)
            else:
                positions = torch.arange(rows.num_cached, rows.length, device=device)
                mask = _added(_seen(positions[:, None], rows.length, window), dtype)
            self._masks[key] = mask
        return self._masks[key]

    def spread(self, rows: torch.Tensor) -> torch.Tensor:
        """Moves singles to rows of slots `0:span`; zeros for slots without a row in this pass."""
        if self.span is None or self.ordered:
            return rows
        return rows.new_zeros(self.span, *rows.shape[1:]).index_copy_(0, self.slots, rows)

    def collect(self, spread: torch.Tensor) -> torch.Tensor:
        """Inverse of `spread`."""
        return spread if self.span is None or self.ordered else spread[self.slots]


def _seen(positions: torch.Tensor, length: int, window: int | None) -> torch.Tensor:
    """Returns bool `[..., length]` for positions `[..., 1]`: True for each key that the position attends to."""
    keys = torch.arange(length, device=positions.device)
    seen = keys <= positions
    if window is not None:
        seen &= keys > positions - window
    return seen


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    slot_batch: SlotBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """`attend` with transformers' signature: takes `[1, heads, T, head_dim]`, returns `[1, T, heads, head_dim]` and no
    weights."""
    index: int = module.layer_idx  # type: ignore[assignment]
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
    attended = attend(slot_batch, index, query, key, value, scaling=scaling, window=sliding_window, softcap=softcap)
    return attended[None], None


def attend(
    slot_batch: SlotBatch,
    index: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scaling: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Computes attention over the slots. Query heads that share a key head are packed into its query axis: nothing is
    repeated.

    Args:
        index: index of the layer.
        query: `[T, heads, head_dim]`; `key`, `value`: `[T, kv_heads, head_dim]` of the new tokens.
        softcap: logits become `softcap · tanh(logits / softcap)` (Gemma 2).

    Returns:
        `[T, heads, head_dim]`.
    """
    keys, values = slot_batch.write(index, key, value)
    return attend_cached(slot_batch, index, query, keys, values, scaling=scaling, window=window, softcap=softcap)


def attend_cached(
    slot_batch: SlotBatch,
    index: int,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scaling: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    kernels: Any = None,
) -> torch.Tensor:
    """`attend` after the new keys and values were written into the layer's cache, `[slots, kv_heads, length, head_dim]`.
    `kernels`: the module `triton_decoder` if it is used."""
    slot_batch.cache.windows[index] = window
    num_singles = len(slot_batch.slots)
    attended: list[torch.Tensor] = []
    if num_singles:
        own = query[:num_singles] if slot_batch.several else query
        attended.append(_attend_singles(own, keys, values, slot_batch, scaling, window, softcap, kernels))
    if slot_batch.several and softcap is None and is_usable(query, keys.transpose(1, 2)[0], window):
        attended.append(_attend_packed(query[num_singles:], keys, values, slot_batch, scaling, window))
        return torch.cat(attended) if num_singles else attended[0]
    for rows in slot_batch.several:
        over = _attend_several(rows.of_rows(query), keys, values, slot_batch, rows, scaling, window, softcap)
        attended.append(over.transpose(1, 2).flatten(0, 1))
    return torch.cat(attended) if len(attended) > 1 else attended[0]


def _attend_singles(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_batch: SlotBatch,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    kernels: Any,
) -> torch.Tensor:
    """Computes attention of rows with one new token each: `[n, heads, head_dim]` of queries -> the same."""
    if kernels is not None and softcap is None and kernels.can_attend(query, keys, values):
        attended: torch.Tensor = kernels.attend(
            query, keys, values, slot_batch.positions, slot_batch.slots, scale=scaling, window=window
        )
        return attended
    if softcap is None and window is None and is_cache_usable(query, keys, values):
        return attend_cache(query, keys, values, slot_batch.cached_rows(keys), scale=scaling)
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    packed = slot_batch.spread(query).reshape(-1, num_kv_heads, num_heads // num_kv_heads, head_dim)
    mask = slot_batch.mask_of_singles(window, query.dtype)
    its_keys, its_values = slot_batch.of_singles(keys), slot_batch.of_singles(values)
    shares_keys = packed.shape[2] > 1 and packed.device.type == "cpu" and packed.dtype == torch.float32
    if slot_batch.groups and shares_keys and softcap is None and window is None:
        scale = head_dim**-0.5 if scaling is None else scaling
        over = attend_in_groups(packed, its_keys, its_values, mask, scale, slot_batch.groups)
    elif softcap is not None or shares_keys:
        over = _attend_in_steps(packed, its_keys, its_values, mask, scaling, softcap)
    else:
        over = F.scaled_dot_product_attention(packed, its_keys, its_values, attn_mask=mask, scale=scaling)
    return slot_batch.collect(over).reshape(num_rows, num_heads, -1)


def _attend_packed(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_batch: SlotBatch,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Computes attention of the new tokens of all rows with several, `[T, heads, head_dim]`, in one call. Their cached keys and
    values are copied."""
    several = slot_batch.several
    key, value = (
        torch.cat([cached[rows.slots, :, : rows.length].transpose(1, 2).flatten(0, 1) for rows in several])
        for cached in (keys, values)
    )
    return attend_rows(query, key, value, *slot_batch.bounds_of_several, scale=scaling, window=window)


def _attend_several(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_batch: SlotBatch,
    rows: RowGroup,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Computes attention of the rows' new tokens. `query` and the result: `[num_rows, heads, Q, head_dim]`."""
    keys, values = (each[rows.slots, :, : rows.length] for each in (keys, values))
    num_repeats = query.shape[1] // keys.shape[1]
    if softcap is not None:
        packed = query.reshape(len(query), keys.shape[1], -1, query.shape[3])
        mask = slot_batch.mask_of(rows, window, query.dtype).repeat(num_repeats, 1)
        return _attend_in_steps(packed, keys, values, mask, scaling, softcap).reshape(query.shape)
    on_cpu = query.device.type == "cpu"
    if not on_cpu:  # not every kernel of other devices shares keys among heads
        keys, values = (each.repeat_interleave(num_repeats, 1) for each in (keys, values))
    attend = partial(F.scaled_dot_product_attention, scale=scaling, enable_gqa=on_cpu and num_repeats > 1)
    is_seen_whole = window is None or rows.length <= window
    if is_seen_whole and rows.num_cached <= query.shape[2]:
        # With as many queries as keys, kernels skip what a causal mask hides: padding queries replace the cached tokens.
        if not rows.num_cached:
            return attend(query, keys, values, is_causal=True)
        return attend(F.pad(query, (0, 0, rows.num_cached, 0)), keys, values, is_causal=True)[:, :, rows.num_cached :]
    return attend(query, keys, values, attn_mask=slot_batch.mask_of(rows, window, query.dtype))


def _attend_in_steps(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
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


def _added(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a mask to add to the scores: 0 if a key is seen, else minus infinity."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


AttentionInterface.register(ATTENTION_NAME, slot_attention)
