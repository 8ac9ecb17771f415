"""Combines a policy's learner and a critic's learner, which run at the same time, into one learner for the training loop.

Does not depend on processes or a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor

from midthought.algo.kl import KLController
from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.credit import credit_batch
from midthought.learning.critic_learner import CriticLearner
from midthought.learning.distributed.remote_learner import RemoteLearner
from midthought.learning.learner import Learner
from midthought.learning.lr_schedule import TrainingSchedule
from midthought.learning.model import Critic

SKIPPED = "num_skipped_steps"


class ActorCriticLearner:
    """A policy's learner and a critic's learner that score and update in parallel, behind the interface of one learner."""

    def __init__(self, policy: Learner | RemoteLearner, critic: CriticLearner | RemoteLearner) -> None:
        self._of_policy, self._of_critic = policy, critic
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="midthought-learner")

    @property
    def policy(self) -> Any:
        return self._of_policy.policy

    @property
    def critic(self) -> Critic | None:
        """The critic with its current weights."""
        return self._of_critic.critic

    @property
    def training(self) -> TrainingConfig:
        """The settings of the next step."""
        return self._of_policy.training

    def set_training(self, training: TrainingConfig, schedule: TrainingSchedule) -> None:
        """See `Learner.set_training`."""
        self._of_policy.set_training(training, schedule)
        self._of_critic.set_training(training, schedule)

    @property
    def kl_controller(self) -> KLController:
        return self._of_policy.kl_controller

    @property
    def device(self) -> torch.device:
        return self._of_policy.device

    @property
    def num_steps(self) -> int:
        """Optimizer steps that each of the two learners has taken."""
        return self._of_policy.num_steps

    @property
    def learning_rate(self) -> float:
        return self._of_policy.learning_rate

    def score(self, batch: TokenBatch) -> tuple[TokenBatch, dict[str, float]]:
        """See `Learner.score`."""
        (scored, metrics), (valued, _) = self._both("score", batch)
        return scored.with_fields(values=valued.values), metrics

    def credit(self, batch: TokenBatch) -> tuple[TokenBatch, dict[str, float]]:
        """See `Learner.credit`."""
        return credit_batch(batch, self.training, self.kl_controller)

    def update(self, batch: TokenBatch, *, critic_only: bool = False) -> dict[str, float]:
        """See `Learner.update`. If one learner skips a step because its gradient is not finite, the other still takes it."""
        of_policy, of_critic = self._both("update", batch, critic_only=critic_only)
        loss = of_policy.get("loss", 0.0) + of_critic["loss"]
        together = {"loss": loss, SKIPPED: of_policy[SKIPPED] + of_critic[SKIPPED]}
        return {**of_critic, **of_policy, **together}

    def pass_values(self) -> dict[str, Tensor]:
        """See `Learner.pass_values`."""
        return self._of_policy.pass_values()

    def sft_step(self, batch: TokenBatch) -> dict[str, float]:
        """See `Learner.sft_step`."""
        return self._of_policy.sft_step(batch)

    def sft_loss(self, batch: TokenBatch) -> float:
        """See `Learner.sft_loss`."""
        return self._of_policy.sft_loss(batch)

    def state_dict(self) -> dict[str, Any]:
        """See `Learner.state_dict`. The format is the same, so a single learner's state can be loaded here and vice versa."""
        state = self._of_policy.state_dict()
        return {**state, "moments": {**state["moments"], **self._of_critic.state_dict()["moments"]}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load_state_dict`."""
        for name, learner in (("policy.", self._of_policy), ("critic.", self._of_critic)):
            moments = {key: tensor for key, tensor in state["moments"].items() if key.startswith(name)}
            learner.load_state_dict({**state, "moments": moments})

    def close(self) -> None:
        """Closes both learners. A second call does nothing."""
        self._of_policy.close()
        self._of_critic.close()
        self._threads.shutdown(cancel_futures=True)

    def _both(self, method: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        """Calls both learners in parallel and returns both results. Raises an exception of one after the other has finished."""
        learners = (self._of_policy, self._of_critic)
        asked = [self._threads.submit(getattr(learner, method), *arguments, **options) for learner in learners]
        wait(asked)
        of_policy, of_critic = (each.result() for each in asked)
        return of_policy, of_critic


AnyLearner = Learner | RemoteLearner | ActorCriticLearner
"""Any learner that the training loop accepts."""
