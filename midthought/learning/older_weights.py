"""Copies of the weights of the last updates, with which the tokens that they sampled are checked (`training.max_staleness`).

Log-probabilities of a token that an older version sampled differ from those of the current version anyway, so only those under
its own version show whether the token carries the right label, and whether the engine had that version's weights.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import torch
from torch import Tensor

from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.passes import LearnerPasses

MAX_TOKENS = 512
"""Number of older tokens after which no further row is computed again."""
GIB = 2**30
_log = logging.getLogger(__name__)


class OlderWeights:
    """The trained weights before each of the last `max_staleness` updates, if they fit into `training.kept_weights_gib`."""

    def __init__(self, policy: Any, training: TrainingConfig) -> None:
        self._weights = {name: value for name, value in policy.named_parameters() if value.requires_grad}
        self._copies: deque[dict[str, Tensor]] = deque(maxlen=training.max_staleness)
        needed = training.max_staleness * sum(value.nbytes for value in self._weights.values()) / GIB
        if needed > training.kept_weights_gib:
            self._copies = deque(maxlen=0)
            _log.warning(
                "tokens of older versions are not checked: %d copies of the trained weights take %.3g GiB, and "
                "training.kept_weights_gib=%g",
                training.max_staleness, needed, training.kept_weights_gib,
            )  # fmt: skip

    @torch.no_grad()
    def keep(self) -> None:
        """Copies the current weights into main memory. Call it once for each version, before its update."""
        if self._copies.maxlen:
            self._copies.append({name: value.detach().to("cpu", copy=True) for name, value in self._weights.items()})

    def clear(self) -> None:
        """Forgets the copies, because other weights were loaded."""
        self._copies.clear()

    @torch.no_grad()
    def differences(self, policy: Any, batch: TokenBatch, passes: LearnerPasses) -> Tensor:
        """Returns |recomputed − sampled| log-probabilities of older tokens under their own versions, of whole rows until there
        are `MAX_TOKENS`: [K], K = 0 if there is none. Call it before `keep`."""
        found = [torch.zeros(0)]
        ages = batch.ages
        for age, weights in enumerate(reversed(self._copies), start=1):
            is_own = batch.loss_mask & (ages == age) if ages is not None else torch.zeros_like(batch.loss_mask)
            per_row = batch.padded(is_own.long()).sum(1)
            rows = per_row.nonzero()[:, 0]
            needed = int((per_row[rows].cumsum(0) < MAX_TOKENS / len(self._copies)).sum()) + 1
            if not len(rows):
                continue
            part = batch.select(rows[:needed])
            with passes.context():
                recomputed = self._under(weights, policy, part, passes)
            mask = is_own[batch.tokens_of(rows[:needed])]
            found.append((recomputed - part.sampled_logprobs)[mask].abs())
        return torch.cat(found)

    def _under(self, weights: dict[str, Tensor], policy: Any, batch: TokenBatch, passes: LearnerPasses) -> Tensor:
        """Returns the log-probabilities with other weights in the policy."""
        current = {name: value.data for name, value in self._weights.items()}
        try:
            for name, value in self._weights.items():
                value.data = weights[name].to(value.device)
            return passes.logprobs(policy, batch)
        finally:
            for name, value in self._weights.items():
                value.data = current[name]
