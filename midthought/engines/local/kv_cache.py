"""KV cache with slots, one sequence per slot: the tensors, and which episode and tokens are in which slot.

Does not depend on sampling.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
import torch
from torch import Tensor

LINE_BYTES = 64
"""Size of a CPU cache line; aligned memory is read faster."""
MIN_SHARED_TOKENS = 16
"""Minimum length of a common prefix for which copying, waiting, or reusing a free slot is worth it."""


class SlotCache:
    """Keys and values of every layer, `[num_slots, kv_heads, length, head_dim]`; slots and length grow on demand.

    With `has_spare` there is a further slot `num_slots`, whose contents are never read.
    """

    def __init__(self) -> None:
        self.num_slots = 0
        self.length = 0
        self.max_num_slots = sys.maxsize
        self.has_spare = False
        self.num_layouts = 0
        """Incremented when tensors are reallocated."""
        self.windows: dict[int, int | None] = {}
        """Sliding window of each layer; None for full attention."""
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def fit(self, length: int, num_bytes: int) -> int:
        """Limits the cache to `num_bytes` for sequences of `length` tokens. Returns how many of them fit, at least one."""
        per_token = self.num_bytes_per_token
        fitting = num_bytes // (per_token * self._grown(length)) if per_token else sys.maxsize
        self.max_num_slots = max(1, fitting - self.has_spare)
        return self.max_num_slots

    def make_room(self, num_slots: int, length: int) -> None:
        """Enlarges all slots to this many tokens, and releases the slots beyond `num_slots`."""
        self._lay_out(min(num_slots, self.num_slots), self._grown(length))

    def reserve(self, num_slots: int, length: int) -> None:
        """Grows to at least this many slots of this length, in large steps; the contents are kept."""
        known = self.num_slots
        if num_slots > known:
            num_slots = max(num_slots, min(-(-max(num_slots, known * 3 // 2) // 8) * 8, self.max_num_slots))
        self._lay_out(max(num_slots, known), self._grown(length))

    def _grown(self, length: int) -> int:
        """Returns the slot length for this many tokens. It grows by at least 50 % each time, so that growing is rare."""
        return self.length if length <= self.length else -(-max(length, self.length * 3 // 2) // 64) * 64

    def _lay_out(self, num_slots: int, length: int) -> None:
        if (num_slots, length) == (self.num_slots, self.length):
            return
        self.num_slots, self.length = num_slots, length
        self.num_layouts += 1
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (self._resized(keys), self._resized(values))

    def _resized(self, old: Tensor) -> Tensor:
        new = _zeros((self.num_rows, old.shape[1], self.length, old.shape[3]), old)
        num_rows = min(len(old), len(new))
        new[:num_rows, :, : old.shape[2]] = old[:num_rows]
        return new

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the keys and values of one layer, allocated for `key` and `value` `[T, kv_heads, head_dim]` at first use."""
        if index not in self._layers:
            key_shape, value_shape = (
                (self.num_rows, each.shape[1], self.length, each.shape[2]) for each in (key, value)
            )
            self._layers[index] = _zeros(key_shape, key), _zeros(value_shape, value)
        return self._layers[index]

    @property
    def num_rows(self) -> int:
        """Number of slots, including the spare one."""
        return self.num_slots + self.has_spare

    @property
    def num_bytes(self) -> int:
        """Current memory of keys and values, in bytes."""
        return self.num_bytes_per_token * self.num_rows * self.length

    @property
    def num_bytes_per_token(self) -> int:
        """Memory per token over all layers; 0 before the first forward pass."""
        return sum(2 * keys.shape[1] * keys.shape[3] * keys.element_size() for keys, _ in self._layers.values())

    def clear(self) -> None:
        """Releases all memory."""
        self.num_slots = self.length = 0
        self.num_layouts += 1
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (keys[:0, :, :0].clone(), values[:0, :, :0].clone())

    @torch.inference_mode()
    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copies the first `num_tokens` of one slot to another."""
        self._lay_out(max(source + 1, target + 1, self.num_slots), max(num_tokens, self.length))
        for keys, values in self._layers.values():
            keys[target, :, :num_tokens] = keys[source, :, :num_tokens]
            values[target, :, :num_tokens] = values[source, :, :num_tokens]


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Returns zeros: positions after a sequence's end are masked, but NaNs there would still spread.

    On the CPU they are numpy's zeros, which take memory only when they are written.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    num_bytes = math.prod(shape) * like.element_size()
    room = np.zeros(num_bytes + LINE_BYTES, dtype=np.uint8)
    start = -room.ctypes.data % LINE_BYTES
    return torch.from_numpy(room[start : start + num_bytes]).view(like.dtype).view(shape)


class Slots:
    """Slots for up to `max_num_slots` episodes. Low numbers are assigned first, which keeps running sequences together.

    Does not use tensors: it only lists the copies.
    """

    def __init__(self, max_num_slots: int) -> None:
        self.max_num_slots = max_num_slots
        self.num_evicted = 0
        self._slot_of: dict[int, int] = {}
        """Episode to slot, least recently used first."""
        self._episode_in: list[int | None] = []
        self._tokens: list[Sequence[int]] = []
        """Tokens in each slot, also after its episode has left."""
        self._last_used: dict[int, float] = {}

    def __contains__(self, episode: int) -> bool:
        return episode in self._slot_of

    def __len__(self) -> int:
        return len(self._episode_in)

    def slot(self, episode: int) -> int:
        return self._slot_of[episode]

    def acquire(self, episode: int, token_ids: Sequence[int], busy: AbstractSet[int], *, unused_since: float) -> bool:
        """Assigns a slot to the episode: its own, a free one (preferably with a prefix of `token_ids`), a new one, or that of
        the least recently used episode that is not busy and was unused since `unused_since`. Returns False if there is none.
        """
        if episode in self._slot_of:
            return True
        free = [slot for slot, holder in enumerate(self._episode_in) if holder is None]
        if free:
            slot, num_left, wanted = free[0], 0, tuple(token_ids)
            for each in free:
                if common := num_common(self._tokens[each], wanted, more_than=max(num_left, MIN_SHARED_TOKENS - 1)):
                    slot, num_left = each, common
            if not num_left:
                self._tokens[slot] = ()
        elif len(self._episode_in) < self.max_num_slots:
            slot = len(self._episode_in)
            self._episode_in.append(None)
            self._tokens.append(())
        else:
            idle = next((other for other in self._slot_of if other not in busy), None)
            if idle is None or self._last_used[idle] > unused_since:
                return False
            slot = self._slot_of[idle]
            self.release(idle)
            self.num_evicted += 1
        self._slot_of[episode], self._episode_in[slot] = slot, episode
        return True

    def release(self, episode: int, *, keep_tokens: bool = False) -> None:
        """Frees the episode's slot, if it has one. With `keep_tokens` its contents may serve sequences with the same prefix."""
        slot = self._slot_of.pop(episode, None)
        if slot is not None:
            self._episode_in[slot] = None
            self._last_used.pop(episode, None)
            if not keep_tokens:
                self._tokens[slot] = ()

    def clear(self) -> None:
        """Removes all slots."""
        self._slot_of.clear()
        self._episode_in.clear()
        self._tokens.clear()
        self._last_used.clear()

    def num_cached(self, episode: int, token_ids: Sequence[int]) -> int:
        """Returns the length of the prefix in the episode's slot, without the last token, whose logits are needed."""
        return num_common(self._tokens[self._slot_of[episode]], token_ids[:-1])

    def find_prefix(
        self, token_ids: Sequence[int], *, longer_than: int, outside: Iterable[int]
    ) -> tuple[int, int] | None:
        """Returns the slot with the longest prefix (without the last token) and its length; the lowest slot among equals.

        Returns None if no prefix is longer than `longer_than`. Slots of the episodes `outside` are excluded.
        """
        wanted = tuple(token_ids[:-1])
        if longer_than >= len(wanted):
            return None
        hidden = {self._slot_of[episode] for episode in outside if episode in self._slot_of}
        best, length = None, longer_than
        for slot, tokens in enumerate(self._tokens):
            if len(tokens) <= length or slot in hidden or tokens[length] != wanted[length]:
                continue
            if common := num_common(tokens, wanted, more_than=length):
                best, length = slot, common
            if length == len(wanted):
                break
        return None if best is None else (best, length)

    def set_tokens(self, episode: int, token_ids: Sequence[int], *, now: float) -> None:
        """Records the tokens in the episode's slot, and marks it as most recently used."""
        self._tokens[self._slot_of[episode]] = tuple(token_ids)
        self._last_used[episode] = now
        self._slot_of[episode] = self._slot_of.pop(episode)

    def forget_tokens(self) -> None:
        """Invalidates all contents; the episodes keep their slots."""
        self._tokens = [() for _ in self._tokens]

    def compact(self, num_running_tokens: Mapping[int, int]) -> list[tuple[int, int, int]]:
        """Moves running episodes to lower slots if more than a fifth of the slots below the highest one are idle.

        Args:
            num_running_tokens: running episode to its number of cached tokens.

        Returns:
            (source, target, number of tokens) of each copy, in order. The slot after the last one is used as scratch.
        """
        running_slots = {self._slot_of[episode] for episode in num_running_tokens}
        num_running = len(running_slots)
        if not running_slots or max(running_slots) < num_running + num_running // 4 + 4:
            return []
        copies: list[tuple[int, int, int]] = []
        scratch = len(self._episode_in)
        holes = [slot for slot in range(num_running) if slot not in running_slots]
        outside = sorted(slot for slot in running_slots if slot >= num_running)
        for source, target in zip(outside, holes, strict=True):
            mover, idle = self._episode_in[source], self._episode_in[target]
            assert mover is not None
            if idle is None:
                copies.append((source, target, num_running_tokens[mover]))
                self._tokens[target] = ()
            else:
                num_idle_tokens = len(self._tokens[target])
                copies += [
                    (target, scratch, num_idle_tokens),
                    (source, target, num_running_tokens[mover]),
                    (scratch, source, num_idle_tokens),
                ]
                self._slot_of[idle] = source
            self._episode_in[source], self._episode_in[target] = idle, mover
            self._tokens[source], self._tokens[target] = self._tokens[target], self._tokens[source]
            self._slot_of[mover] = target
        return copies


def num_common(some: Sequence[int], others: Sequence[int], *, more_than: int = 0) -> int:
    """Returns the length of the common prefix, or 0 if it is not longer than `more_than`.

    Compares the required part first, because most sequences differ early, then the rest by bisection.

    >>> num_common((1, 2, 3, 9), [1, 2, 3, 4, 5])
    3
    """
    low, high, least = 0, min(len(some), len(others)), more_than + 1
    if high < least or some[more_than] != others[more_than] or tuple(some[:least]) != tuple(others[:least]):
        return 0
    some, others = tuple(some[:high]), tuple(others[:high])
    if some == others:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if some[low:middle] == others[low:middle]:
            low = middle
        else:
            high = middle
    return low if low > more_than else 0
