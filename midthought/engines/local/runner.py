"""Runs a model's forward pass for the engine: next-token logits of many sequences, with a slotted cache or without a cache.

Does not depend on episodes. The caller's model is shared: its tensors are read in place, its modules are not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from midthought.engines.local.cuda_graphs import NUMBERS_OF_TOKENS, NewTokens, Record, StepRecorder
from midthought.engines.local.decoder import Decoder
from midthought.engines.local.device import to_device
from midthought.engines.local.kv_cache import SlotCache
from midthought.engines.local.slot_attention import ATTENTION_NAME
from midthought.engines.local.slot_batch import Group, RowGroup, SlotBatch


class Row(NamedTuple):
    """One sequence of a forward pass: all of its token ids, the number of cached ones, and its slot."""

    token_ids: Sequence[int]
    num_cached: int
    slot: int


MAX_RECOMPUTED_TOKENS = 16_384
"""Of a pass without a cache, padding included."""
TokenIds = Sequence[int] | Tensor
"""The next token of each of `n` rows; a tensor `[n]` is on the model's device."""
Steps = Callable[[TokenIds], Tensor]
"""Continues the same `n` rows: takes the next token of each, and returns the `[n, V]` logits after these tokens."""


def share_tensors(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a second module tree over the same parameters and buffers, in eval mode.

    The learner may switch its own tree to train mode or set hooks; in-place updates of the weights take effect here.
    """
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    return twin.eval()


def shares_tensors(model: PreTrainedModel, twin: PreTrainedModel) -> bool:
    """True if both have the same parameter objects, in the same order."""
    return [id(tensor) for tensor in model.parameters()] == [id(tensor) for tensor in twin.parameters()]


class CachedRunner:
    """Computes only new tokens; keys and values of earlier tokens are read from their slots, in place."""

    keeps_cache = True
    """False: every row is computed from its first token; `num_cached` and slots are ignored, and there is no `steps`."""

    def __init__(self, model: PreTrainedModel, *, decoder: Decoder | None = None) -> None:
        """`decoder`: replaces the model's own forward pass."""
        self.cache = SlotCache()
        self._decoder = decoder
        self._recorder: StepRecorder | None = None
        self._tensors: list[Tensor] = []
        """All tensors of the model; listing them anew takes milliseconds."""
        self.model = model
        self.model.config._attn_implementation = ATTENTION_NAME

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row], *, room_for: int = 0, groups: Sequence[Group] = ()) -> Tensor:
        """Returns logits `[n, V]` after the last token of each row, valid until the next pass. Every row has at least one new
        token.

        `room_for`: length of coming sequences, in tokens, for which the cache is enlarged now. `groups`: rows with a common
        prefix, if all rows are in the order of their slots.
        """
        singles = [row for row in rows if len(row.token_ids) - row.num_cached == 1]
        token_ids = [own_ids[-1] for own_ids, _, _ in singles]
        positions = [num_cached for _, num_cached, _ in singles]
        slots = [slot for _, _, slot in singles]
        several, columns = _lay_behind(rows, token_ids, positions, slots) if len(singles) < len(rows) else ([], [])
        self.cache.reserve(max(slots) + 1, max(room_for, max(positions) + 1))
        new, recorder = None, self._recorder
        if several and recorder is not None and len(token_ids) <= NUMBERS_OF_TOKENS[-1]:
            new = NewTokens(token_ids, np.array(positions), np.array(slots), np.array(columns))
            recorder.begin()
            if (replayed := recorder.replay(new)) is not None:
                return replayed
        device = self.model.device
        flat_positions = _tensor(positions, device)
        batch = self._batch(singles, flat_positions[: len(singles)], several, groups)
        last = _tensor(columns, device) if several else None
        logits = self._compute(_tensor(token_ids, device), flat_positions, batch, last)
        if new is not None and recorder is not None:
            recorder.consider(new, logits)
        return logits

    def record_steps(self, new_record: Callable[[], Record], *, tolerance: float) -> None:
        """Enables recording and replaying of the passes of `steps`, and of passes of `forward` with few tokens. Call it before
        the first pass.

        `new_record`: as in `StepRecorder`.
        `tolerance`: maximum expected |Δ log-probability| between a recorded and an ordinary pass, in nats.
        """
        assert not self.cache.num_slots
        self._tensors = [*self.model.parameters(), *self.model.buffers()]
        self._recorder = StepRecorder(
            self.cache,
            self._compute,
            self._addresses,
            new_record,
            device=self.model.device,
            tolerance=tolerance,
            reads_all_keys=self._decoder is None or not self._decoder.reads_own_keys,
        )

    def _addresses(self) -> list[int]:
        """Returns the addresses of the weights and of their copies."""
        copies = [] if self._decoder is None else self._decoder.copies.addresses()
        return [*(tensor.data_ptr() for tensor in self._tensors), *copies]

    @torch.inference_mode()
    def steps(self, rows: Sequence[Row], *, groups: Sequence[Group] = ()) -> Steps:
        """Returns a function that continues rows by one token per call. All but the last token of each row must be cached;
        the first call takes that last token.

        The function is valid until other code writes into the rows' slots, moves them or changes the weights.
        """
        device, recorder = self.model.device, self._recorder
        slots, positions = np.array([row.slot for row in rows]), np.array([row.num_cached for row in rows])
        num_slots, longest = int(slots.max()) + 1, int(positions.max())
        batch: SlotBatch | None = None
        if recorder is not None:
            recorder.begin()

        @torch.inference_mode()
        def step(token_ids: TokenIds) -> Tensor:
            nonlocal batch, longest
            longest += 1
            self.cache.reserve(num_slots, longest)
            new = NewTokens(token_ids, positions, slots)
            logits = None if recorder is None else recorder.replay(new)
            if logits is not None:
                batch = None
            else:
                if batch is None:
                    now = [row._replace(num_cached=int(each)) for row, each in zip(rows, positions, strict=True)]
                    batch = self._batch(now, _tensor(positions, device), [], groups)
                else:
                    batch.advance()
                logits = self._compute(_tensor(token_ids, device), batch.positions, batch, None)
                if recorder is not None:
                    recorder.consider(new, logits)
            positions[:] += 1
            return logits

        return step

    def _batch(
        self, singles: Sequence[Row], positions: Tensor, several: Sequence[RowGroup], groups: Sequence[Group]
    ) -> SlotBatch:
        """`positions`: positions of the singles' new tokens."""
        slots = [row.slot for row in singles]
        numbers_cached = [row.num_cached for row in singles]
        length = max(numbers_cached, default=-1) + 1
        in_place = bool(slots) and max(slots) < 2 * len(slots) + 8
        is_ordered = in_place and slots == list(range(len(slots)))
        return SlotBatch(
            cache=self.cache,
            slots=_tensor(slots, self.model.device),
            positions=positions,
            length=length,
            span=max(slots) + 1 if in_place else None,
            ordered=is_ordered,
            is_level=len(set(numbers_cached)) == 1,
            several=several,
            longest=max(length, *(row.length for row in several), 1),
            groups=groups if is_ordered and not several else (),
        )

    def _compute(self, ids: Tensor, positions: Tensor, batch: SlotBatch, columns: Tensor | None) -> Tensor:
        """Returns logits `[n, V]` after the tokens at the indices `columns`; None: after all."""
        if self._decoder is not None:
            return self._decoder(ids, positions, batch, columns)
        output = self.model(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=0 if columns is None else columns,
            slot_batch=batch,
        )
        return output.logits[0]

    def update_weights(self) -> None:
        """Call it after the shared tensors were changed in place."""
        if self._decoder is not None:
            self._decoder.copies.forget()

    def clear(self) -> None:
        """Releases the memory of keys and values."""
        self.cache.clear()
        if self._recorder is not None:
            self._recorder.clear()


