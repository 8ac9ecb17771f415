"""A learner whose models are learned by a team of ranks elsewhere: for the loop and for checkpoints like `Learner`.

Here stand the whole policy, which engines sample from and which is renewed after every update, and the whole critic, which
is fetched when it is asked for. Knows no process and no cluster: a `WorkerGroup` carries what is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from midthought.algo.kl import KLController
from midthought.config import TrainingConfig
from midthought.learning.batch import PPOBatch
from midthought.learning.credit import credit_batch
from midthought.learning.lr_schedule import TrainingSchedule, learning_rate_factor
from midthought.learning.model import Critic, Models

BUCKET_BYTES = 128 * 2**20
"""Tensors go to and from the ranks in messages of about this size; a larger one goes alone."""


class WorkerGroup(Protocol):
    """Workers that learn together, each a `LearnerWorker`."""

    def start(self, models: Models, training: TrainingConfig, schedule: TrainingSchedule) -> None:
        """Start them, and have them join; they hold the models' shapes, not their weights."""
        ...

    def call(self, method: str, *arguments: Any) -> Any:
        """Call the method of every rank; the answer of the first. Raises what a rank raises, EngineError where one is
        lost; either way all of them are gone then."""
        ...

    def close(self) -> None:
        """End them. Doing so twice is fine."""
        ...


class RemoteLearner:
    """Asks a team to score and update, as `Learner` does itself; the figures differ from one process's by rounding alone.

    The team is started by the first call, with the weights that the models have then. The reference stays with the ranks.
    """

    def __init__(
        self, models: Models, training: TrainingConfig, schedule: TrainingSchedule, workers: WorkerGroup
    ) -> None:
        self.policy = models.policy
        self.training = training
        self.schedule = schedule
        self.num_steps = 0
        """Optimizer steps taken, critic warm-up included."""
        self.num_policy_steps = 0
        """The steps of them in which the policy learned."""
        self.kl_controller = KLController(training.kl_coef, training.target_kl, training.kl_horizon)
        self._critic = models.critic
        self._is_critic_old = False
        self._models: Models | None = models
        self._workers = workers

    @property
    def critic(self) -> Critic | None:
        """With the weights that it has now."""
        if self._is_critic_old:
            self._fetch("critic.")
            self._is_critic_old = False
        return self._critic

    @property
    def device(self) -> torch.device:
        """Of the policy here; without one, of the critic."""
        return next(iter(self._here.tensors().values())).device

    @property
    def learning_rate(self) -> float:
        """Of the policy, at the next optimizer step."""
        factor = learning_rate_factor(self.num_policy_steps, self.training, self.schedule.total_steps)
        return self.training.peak_learning_rate * factor

    def set_training(self, training: TrainingConfig, schedule: TrainingSchedule) -> None:
        """As `Learner.set_training`."""
        self.training, self.schedule = training, schedule
        if self._models is None:
            self._call("set_training", training, schedule)

    # -- learning ----------------------------------------------------------------------------------------------

    def score(self, batch: PPOBatch) -> tuple[PPOBatch, dict[str, float]]:
        """As `Learner.score`."""
        scored: tuple[PPOBatch, dict[str, float]] = self._call("score", batch)
        return scored

    def credit(self, batch: PPOBatch) -> tuple[PPOBatch, dict[str, float]]:
        """As `Learner.credit`."""
        return credit_batch(batch, self.training, self.kl_controller)

    def update(self, batch: PPOBatch, *, critic_only: bool = False) -> dict[str, float]:
        """As `Learner.update`; then the policy here has the new weights."""
        if batch.advantages is None:
            raise ValueError("the batch has no advantages: call `score` and `credit` before `update`")
        return self._learned(*self._call("update", batch, critic_only))

    def sft_step(self, batch: PPOBatch) -> dict[str, float]:
        """As `Learner.sft_step`, under this thread's autocast; then the policy here has the new weights."""
        return self._learned(*self._call("sft_step", batch, self._autocast()))

    def sft_loss(self, batch: PPOBatch) -> float:
        """As `Learner.sft_loss`."""
        return float(self._call("sft_loss", batch, self._autocast()))

    def _learned(self, metrics: dict[str, float], counts: tuple[int, int]) -> dict[str, float]:
        has_policy_learned = counts[1] != self.num_policy_steps
        self.num_steps, self.num_policy_steps = counts
        self._is_critic_old = self._critic is not None
        if self.policy is not None and has_policy_learned:
            self._fetch("policy.")
        return metrics

    def _autocast(self) -> torch.dtype | None:
        kind = self.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

    # -- state -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As `Learner.state_dict`."""
        moments: dict[str, Tensor] = {}
        for names in _buckets(self._call("moment_sizes").items()):
            moments |= self._call("moments", names)
        return {
            "num_steps": self.num_steps,
            "num_policy_steps": self.num_policy_steps,
            "kl_controller": self.kl_controller.state_dict(),
            "moments": moments,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `Learner.load_state_dict`; the ranks get the weights that were put back here, too."""
        self._is_critic_old = False
        self._send()
        moments: Mapping[str, Tensor] = state["moments"]
        for names in _buckets((name, _num_bytes(tensor)) for name, tensor in moments.items()):
            self._call("load_moments", {name: moments[name] for name in names})
        self.num_steps = state["num_steps"]
        self.num_policy_steps = state.get("num_policy_steps", self.num_steps)
        self._call("restore_steps", self.num_steps, self.num_policy_steps)
        self.kl_controller.load_state_dict(state["kl_controller"])

    def close(self) -> None:
        """End the ranks. Doing so twice is fine."""
        self._workers.close()

    # -- the workers ----------------------------------------------------------------------------------------------

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._models is not None:
            self._workers.start(self._models, self.training, self.schedule)
            self._send(self._models)
            self._models = None
            self._workers.call("build_learner")
        return self._workers.call(method, *arguments)

    def _send(self, models: Models | None = None) -> None:
        """Bring weights to the ranks: those of `models`, or those here."""
        if models is None and self._models is not None:
            return  # the first call brings all of them
        tensors = (models or self._here).tensors()
        for names in _buckets((name, _num_bytes(tensor)) for name, tensor in tensors.items()):
            self._workers.call("load", {name: tensors[name].detach().cpu() for name in names})

    @torch.no_grad()
    def _fetch(self, prefix: str) -> None:
        """Write what learns there into the models here."""
        tensors = {
            name: tensor
            for name, tensor in self._here.tensors().items()
            if name.startswith(prefix) and tensor.requires_grad
        }
        for names in _buckets((name, _num_bytes(tensor)) for name, tensor in tensors.items()):
            for name, tensor in self._call("tensors", names).items():
                tensors[name].copy_(tensor)

    @property
    def _here(self) -> Models:
        return Models(self.policy, self._critic, None)


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _buckets(sizes: Iterable[tuple[str, int]]) -> Iterator[Sequence[str]]:
    """Names of `(name, bytes)` in lists of at most `BUCKET_BYTES`, or of one."""
    bucket: list[str] = []
    room = BUCKET_BYTES
    for name, size in sizes:
        if bucket and size > room:
            yield bucket
            bucket, room = [], BUCKET_BYTES
        bucket.append(name)
        room -= size
    if bucket:
        yield bucket
