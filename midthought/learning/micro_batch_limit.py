"""Size of micro-batches after running out of memory: repeats a computation with half the size. Computes nothing itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from midthought.errors import SettingsError
from midthought.learning.batch import TokenBatch

Result = TypeVar("Result")
_log = logging.getLogger(__name__)
REMEDY = "set training.gradient_checkpointing=true, a smaller training.logits_mib or inference.max_tokens, or model.lora_rank=32"


class MicroBatchLimit:
    """Halves micro-batches if a computation runs out of memory, and keeps the smaller size for the rest of the run."""

    def __init__(self, *, is_alone: bool) -> None:
        self._is_alone = is_alone
        self._divisor = 1
        self._num_unreported = 0
        self.current: TokenBatch | None = None
        """The micro-batch that is computed now; None between computations."""

    def max_tokens(self, wanted: int) -> int:
        """Returns the maximum tokens of a micro-batch for the setting `wanted`."""
        return max(1, wanted // self._divisor)

    def metrics(self) -> dict[str, float]:
        """Returns `num_halved_micro_batches` since the last call; empty if it is 0."""
        number, self._num_unreported = self._num_unreported, 0
        return {"num_halved_micro_batches": float(number)} if number else {}

    def fitting(self, wanted: int, compute: Callable[[], Result]) -> Result:
        """Returns `compute()`. If it runs out of memory, repeats all of it with smaller micro-batches, which it must reread.

        Raises `SettingsError` if a single row does not fit. Also raises it with several ranks, because the others wait for this
        rank in the middle of a pass. Raises torch's error if memory runs out outside of a micro-batch (`current`).
        """
        while True:
            try:
                result = compute()
                self.current = None
                return result
            except torch.OutOfMemoryError as error:
                if self.current is None:
                    raise
                reason = str(error).partition("\n")[0][:200]
            self._halve(wanted, reason)

    def _halve(self, wanted: int, reason: str) -> None:
        """Runs after the exception is released, because its traceback holds the tensors of the failed pass."""
        before = self.max_tokens(wanted)
        assert self.current is not None
        lengths = self.current.lengths.tolist()
        self.current = None
        if not self._is_alone:
            raise SettingsError(
                f"a rank ran out of memory while learning from a micro-batch of {sum(lengths)} tokens; several ranks cannot "
                f"repeat a step: set training.micro_batch_tokens={max(64, before // 2)} and resume the run ({reason})"
            )
        if len(lengths) == 1:
            raise SettingsError(
                f"out of memory while learning from a row of {sum(lengths)} tokens; it cannot be split: {REMEDY} ({reason})"
            )
        self._divisor *= 2
        self._num_unreported += 1
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        after = self.max_tokens(wanted)
        _log.warning(
            "Out of memory while learning: micro-batches have at most %d tokens from now on, before %d. The step is repeated and "
            "the result does not change; to avoid the repetition set training.micro_batch_tokens=%d",
            after,
            before,
            after,
        )
