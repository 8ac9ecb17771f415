"""Trains a critic separately from its policy: scores and learns only values, on the same batches as the policy's learner.

`ActorCriticLearner` combines it with the policy's learner.
"""

from __future__ import annotations

import torch
from torch import Tensor

from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.distributed.process_group import ProcessGroup
from midthought.learning.learner import Learner
from midthought.learning.lr_schedule import NO_END, TrainingSchedule
from midthought.learning.model import Critic
from midthought.learning.passes import fill


class CriticLearner(Learner):
    """Learner of a critic with its own trunk. `score` fills in `values`; `update` reports `value_loss` and related metrics."""

    def __init__(
        self,
        critic: Critic,
        training: TrainingConfig,
        schedule: TrainingSchedule = NO_END,
        process_group: ProcessGroup | None = None,
    ) -> None:
        """Raises ValueError for a critic that shares the policy's trunk, because it learns with its policy."""
        if critic.is_shared:
            raise ValueError("a shared critic has no trunk of its own: it learns with its policy")
        super().__init__(None, critic, None, training, schedule, process_group)
        self._values = critic.token_values

    @torch.no_grad()
    def score(self, batch: TokenBatch) -> tuple[TokenBatch, dict[str, float]]:
        """Fills in `values`; there are no metrics."""
        values = self._passes.fitting(lambda: self._token_values(batch))
        self.process_group.sum({"values": values})
        return batch.with_fields(values=values), {}

    def _token_values(self, batch: TokenBatch) -> Tensor:
        values = torch.zeros(batch.num_tokens)
        with self._passes.context():
            for rows, is_own, micro in self._passes.over(batch):
                fill(values, batch, rows, self._values(micro, packed=self.is_packed), is_own)
        return values

    def _ppo_losses(self, micro: TokenBatch, num_tokens: int, *, denominator: float) -> dict[str, Tensor]:
        return self._value_losses(micro, num_tokens)

    def _sft_losses(self, micro: TokenBatch, num_tokens: int) -> dict[str, Tensor]:
        raise ValueError("a critic learns nothing from demonstrations: that is for its policy's learner")