class RecomputingRunner:
    """Computes every row from its first token: slow, but correct for any causal model."""

    keeps_cache = False

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.cache = SlotCache()

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row], *, room_for: int = 0, groups: Sequence[Group] = ()) -> Tensor:
        """Returns logits `[n, V]` after the last token of each row, computed in chunks of a limited number of tokens."""
        rows_per_chunk = max(1, MAX_RECOMPUTED_TOKENS // max(len(row.token_ids) for row in rows))
        chunks = [rows[start : start + rows_per_chunk] for start in range(0, len(rows), rows_per_chunk)]
        return torch.cat([self._forward_chunk(chunk) for chunk in chunks])

    def _forward_chunk(self, rows: Sequence[Row]) -> Tensor:
        """Pads on the right: causal models, including recurrent ones, never read the padding."""
        lengths = [len(row.token_ids) for row in rows]
        padded = [[*row.token_ids, *[0] * (max(lengths) - len(row.token_ids))] for row in rows]
        last = sorted(set(lengths))
        output = self.model(
            input_ids=torch.tensor(padded, device=self.model.device),
            use_cache=False,
            logits_to_keep=torch.tensor([length - 1 for length in last], device=self.model.device),
        )
        kept = last if output.logits.shape[1] == len(last) else range(1, max(last) + 1)  # xLSTM keeps all
        return output.logits[torch.arange(len(rows)), [kept.index(length) for length in lengths]]

    def update_weights(self) -> None:
        """Does nothing: the weights are read in place."""

    def clear(self) -> None:
        """Does nothing: the cache has no tensors."""


Runner = CachedRunner | RecomputingRunner
"""Computes the logits of each row's next token."""


def _tensor(numbers: TokenIds | np.ndarray, device: torch.device) -> Tensor:
    """Returns `[n]` int64; a tensor unchanged. Uses numpy, which reads lists several times faster."""
    if isinstance(numbers, Tensor):
        return numbers
    return to_device(np.array(numbers, dtype=np.int64), device)


def _lay_behind(
    rows: Sequence[Row], token_ids: list[int], positions: list[int], slots: list[int]
) -> tuple[list[RowGroup], list[int]]:
    """Appends the new tokens of rows with several new tokens after the singles' tokens. Returns the row groups, and the
    index of each row's last token."""
    several: list[RowGroup] = []
    columns: list[int] = []
    num_singles = 0
    for own_ids, num_cached, slot in rows:
        if len(own_ids) - num_cached == 1:
            columns.append(num_singles)
            num_singles += 1
            continue
        start = len(token_ids)
        token_ids += own_ids[num_cached:]
        positions += range(num_cached, len(own_ids))
        slots += [slot] * (len(own_ids) - num_cached)
        columns.append(len(token_ids) - 1)
        row = RowGroup(start, len(token_ids), slot, num_cached)
        if several and (joined := several[-1].joined(row)):
            several[-1] = joined
        else:
            several.append(row)
    return several, columns
