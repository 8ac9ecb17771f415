"""Values of single tokens in an iteration's update, for recording: advantages, log-probabilities, ratios, values, entropies.

Costs nothing unless a caller passes a `LearnedTokens` to `learn`. Does not depend on how the values are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from midthought.learning.batch import TokenBatch
from midthought.learning.forward import TokenOutputs
from midthought.learning.ranks import ProcessGroup
from midthought.types import Trajectory

Array = np.ndarray[Any, Any]


class PassValues:
    """Log-probabilities and entropies of the policy at recorded tokens, as of the latest pass that computed a gradient.

    They stay on the device until `gathered`, so no micro-batch waits for a copy. Slot 0 is written by all other tokens and never
    read.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
        names = ("logprobs", "entropies", "counts")
        self._columns = {name: torch.zeros(num_slots + 1, device=device) for name in names}

    def forget(self, slots: Tensor) -> None:
        """Clears the tokens of an optimizer step, before its passes. Every rank calls it with all tokens of the step, because
        another rank may compute a token's next pass."""
        for column in self._columns.values():
            column[slots.to(column.device)] = 0.0

    def keep(self, slots: Tensor, outputs: TokenOutputs) -> None:
        """Keeps the outputs at a micro-batch's policy tokens; `slots` [n]."""
        assert outputs.entropy is not None
        self._columns["logprobs"][slots] = outputs.logprobs.detach().float()
        self._columns["entropies"][slots] = outputs.entropy.detach().float()
        self._columns["counts"][slots] = 1.0

    def gathered(self, process_group: ProcessGroup) -> dict[str, Tensor]:
        """Returns `logprobs`, `entropies` and `counts` (1 if the token was in a pass, else 0) of all ranks, in main memory: each
        [slots + 1]."""
        process_group.sum(self._columns)
        return {name: column.cpu() for name, column in self._columns.items()}


class LearnedTokens:
    """What an update computed for each token of some trajectories. `learn` fills it; `of` reads it."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        self._first_slots: dict[int, list[int]] = {}
        self._trajectories = list(trajectories)  # keeps their ids valid
        end = 1
        for trajectory in self._trajectories:
            lengths = [len(segment.token_ids) for segment in trajectory.segments]
            self._first_slots[id(trajectory)] = [end + sum(lengths[:number]) for number in range(len(lengths))]
            end += sum(lengths)
        self._num_slots = end
        self._columns: dict[str, Array] = {}

    def slots(self, trajectories: Sequence[Trajectory]) -> dict[tuple[int, int], int]:
        """Returns the slot of the first token of each (index of a trajectory in this list, segment) that is recorded."""
        return {
            (index, number): first
            for index, trajectory in enumerate(trajectories)
            for number, first in enumerate(self._first_slots.get(id(trajectory), ()))
        }

    def fill(self, batch: TokenBatch, passes: Mapping[str, Tensor]) -> None:
        """Takes the values of a credited batch and of the update's passes (`Learner.pass_values`).

        `ratios` are `exp(log π - log π_old)` in a token's latest pass: 1 if the first step of an update was its only one.
        """
        assert batch.slots is not None
        is_recorded = batch.loss_mask & (batch.slots > 0)
        slots = batch.slots[is_recorded]
        self._put("in_loss", slots, torch.ones(len(slots)))
        for name, values in (
            ("logprobs", batch.old_logprobs),
            ("reference_logprobs", batch.reference_logprobs),
            ("advantages", batch.advantages),
            ("values", batch.values),
        ):
            if values is not None:
                self._put(name, slots, values[is_recorded])
        if passes and batch.old_logprobs is not None:
            is_known = passes["counts"][slots] > 0
            passed = slots[is_known]
            self._put("ratios", passed, (passes["logprobs"][passed] - batch.old_logprobs[is_recorded][is_known]).exp())
            self._put("entropies", passed, passes["entropies"][passed])

    def _put(self, name: str, slots: Tensor, values: Tensor) -> None:
        column = np.full(self._num_slots, np.nan, dtype=np.float32)
        column[slots.numpy()] = values.float().numpy()
        self._columns[name] = column

    def of(self, trajectory: Trajectory) -> list[dict[str, Array]]:
        """Returns the columns of each segment: `in_loss` (1, or NaN), `logprobs` (recomputed before the update),
        `reference_logprobs`, `advantages`, `values`, `ratios`, `entropies`: each [T] float32, NaN if a token has none.

        Columns that were not computed are missing; all are if the trajectory was not trained on.
        """
        firsts = self._first_slots.get(id(trajectory), [])
        return [
            {name: column[first : first + len(segment.token_ids)] for name, column in self._columns.items()}
            for first, segment in zip(firsts, trajectory.segments, strict=False)
        ]
