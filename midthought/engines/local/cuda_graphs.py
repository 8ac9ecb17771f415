"""Records passes of few tokens as CUDA graphs and replays them: on a GPU, launching operations takes longer than running them.

A recording repeats the same operations on the same memory, for a fixed number of tokens and keys: one token per row, or in any
rows, as when a tool's result is read while other rows go on. Before it is used, its result is compared with an ordinary pass;
if they differ, recording stops.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from midthought.engines.local.device import to_device
from midthought.engines.local.kv_cache import SlotCache
from midthought.engines.local.sampling import expected_difference
from midthought.engines.local.slot_batch import SlotBatch

MIN_PASSES = 8
"""A size is recorded after this many passes of it."""
MIN_PASSES_OF_SEVERAL = 2
"""The same for rows with several new tokens: an ordinary pass of them takes many times as long."""
MIN_REPLAYS = 8
"""A size that was replayed less often before all recordings were discarded has to occur as often again before it is recorded:
recording takes as long as several ordinary passes, and a learner that needs the cache's memory discards all in each iteration."""
KEYS_PER_STEP = 256
"""The number of attended keys is rounded up to a multiple of this."""
NUMBERS_OF_TOKENS = (32, 64, 128, 256, 512)
"""For which passes of rows with several new tokens are recorded. Longer passes keep a GPU busy."""
MAX_LAST_TOKENS = 128
"""Tokens of such a pass after which logits are computed."""
MAX_KEYS_READ = 2**18
"""By the tokens of rows with several in such a pass. Each of them reads all keys before it; ordinary passes read the keys of a
row once."""

Pass = Callable[[], Tensor]
Record = Callable[[Pass], Pass]
"""Takes a function that computes a pass from tensors at fixed addresses. Returns one that repeats it, always into the same
tensor."""

_log = logging.getLogger(__name__)


def cuda_graphs() -> Record:
    """Returns a function that records CUDA graphs. They share a pool of memory for intermediate results: only the latest result
    is valid. Once all of them are discarded, record others with a new function: PyTorch does not use a pool again."""
    pool, aside = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def record(compute: Pass) -> Pass:
        before = torch.cuda.current_stream()
        aside.wait_stream(before)
        with torch.cuda.stream(aside):
            compute()  # warm-up: the setup of the first call must not be recorded
        before.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                logits = compute()
        except BaseException:
            torch.cuda.set_stream(before)  # PyTorch stays on the stream of a recording that CUDA has ended
            torch.cuda.synchronize()
            raise

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay

    return record


class NewTokens(NamedTuple):
    """The `n` tokens of a pass."""

    token_ids: Sequence[int] | Tensor
    positions: np.ndarray
    slots: np.ndarray
    last: np.ndarray | None = None
    """Index of each row's last token if rows may have several. None: each row has one."""


class _Size(NamedTuple):
    """Of a recording."""

    num_tokens: int
    length: int
    """Of the attended keys."""
    has_several: bool
    """Token i is of any slot, and logits are computed after some tokens. Else it is of slot i."""


class _Recording:
    """A recorded pass over keys `0:length`.

    A token that is not there writes into the cache's spare slot, and its logits are ignored.
    """

    def __init__(self, cache: SlotCache, size: _Size, device: torch.device, compute: Callable[..., Tensor]) -> None:
        num_tokens = size.num_tokens
        self.num_replays = 0
        self._spare = cache.num_slots
        self._inputs = torch.zeros(3, num_tokens, dtype=torch.int64, device=device)
        self._inputs[2] = self._spare
        self._last: Tensor | None = None
        if size.has_several:
            self._last = torch.zeros(min(num_tokens, MAX_LAST_TOKENS), dtype=torch.int64, device=device)
        token_ids, positions, slots = self._inputs
        batch = SlotBatch(
            cache=cache,
            slots=slots,
            positions=positions,
            length=size.length,
            span=None if size.has_several else num_tokens,
            ordered=not size.has_several,
            is_level=False,
            several=(),
            longest=cache.length,
            num_advances=1,
            shares_slots=size.has_several,
        )

        def compute_all() -> Tensor:
            batch.forget_positions()
            return compute(token_ids, positions, batch, self._last)

        self._replay = compute_all

    def record(self, record: Record) -> None:
        self._replay = record(self._replay)

    def __call__(self, new: NewTokens) -> Tensor:
        self.num_replays += 1
        device, num_tokens = self._inputs.device, len(new.slots)
        in_order = self._last is not None or (new.slots == np.arange(num_tokens)).all()
        places = slice(num_tokens) if in_order else new.slots
        inputs = np.zeros(self._inputs.shape, dtype=np.int64)
        inputs[2] = self._spare
        inputs[1:, places] = new.positions, new.slots
        if not isinstance(new.token_ids, Tensor):
            inputs[0, places] = new.token_ids
        self._inputs.copy_(to_device(inputs, device))
        rows = places if in_order else to_device(new.slots, device)
        if isinstance(new.token_ids, Tensor):
            self._inputs[0, rows] = new.token_ids
        if self._last is None or new.last is None:
            return self._replay()[rows]
        last = np.zeros(self._last.shape, dtype=np.int64)
        last[: len(new.last)] = new.last
        self._last.copy_(to_device(last, device))
        return self._replay()[: len(new.last)]


