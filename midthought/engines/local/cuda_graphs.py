"""Records decoding passes as CUDA graphs and replays them: on a GPU, launching operations takes longer than running them.

A recording repeats the same operations on the same memory, for a fixed number of rows and keys. Before it is used, its
result is compared with an ordinary pass; if they differ, recording stops.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from midthought.engines.local.device_memory import to_device
from midthought.engines.local.float32_reference import expected_difference
from midthought.engines.local.kv_cache import SlotCache
from midthought.engines.local.slot_batch import SlotBatch

MIN_PASSES = 8
"""A size is recorded after this many passes of it."""
KEYS_PER_STEP = 256
"""The number of attended keys is rounded up to a multiple of this."""

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


class _Recording:
    """A recorded pass of rows `0:num_rows`, row i in slot i, over keys `0:length`.

    A row without a sequence writes into the cache's spare slot, and its logits are ignored.
    """

    def __init__(
        self, cache: SlotCache, num_rows: int, length: int, device: torch.device, compute: Callable[..., Tensor]
    ) -> None:
        self._spare = cache.num_slots
        self._inputs = torch.zeros(3, num_rows, dtype=torch.int64, device=device)
        self._inputs[2] = self._spare
        token_ids, positions, slots = self._inputs
        batch = SlotBatch(
            cache=cache,
            slots=slots,
            positions=positions,
            length=length,
            span=num_rows,
            ordered=True,
            is_level=False,
            several=(),
            longest=cache.length,
            num_advances=1,
        )

        def compute_all() -> Tensor:
            batch.forget_positions()
            return compute(token_ids, positions, batch, None)

        self._replay = compute_all

    def record(self, record: Record) -> None:
        self._replay = record(self._replay)

    def __call__(self, token_ids: Sequence[int] | Tensor, positions: np.ndarray, slots: np.ndarray) -> Tensor:
        inputs = np.zeros(self._inputs.shape, dtype=np.int64)
        inputs[2] = self._spare
        inputs[1:, slots] = positions, slots
        if not isinstance(token_ids, Tensor):
            inputs[0, slots] = token_ids
        self._inputs.copy_(to_device(inputs, self._inputs.device))
        is_ordered = (slots == np.arange(len(slots))).all()
        rows = slice(len(slots)) if is_ordered else to_device(slots, self._inputs.device)
        if isinstance(token_ids, Tensor):
            self._inputs[0, rows] = token_ids
        return self._replay()[rows]


class StepRecorder:
    """Replays decoding passes (one new token per row) if a pass of the same size is recorded.

    Args:
        compute: returns the logits for `(token_ids, positions, batch, None)`.
        addresses: returns the addresses of everything that a pass reads besides the cache.
        new_record: returns a function that records; called again after all recordings were discarded.
        tolerance: maximum expected |Δ log-probability| of a token, in nats, between a recorded and an ordinary pass.
        reads_all_keys: attention reads as many keys as a pass is recorded for, and masks the others. If it reads each row's own
            keys only, one recording is for all lengths.
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
        self._recordings: dict[tuple[int, int], _Recording] = {}
        self._num_passes: Counter[tuple[int, int]] = Counter()
        self._known: tuple[int, ...] = ()
        self._layout = cache.num_layouts

    def begin(self) -> None:
        """Call it before the first pass of other rows. Discards the recordings if the weights have moved to other memory."""
        if self._is_on and (addresses := tuple(self._addresses())) != self._known:
            self.clear()
            self._known = addresses

    def replay(self, token_ids: Sequence[int] | Tensor, positions: np.ndarray, slots: np.ndarray) -> Tensor | None:
        """Returns logits `[n, V]` for `n` rows with one new token each; None if no pass of that size is recorded.

        The tensor is valid until the next pass.
        """
        if self._layout != self._cache.num_layouts:
            self.clear()
            self._layout = self._cache.num_layouts
        recording = self._recordings.get(self._size(positions, slots))
        return None if recording is None else recording(token_ids, positions, slots)

    def consider(
        self, token_ids: Sequence[int] | Tensor, positions: np.ndarray, slots: np.ndarray, logits: Tensor
    ) -> None:
        """Counts an ordinary pass that computed these logits, and records a pass of its size if there have been enough."""
        size = self._size(positions, slots)
        self._num_passes[size] += 1
        if not self._is_on or self._num_passes[size] < MIN_PASSES:
            return
        self._record = self._record or self._new_record()
        try:
            recording = _Recording(self._cache, *size, self._device, self._compute)
            recording.record(self._record)
            found = recording(token_ids, positions, slots)
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
        self._recordings.clear()
        self._record = None

    def _give_up(self, reason: str) -> None:
        _log.warning("passes of decoding are not recorded any more, which is slower and as right (%s)", reason)
        self._is_on = False
        self.clear()

    def _size(self, positions: np.ndarray, slots: np.ndarray) -> tuple[int, int]:
        """Returns the numbers of rows (1, 2, 4, 8, then multiples of 8) and keys (multiples of KEYS_PER_STEP, or all), rounded
        up to few sizes."""
        num_rows, length = int(slots.max()) + 1, int(positions.max()) + 1
        num_rows = 1 << (num_rows - 1).bit_length() if num_rows < 8 else -(-num_rows // 8) * 8
        length = -(-length // KEYS_PER_STEP) * KEYS_PER_STEP if self._reads_all_keys else self._cache.length
        return min(num_rows, self._cache.num_slots), min(length, self._cache.length)
