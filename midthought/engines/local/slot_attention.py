"""Attention that reads the slotted cache in place, for all rows of one forward pass.

It stands behind transformers' attention interface, so the models' own code runs unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from midthought.engines.local.kv_cache import SlotCache
from midthought.engines.local.prefix_attention import Group, attend_in_groups

ATTENTION_NAME = "midthought_slots"
NUM_MASKED_AHEAD = 64
"""So many tokens a mask of singles has room for, once they advance."""
MAX_JOINED_TOKENS = 16_384
"""Rows of several new tokens are attended at once up to so many keys: each call costs, and so does room for many."""


class RowGroup(NamedTuple):
    """Rows that bring several new tokens each, equally many, to as many that are cached: where they stand in the batch, and
    the first of the slots that they belong to, which follow each other. Most often it is one row."""

    start: int
    end: int
    slot: int
    num_cached: int
    num_rows: int = 1

    @property
    def num_new(self) -> int:
        """Of one row."""
        return (self.end - self.start) // self.num_rows

    @property
    def length(self) -> int:
        """Of one row."""
        return self.num_cached + self.num_new

    @property
    def slots(self) -> slice:
        return slice(self.slot, self.slot + self.num_rows)

    def of_rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """`[num_rows, heads, num_new, head_dim]` of the batch's `[T, heads, head_dim]`."""
        return tokens[self.start : self.end].unflatten(0, (self.num_rows, -1)).transpose(1, 2)

    def joined(self, other: RowGroup) -> RowGroup | None:
        """This and the row that stands behind it, where they may be computed at once."""
        follows = other.slot == self.slot + self.num_rows and other.num_cached == self.num_cached
        if not follows or other.num_new != self.num_new or self.length * (self.num_rows + 1) > MAX_JOINED_TOKENS:
            return None
        return self._replace(end=other.end, num_rows=self.num_rows + 1)


