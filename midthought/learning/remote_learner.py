"""A learner whose models are trained by a group of remote ranks. Same interface as `Learner` for loops and checkpoints.

This process has the whole policy, which engines sample from and which gets the new weights after every update, and the
whole critic, which is fetched on demand. Does not depend on processes or a cluster: a `WorkerGroup` transports the calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from midthought.algo.shaping import KLController
from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.credit import credit_batch
from midthought.learning.learner import Learner
from midthought.learning.model import Critic, Models
from midthought.learning.optimizer import TrainingSchedule, learning_rate_factor

BUCKET_BYTES = 128 * 2**20
"""Tensors are sent to and from the ranks in messages of at most this size; a larger tensor is sent alone."""


class WorkerGroup(Protocol):
    """A group of workers, each a `LearnerWorker`, that train one set of models."""

    can_start_again: bool
    """Whether `start` replaces workers that were lost. The models then stay in this process, too."""

    def start(self, models: Models, training: TrainingConfig, schedule: TrainingSchedule) -> None:
        """Starts the workers and makes them join. They have the models' shapes, not yet their weights."""
        ...

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls the method of every rank; returns the first rank's result. Raises a rank's exception, or EngineError if a
        rank is lost; in both cases all ranks are stopped."""
        ...

    def close(self) -> None:
        """Stops the workers. A second call does nothing."""
        ...


class RemoteLearner:
    """Scores and updates on a group of workers. Results differ from `Learner`'s in one process only by rounding.

    The first call starts the workers with the models' weights at that time. The reference exists only on the ranks.
    """

    def __init__(
        self, models: Models, training: TrainingConfig, schedule: TrainingSchedule, workers: WorkerGroup
    ) -> None:
        self._policy = models.policy
        self._is_policy_old = False
        self.training = training
        self.schedule = schedule
        self.num_steps = 0
        """Optimizer steps taken, critic warm-up included."""
        self.num_policy_steps = 0
        """Optimizer steps in which the policy learned."""
        self.kl_controller = KLController(training.kl_coef, training.target_kl)
        self._critic = models.critic
        self._is_critic_old = False
        self._models: Models | None = models
        """What the next call sends to the workers that it starts."""
        self._kept = models if workers.can_start_again else None
        self.workers = workers

    @property
    def policy(self) -> Any:
        """The policy with its current weights."""
        if self._is_policy_old:
            self._fetch("policy.")
            self._is_policy_old = False
        return self._policy

    def load_policy(self) -> None:
        """Copies the current weights into the policy of this process."""
        _ = self.policy

    @property
    def critic(self) -> Critic | None:
        """The critic with its current weights."""
        if self._is_critic_old:
            self._fetch("critic.")
            self._is_critic_old = False
        return self._critic

    @property
    def device(self) -> torch.device:
        """Device of the policy in this process."""
        return next(iter(self._here.tensors().values())).device

    @property
    def learning_rate(self) -> float:
        """The policy's learning rate at the next optimizer step."""
        factor = learning_rate_factor(self.num_policy_steps, self.training, self.schedule.total_steps)
        return self.training.peak_learning_rate * factor

    def set_training(self, training: TrainingConfig, schedule: TrainingSchedule) -> None:
        """See `Learner.set_training`."""
        self.training, self.schedule = training, schedule
        if self._models is None:
            self._call("set_training", training, schedule)

    # -- learning ----------------------------------------------------------------------------------------------

    def score(self, batch: TokenBatch) -> tuple[TokenBatch, dict[str, float]]:
        """See `Learner.score`."""
        scored: tuple[TokenBatch, dict[str, float]] = self._call("score", batch)
        return scored

    def credit(self, batch: TokenBatch) -> tuple[TokenBatch, dict[str, float]]:
        """See `Learner.credit`."""
        return credit_batch(batch, self.training, self.kl_controller)

    def update(self, batch: TokenBatch, *, critic_only: bool = False) -> dict[str, float]:
        """See `Learner.update`. `load_policy` then copies the new weights into the policy of this process."""
        if batch.advantages is None:
            raise ValueError("the batch has no advantages: call `score` and `credit` before `update`")
        return self._learned(*self._call("update", batch, critic_only))

    def pass_values(self) -> dict[str, Tensor]:
        """See `Learner.pass_values`."""
        found: dict[str, Tensor] = self._call("pass_values")
        return found

    def sft_step(self, batch: TokenBatch) -> dict[str, float]:
        """See `Learner.sft_step`. Uses this thread's autocast."""
        return self._learned(*self._call("sft_step", batch, self._autocast()))

    def sft_loss(self, batch: TokenBatch) -> float:
        """See `Learner.sft_loss`."""
        return float(self._call("sft_loss", batch, self._autocast()))

    def _learned(self, metrics: dict[str, float], counts: tuple[int, int]) -> dict[str, float]:
        has_policy_learned = counts[1] != self.num_policy_steps
        self.num_steps, self.num_policy_steps = counts
        self._is_critic_old = self._critic is not None
        self._is_policy_old |= has_policy_learned
        return metrics

    def _autocast(self) -> torch.dtype | None:
        kind = self.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

    # -- state -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """See `Learner.state_dict`."""
        moments: dict[str, Tensor] = {}
        for names in buckets(self._call("moment_sizes")):
            moments |= self._call("moments", names)
        return {
            "num_steps": self.num_steps,
            "num_policy_steps": self.num_policy_steps,
            "kl_controller": self.kl_controller.state_dict(),
            "moments": moments,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load_state_dict`. Also sends the weights that were restored in this process to the ranks."""
        self._is_critic_old = self._is_policy_old = False
        self._send()
        moments: Mapping[str, Tensor] = state["moments"]
        for names in buckets(sizes_of(moments)):
            self._call("load_moments", {name: moments[name] for name in names})
        self.num_steps = state["num_steps"]
        self.num_policy_steps = state["num_policy_steps"]
        self._call("restore_steps", self.num_steps, self.num_policy_steps)
        self.kl_controller.load_state_dict(state["kl_controller"])

    def start_again(self) -> bool:
        """Replaces lost workers at the next call. Restore a checkpoint first. Returns False if they cannot be replaced."""
        self._models, self._is_policy_old, self._is_critic_old = self._kept, False, False
        return self._kept is not None

    def close(self) -> None:
        """Stops the ranks. A second call does nothing."""
        self.workers.close()

    # -- the workers ----------------------------------------------------------------------------------------------

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._models is not None:
            self.workers.start(self._models, self.training, self.schedule)
            self._send(self._models)
            self._models = None
            self.workers.call("build_learner")
        return self.workers.call(method, *arguments)

    def _send(self, models: Models | None = None) -> None:
        """Sends weights to the ranks: from `models`, or from the models in this process."""
        if models is None and self._models is not None:
            return  # the first call sends all weights
        tensors = (models or self._here).tensors()
        for names in buckets(sizes_of(tensors)):
            self.workers.call("load", {name: tensors[name].detach().cpu() for name in names})

    @torch.no_grad()
    def _fetch(self, prefix: str) -> None:
        """Copies the ranks' trained weights into the models in this process."""
        tensors = {
            name: tensor
            for name, tensor in self._here.tensors().items()
            if name.startswith(prefix) and tensor.requires_grad
        }
        for names in buckets(sizes_of(tensors)):
            for name, tensor in self._call("tensors", names).items():
                tensors[name].copy_(tensor)

    @property
    def _here(self) -> Models:
        return Models(self._policy, self._critic, None)


AnyLearner = Learner | RemoteLearner
"""Any learner that the training loop accepts."""


def sizes_of(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Returns the bytes of each tensor."""
    return {name: tensor.nbytes for name, tensor in tensors.items()}


def buckets(sizes: Mapping[str, int]) -> Iterator[Sequence[str]]:
    """Splits the names of tensors into lists of at most `BUCKET_BYTES`; a larger one is a list of its own."""
    bucket: list[str] = []
    room = BUCKET_BYTES
    for name, size in sizes.items():
        if bucket and size > room:
            yield bucket
            bucket, room = [], BUCKET_BYTES
        bucket.append(name)
        room -= size
    if bucket:
        yield bucket