class StepRecorder:
    """Replays passes if one of the same size is recorded.

    Args:
        compute: returns the logits for `(token_ids, positions, batch, columns)`, columns as in `Decoder`.
        addresses: returns the addresses of everything that a pass reads besides the cache.
        new_record: returns a function that records; called again after all recordings were discarded.
        tolerance: maximum expected |Δ log-probability| of a token, in nats, between a recorded and an ordinary pass.
        reads_all_keys: attention reads as many keys as a pass is recorded for, and masks the others. If it reads each row's own
            keys only, one recording is for all lengths, and passes of rows with several new tokens are recorded, too.
    """

    def __init__(
        self,
        cache: SlotCache,
        compute: Callable[..., Tensor],
        addresses: Callable[[], Sequence[int]],
        new_record: Callable[[], Record],
        *,
        device: torch.device,
        tolerance: float,
        reads_all_keys: bool = True,
    ) -> None:
        cache.has_spare = True
        self._cache = cache
        self._compute = compute
        self._addresses = addresses
        self._new_record = new_record
        self._record: Record | None = None
        self._is_on = True
        self._device = device
        self._tolerance = tolerance
        self._reads_all_keys = reads_all_keys
        self._recordings: dict[_Size, _Recording] = {}
        self._refused: set[_Size] = set()
        """There was no memory for them since all recordings were last discarded."""
        self._num_passes: Counter[_Size] = Counter()
        self._known: tuple[int, ...] = ()
        self._layout = cache.num_layouts

    def begin(self) -> None:
        """Call it before the first pass of other rows. Discards the recordings if the weights have moved to other memory."""
        if self._is_on and (addresses := tuple(self._addresses())) != self._known:
            self.clear()
            self._known = addresses

    def replay(self, new: NewTokens) -> Tensor | None:
        """Returns logits `[n, V]` after each token, or after the last one of each row; None if no pass of that size is recorded.

        The tensor is valid until the next pass.
        """
        if self._layout != self._cache.num_layouts:
            self.clear()
            self._layout = self._cache.num_layouts
        size = self._size(new)
        recording = None if size is None else self._recordings.get(size)
        return None if recording is None else recording(new)

    def consider(self, new: NewTokens, logits: Tensor) -> None:
        """Counts an ordinary pass that computed these logits, and records a pass of its size if there have been enough."""
        size = self._size(new)
        if size is None or size in self._refused or not self._is_on:
            return
        self._num_passes[size] += 1
        if self._num_passes[size] < (MIN_PASSES_OF_SEVERAL if size.has_several else MIN_PASSES):
            return
        self._record = self._record or self._new_record()
        try:
            recording = _Recording(self._cache, size, self._device, self._compute)
            recording.record(self._record)
            found = recording(new)
        except torch.OutOfMemoryError:
            self._refused.add(size)
            return
        except RuntimeError as error:
            return self._give_up(f"{type(error).__name__}: {error}".splitlines()[0])
        difference = expected_difference(found, logits.float().log_softmax(-1)).max().item()
        if not difference <= self._tolerance:
            return self._give_up(
                f"log-probabilities were off by {difference:.2g} nats, {self._tolerance:.2g} are accepted"
            )
        self._recordings[size] = recording

    def clear(self) -> None:
        """Discards all recordings and releases their memory."""
        for size, recording in self._recordings.items():
            if recording.num_replays < MIN_REPLAYS:
                del self._num_passes[size]
        self._recordings.clear()
        self._refused.clear()
        self._record = None

    def _give_up(self, reason: str) -> None:
        _log.warning("passes are not recorded any more, which is slower and as right (%s)", reason)
        self._is_on = False
        self.clear()

    def _size(self, new: NewTokens) -> _Size | None:
        """Returns the size of a recording for these tokens; None if there is none.

        Rows with one token each: 1, 2, 4, 8, then multiples of 8, and multiples of KEYS_PER_STEP keys, or all.
        """
        if new.last is not None:
            return self._size_of_several(new, new.last)
        num_rows, length = int(new.slots.max()) + 1, int(new.positions.max()) + 1
        num_rows = 1 << (num_rows - 1).bit_length() if num_rows < 8 else -(-num_rows // 8) * 8
        length = -(-length // KEYS_PER_STEP) * KEYS_PER_STEP if self._reads_all_keys else self._cache.length
        return _Size(min(num_rows, self._cache.num_slots), min(length, self._cache.length), has_several=False)

    def _size_of_several(self, new: NewTokens, last: np.ndarray) -> _Size | None:
        num_tokens = next((number for number in NUMBERS_OF_TOKENS if number >= len(new.slots)), None)
        if num_tokens is None or self._reads_all_keys or len(last) > MAX_LAST_TOKENS:
            return None
        of_several = np.bincount(new.slots)[new.slots] > 1
        reads_few = (new.positions[of_several] + 1).sum() <= MAX_KEYS_READ
        return _Size(num_tokens, self._cache.length, has_several=True) if reads_few else None