@dataclass(slots=True)
class SlotBatch:
    """What the attention of one forward pass needs to know.

    The new tokens of all rows stand one after the other, `T` in all, nothing is padded: first the rows that bring one
    token (`singles`, whose attention is computed at once), then those that bring several, each computed by itself or
    with its likes.
    """

    cache: SlotCache
    slots: torch.Tensor
    """`[n]`: the slots of the singles."""
    positions: torch.Tensor
    """`[n]`: the positions of their tokens."""
    length: int
    """The length of the longest single, the new token included."""
    span: int | None
    """Singles are attended over slots `0:span` in place. None: their slots are gathered."""
    ordered: bool
    """True where single i is in slot i and the span holds nothing else."""
    is_level: bool
    """True where all singles are of the same length."""
    several: Sequence[RowGroup]
    longest: int
    """The length of the longest row of all, the new tokens included."""
    groups: Sequence[Group] = ()
    """Of singles that begin alike, where there are such and the batch is `ordered`."""
    num_advances: int = 0
    """How many passes the same rows have gone through before this one."""
    _masks: dict[tuple[int | None, int, int], torch.Tensor] = field(default_factory=dict)
    _growing_mask: torch.Tensor | None = None
    """`[rows, 1, 1, length or more]`: that of singles that see all before them."""

    def advance(self) -> None:
        """The same rows again, each with one token more. For batches of singles only."""
        assert not self.several
        self.positions += 1
        self.length += 1
        self.longest += 1
        self.num_advances += 1
        self._masks.clear()
        if (mask := self._growing_mask) is not None:
            if mask.shape[-1] < self.length:
                self._growing_mask = None
            else:
                mask[self._rows, 0, 0, self.positions] = 0.0

    def forget_masks(self) -> None:
        """Positions have changed: masks are made anew when they are asked for."""
        self._masks.clear()
        self._growing_mask = None

    def write(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the new keys and values, `[T, kv_heads, head_dim]`, in place; give all of the layer's."""
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
        """`[rows, kv_heads, length, head_dim]` of what the singles may read."""
        if self.span is not None:
            return cached[: self.span, :, : self.length]
        return cached[:, :, : self.length][self.slots]

    def mask_of_singles(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """`[rows, 1, 1, length]`, to be added to the scores: 0 where key j is seen from position p, p - window < j ≤ p, else
        minus infinity. None where every single sees everything."""
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
        """`[n]`: where the singles stand among the rows that are attended."""
        if self.span is None or self.ordered:
            return torch.arange(len(self.slots), device=self.slots.device)
        return self.slots

    def mask_of(self, rows: RowGroup, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """`[Q, length]` of rows with several new tokens, to be added to the scores."""
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
        """Singles to rows of slots `0:span`; zeros where a slot takes no part in this step."""
        if self.span is None or self.ordered:
            return rows
        return rows.new_zeros(self.span, *rows.shape[1:]).index_copy_(0, self.slots, rows)

    def collect(self, spread: torch.Tensor) -> torch.Tensor:
        """The inverse of `spread`."""
        return spread if self.span is None or self.ordered else spread[self.slots]


def _seen(positions: torch.Tensor, length: int, window: int | None) -> torch.Tensor:
    """Bool `[..., length]` for positions `[..., 1]`."""
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
    """`attend` as transformers calls an attention: `[1, heads, T, head_dim]` in, `[1, T, heads, head_dim]` out, no weights."""
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
    """Attention over the slots. Query heads that share a key head are packed into its query axis: nothing is repeated.

    Args:
        index: the layer's.
        query: `[T, heads, head_dim]`; `key`, `value`: `[T, kv_heads, head_dim]`, the new tokens'.
        softcap: logits become `softcap · tanh(logits / softcap)` (Gemma 2).

    Returns:
        `[T, heads, head_dim]`.
    """
    _, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    slot_batch.cache.windows[index] = window
    keys, values = slot_batch.write(index, key, value)
    num_singles = len(slot_batch.slots)
    attended: list[torch.Tensor] = []
    if num_singles:
        own = query[:num_singles] if slot_batch.several else query
        packed = slot_batch.spread(own).reshape(-1, num_kv_heads, num_heads // num_kv_heads, head_dim)
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
        attended.append(slot_batch.collect(over).reshape(num_singles, num_heads, -1))
    for rows in slot_batch.several:
        over = _attend_several(rows.of_rows(query), keys, values, slot_batch, rows, scaling, window, softcap)
        attended.append(over.transpose(1, 2).flatten(0, 1))
    return torch.cat(attended) if len(attended) > 1 else attended[0]


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
    """Attention of the new tokens of rows, `query` of `[num_rows, heads, Q, head_dim]`; the same shape."""
    keys, values = (each[rows.slots, :, : rows.length] for each in (keys, values))
    num_repeats = query.shape[1] // keys.shape[1]
    if softcap is not None:
        packed = query.reshape(len(query), keys.shape[1], -1, query.shape[3])
        mask = slot_batch.mask_of(rows, window, query.dtype).repeat(num_repeats, 1)
        return _attend_in_steps(packed, keys, values, mask, scaling, softcap).reshape(query.shape)
    on_cpu = query.device.type == "cpu"
    if not on_cpu:  # not every kernel there shares keys among heads
        keys, values = (each.repeat_interleave(num_repeats, 1) for each in (keys, values))
    attend = partial(F.scaled_dot_product_attention, scale=scaling, enable_gqa=on_cpu and num_repeats > 1)
    is_seen_whole = window is None or rows.length <= window
    if is_seen_whole and rows.num_cached <= query.shape[2]:
        # Kernels skip what a causal mask hides where queries and keys are as many: blank queries stand for what is cached.
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
    """Attention in plain steps: for soft-capped scores, and where few queries share keys in fp32 on a CPU, where it is the
    faster way."""
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
    """A mask to be added to scores: 0 where a key is seen, else minus infinity."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


AttentionInterface.register(ATTENTION_NAME, slot_attention)
