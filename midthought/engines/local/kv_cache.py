"""KV cache with slots, one sequence per slot. Does not depend on episodes or sampling."""

from __future__ import annotations

import math
import sys

import numpy as np
import torch

LINE_BYTES = 64
"""Size of a CPU cache line; aligned memory is read faster."""


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
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

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

    def _resized(self, old: torch.Tensor) -> torch.Tensor:
        new = _zeros((self.num_rows, old.shape[1], self.length, old.shape[3]), old)
        num_rows = min(len(old), len(new))
        new[:num_rows, :, : old.shape[2]] = old[:num_rows]
        return new

    def layer(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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


def _zeros(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Returns zeros: positions after a sequence's end are masked, but NaNs there would still spread.

    On the CPU they are numpy's zeros, which take memory only when they are written.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    num_bytes = math.prod(shape) * like.element_size()
    room = np.zeros(num_bytes + LINE_BYTES, dtype=np.uint8)
    start = -room.ctypes.data % LINE_BYTES
    return torch.from_numpy(room[start : start + num_bytes]).view(like.dtype).view(shape)
