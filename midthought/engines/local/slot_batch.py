"""Input of the slotted attention of one forward pass: which rows have which new tokens, their masks, and their places in the
cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from midthought.engines.local.device import to_device
from midthought.engines.local.kv_cache import SlotCache
from midthought.models.varlen_attention import CachedRows, RowBounds

NUM_MASKED_AHEAD = 64
"""Number of further tokens for which a mask of singles has room when its rows advance."""
MAX_JOINED_TOKENS = 16_384
"""Maximum number of keys in one call for several rows with several new tokens: each call costs time, each key memory."""

MIN_PREFIX_TOKENS = 256
"""Minimum number of shared tokens for which computing a group separately is faster."""
MIN_GROUP_ROWS = 4


class Group(NamedTuple):
    """Rows `start:end` of a batch, whose first `num_tokens` keys and values are the same; 0 if no common prefix is known."""

    start: int
    end: int
    num_tokens: int


def find_groups(num_common: Sequence[int]) -> list[Group]:
    """Returns groups that cover all rows, in order; empty if no rows share enough tokens.

    Args:
        num_common: length of the common prefix of each row and the row before it, in tokens; 0 for the first.

    >>> find_groups([0, 500, 500, 480, 3])
    [Group(start=0, end=4, num_tokens=480), Group(start=4, end=5, num_tokens=0)]
    """
    groups: list[Group] = []
    start = 0
    for end in range(1, len(num_common) + 1):
        if end < len(num_common) and num_common[end] >= MIN_PREFIX_TOKENS:
            continue
        if end - start >= MIN_GROUP_ROWS:
            groups.append(Group(start, end, min(num_common[start + 1 : end])))
        elif groups and not groups[-1].num_tokens:
            groups[-1] = Group(groups[-1].start, end, 0)
        else:
            groups.append(Group(start, end, 0))
        start = end
    return groups if any(group.num_tokens for group in groups) else []


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

    def of_rows(self, tokens: Tensor) -> Tensor:
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
    slots: Tensor
    """`[n]`: slots of the singles."""
    positions: Tensor
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
    shares_slots: bool = False
    """True if several singles are new tokens of the same row: they attend to keys that this pass writes."""
    _masks: dict[tuple[int | None, int, int], Tensor] = field(default_factory=dict)
    _growing_mask: Tensor | None = None
    """`[rows, 1, 1, length or more]`: mask of singles without a sliding window."""
    _bounds: tuple[RowBounds, RowBounds] | None = None
    _token_slots: Tensor | None = None
    _cached_rows: CachedRows | None = None

    @property
    def token_slots(self) -> Tensor:
        """`[T]`: the slot of each new token."""
        if not self.several:
            return self.slots
        if self._token_slots is None:
            slots = [np.arange(rows.num_rows).repeat(rows.num_new) + rows.slot for rows in self.several]
            self._token_slots = torch.cat([self.slots, to_device(np.concatenate(slots), self.slots.device)])
        return self._token_slots

    def cached_rows(self, keys: Tensor) -> CachedRows:
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

    def write(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the new keys and values, `[T, kv_heads, head_dim]`, into the cache. Returns all keys and values of the
        layer."""
        keys, values = self.cache.layer(index, key, value)
        num_singles = len(self.slots)
        if num_singles:
            where: Any = (self.slots, slice(None), self.positions)
            if self.ordered and self.is_level:
                where = (slice(num_singles), slice(None), self.length - 1)
            keys[where] = key[:num_singles] if self.several else key
            values[where] = value[:num_singles] if self.several else value
        for rows in self.several:
            keys[rows.slots, :, rows.num_cached : rows.length] = rows.of_rows(key)
            values[rows.slots, :, rows.num_cached : rows.length] = rows.of_rows(value)
        return keys, values

    def of_singles(self, cached: Tensor) -> Tensor:
        """Returns the cached keys or values of the singles, `[rows, kv_heads, length, head_dim]`."""
        if self.span is not None:
            return cached[: self.span, :, : self.length]
        return cached[:, :, : self.length][self.slots]

    def mask_of_singles(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
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

    def _new_mask(self, length: int, window: int | None, dtype: torch.dtype) -> Tensor:
        return _added(_seen(self.spread(self.positions)[:, None], length, window)[:, None, None], dtype)

    @property
    def _rows(self) -> Tensor:
        """`[n]`: indices of the singles among the attended rows."""
        if self.span is None or self.ordered:
            return torch.arange(len(self.slots), device=self.slots.device)
        return self.slots

    def mask_of(self, rows: RowGroup, window: int | None, dtype: torch.dtype) -> Tensor:
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

    def spread(self, rows: Tensor) -> Tensor:
        """Moves singles to rows of slots `0:span`; zeros for slots without a row in this pass."""
        if self.span is None or self.ordered:
            return rows
        return rows.new_zeros(self.span, *rows.shape[1:]).index_copy_(0, self.slots, rows)

    def collect(self, spread: Tensor) -> Tensor:
        """Inverse of `spread`."""
        return spread if self.span is None or self.ordered else spread[self.slots]


def _seen(positions: Tensor, length: int, window: int | None) -> Tensor:
    """Returns bool `[..., length]` for positions `[..., 1]`: True for each key that the position attends to."""
    keys = torch.arange(length, device=positions.device)
    seen = keys <= positions
    if window is not None:
        seen &= keys > positions - window
    return seen


def _added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a mask to add to the scores: 0 if a key is seen, else minus infinity."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
