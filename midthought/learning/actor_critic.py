"""A policy and a critic that learn at the same time, a learner each; one learner for the loop and for checkpoints.

Knows no process and no cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

from midthought.algo.kl import KLController
from midthought.config import TrainingConfig
from midthought.learning.batch import PPOBatch
from midthought.learning.credit import credit_batch
from midthought.learning.critic_learner import CriticLearner
from midthought.learning.distributed.remote_learner import RemoteLearner
from midthought.learning.learner import Learner
from midthought.learning.lr_schedule import TrainingSchedule
from midthought.learning.model import Critic

SKIPPED = "num_skipped_steps"


class ActorCriticLearner:
    """A policy's learner and a critic's, which score and update at the same time; one learner for everything else."""

    def __init__(self, policy: Learner | RemoteLearner, critic: CriticLearner | RemoteLearner) -> None:
        self._of_policy, self._of_critic = policy, critic
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="midthought-learner")

    @property
    def policy(self) -> Any:
        return self._of_policy.policy

    @property
    def critic(self) -> Critic | None:
        """With the weights that it has now."""
        return self._of_critic.critic

    @property
    def training(self) -> TrainingConfig:
        """The settings of the next step."""
        return self._of_policy.training

    def set_training(self, training: TrainingConfig, schedule: TrainingSchedule) -> None:
        """As `Learner.set_training`."""
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
        """Optimizer steps taken, by each of the two."""
        return self._of_policy.num_steps

    @property
    def learning_rate(self) -> float:
        return self._of_policy.learning_rate

    def score(self, batch: PPOBatch) -> tuple[PPOBatch, dict[str, float]]:
        """As `Learner.score`."""
        (scored, figures), (valued, _) = self._both("score", batch)
        return scored.with_fields(values=valued.values), figures

    def credit(self, batch: PPOBatch) -> tuple[PPOBatch, dict[str, float]]:
        """As `Learner.credit`."""
        return credit_batch(batch, self.training, self.kl_controller)

    def update(self, batch: PPOBatch, *, critic_only: bool = False) -> dict[str, float]:
        """As `Learner.update`; a step that one of them skips, for a gradient that is not finite, the other still takes."""
        of_policy, of_critic = self._both("update", batch, critic_only=critic_only)
        loss = of_policy.get("loss", 0.0) + of_critic["loss"]
        together = {"loss": loss, SKIPPED: of_policy[SKIPPED] + of_critic[SKIPPED]}
        return {**of_critic, **of_policy, **together}

    def sft_step(self, batch: PPOBatch) -> dict[str, float]:
        """As `Learner.sft_step`."""
        return self._of_policy.sft_step(batch)

    def sft_loss(self, batch: PPOBatch) -> float:
        """As `Learner.sft_loss`."""
        return self._of_policy.sft_loss(batch)

    def state_dict(self) -> dict[str, Any]:
        """As `Learner.state_dict`: that of one learner goes on here, and the other way round."""
        state = self._of_policy.state_dict()
        return {**state, "moments": {**state["moments"], **self._of_critic.state_dict()["moments"]}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `Learner.load_state_dict`."""
        for name, learner in (("policy.", self._of_policy), ("critic.", self._of_critic)):
            moments = {key: tensor for key, tensor in state["moments"].items() if key.startswith(name)}
            learner.load_state_dict({**state, "moments": moments})

    def close(self) -> None:
        """End both. Doing so twice is fine."""
        self._of_policy.close()
        self._of_critic.close()
        self._threads.shutdown(cancel_futures=True)

    def _both(self, method: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        """What the two answer, who work at the same time; what one raises is raised once the other has ended."""
        learners = (self._of_policy, self._of_critic)
        asked = [self._threads.submit(getattr(learner, method), *arguments, **options) for learner in learners]
        wait(asked)
        of_policy, of_critic = (each.result() for each in asked)
        return of_policy, of_critic


AnyLearner = Learner | RemoteLearner | ActorCriticLearner
"""What the loop trains with: it need not know which."""
