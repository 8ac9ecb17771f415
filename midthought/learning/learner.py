"""Takes optimizer steps on batches: scoring, credit, updates of any policy loss and SFT steps.

Does not depend on the source of trajectories or on a stopping rule: see `trainer/sft.py` and `learning/iteration.py`. Losses are
averaged over the policy tokens of the whole optimizer step, so micro-batches do not change them. Settings name estimator and
loss.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from midthought.algo.losses import loss_weights
from midthought.algo.shaping import KLController
from midthought.config import TrainingConfig
from midthought.errors import SettingsError
from midthought.learning.batch import TokenBatch
from midthought.learning.credit import correct_batch, credit_batch
from midthought.learning.forward import ModelInputs, TokenOutputs, hidden_states
from midthought.learning.learned_tokens import PassValues
from midthought.learning.loss import ppo_losses, value_losses
from midthought.learning.model import Critic
from midthought.learning.older_weights import OlderWeights
from midthought.learning.optimizer import NO_END, Optimizer, TrainingSchedule
from midthought.learning.passes import LearnerPasses, fill
from midthought.learning.ranks import ProcessGroup

Forward = Callable[[TokenBatch], Any]
"""Runs the models over a micro-batch."""
Losses = Callable[[Any, TokenBatch, int], dict[str, Tensor]]
"""(outputs, micro-batch, policy tokens of the whole step) -> metrics that add up over micro-batches; `loss` has a gradient."""


class Learner:
    """A policy, an optional critic, frozen reference and teacher, and the optimizer of policy and critic.

    An iteration of PPO: `batch, metrics = score(batch)`, `batch, more = credit(batch)`, `metrics = update(batch)`.
    Models stay in eval mode (no dropout), so that probabilities are the same in scoring and in updating. Parameters that
    do not require a gradient do not learn: in a LoRA policy (`peft`), only the adapters learn. If a LoRA policy is its
    own reference, it is compared with itself without adapters. Raises ValueError if no parameter of the policy learns, or
    if it is its own reference and has no adapters.

    With a `process_group`, this learner is one of several ranks, each with its shard of the models: all ranks get the same
    calls with the same batch and return the same metrics.
    """

    def __init__(
        self,
        policy: Any,
        critic: Critic | None,
        reference: Any | None,
        training: TrainingConfig,
        schedule: TrainingSchedule = NO_END,
        process_group: ProcessGroup | None = None,
        teacher: Any | None = None,
    ) -> None:
        if reference is policy and not hasattr(policy, "disable_adapter"):
            raise ValueError("the reference is the policy itself, which learns; give `frozen_copy(policy)`")
        if not any(parameter.requires_grad for parameter in policy.parameters()):
            raise ValueError("no parameter of the policy requires a gradient: there is nothing to train")
        self.policy: Any = policy.eval()
        self.critic = critic.eval() if critic is not None else None
        self.reference = reference.eval() if reference is not None else None
        self.process_group = process_group or ProcessGroup()
        self._passes = LearnerPasses(policy, critic, (reference, teacher), training, self.process_group)
        self.older = OlderWeights(policy, training)
        self.num_steps = 0
        """Optimizer steps taken, critic warm-up included."""
        self.num_policy_steps = 0
        """Optimizer steps in which the policy learned: its learning-rate schedule counts these."""
        self.kl_controller = KLController(training.kl_coef, training.target_kl)
        modules = {"policy": policy} | ({} if critic is None else {"critic": critic})
        self.optimizer = Optimizer(modules, training, schedule)
        self._is_offloaded = training.offload != "none" and self.process_group.is_alone
        """Whether models that only score are in main memory except while they score."""
        self._scoring = {
            name: model.eval()
            for name, model in (("reference_logprobs", reference), ("teacher_logprobs", teacher))
            if model is not None
        }
        for model in self._scoring.values():
            if self._is_offloaded and model is not policy:
                model.to("cpu")
        self._pass_values: PassValues | None = None

    @property
    def training(self) -> TrainingConfig:
        """The settings of the next step."""
        return self.optimizer.training

    def set_training(self, training: TrainingConfig, schedule: TrainingSchedule) -> None:
        """Changes the settings for the next steps. The controller of KL does not change, and settings of how models
        compute (`gradient_checkpointing`, …) stay as they were when the learner was created."""
        self.optimizer.training, self.optimizer.schedule = training, schedule
        self._passes.training = training

    @property
    def device(self) -> torch.device:
        return self._passes.device

    @property
    def learning_rate(self) -> float:
        """The policy's learning rate at the next optimizer step."""
        return self.training.peak_learning_rate * self.optimizer.learning_rate_factor("policy", self.num_policy_steps)

    @property
    def is_packed(self) -> bool:
        """Whether rows are concatenated without padding."""
        return bool(self._passes.packing)

    # -- before the update -------------------------------------------------------------------------------------

    @torch.no_grad()
    def score(self, batch: TokenBatch) -> tuple[TokenBatch, dict[str, float]]:
        """Fills in `old_logprobs`; and `reference_logprobs`, `teacher_logprobs`, `values` and `rollout_weights` as needed.

        Metrics: `logprob_difference_max` and `_mean`, |recomputed − sampled| over policy tokens. They check the whole path
        from engine to learner. Tokens of older versions are excluded, because their difference includes the policy's updates
        since then; `logprob_difference_older_max` and `_mean` are those of some of them under their own version
        (`OlderWeights`), `batch/num_newest_tokens` and `batch/num_older_tokens` how many. With a rollout correction, also the
        metrics of `rollout_weights`.
        """
        filled = self._scores(batch)
        self.process_group.sum(filled)
        scored = batch.with_fields(**filled)
        fresh = batch.loss_mask if batch.ages is None else batch.loss_mask & (batch.ages == 0)
        difference = (filled["old_logprobs"] - batch.sampled_logprobs)[fresh].abs()
        health = {
            "logprob_difference_max": float(difference.max()) if len(difference) else math.nan,
            "logprob_difference_mean": float(difference.mean()),
        }
        if batch.ages is not None:
            health["batch/num_newest_tokens"] = float(len(difference))
        if len(older := self.older.differences(self.policy, batch, self._passes)):
            health["batch/num_older_tokens"] = float(len(older))
            health["logprob_difference_older_max"] = float(older.max())
            health["logprob_difference_older_mean"] = float(older.mean())
        if self.training.correction == "none":
            return scored, health
        scored, shares = correct_batch(scored, self.training)
        return scored, {**health, **shares}

    @torch.no_grad()
    def _scores(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Computes this rank's scores of policy tokens, 0 elsewhere."""
        filled: dict[str, Tensor] = defaultdict(lambda: torch.zeros(batch.num_tokens))
        passes = self._passes
        with passes.context():
            for rows, is_own, micro in passes.over(batch):
                outputs = passes.forward(self.policy, micro, self.critic)
                fill(filled["old_logprobs"], batch, rows, outputs.logprobs, is_own)
                if outputs.values is not None:
                    fill(filled["values"], batch, rows, outputs.values, is_own)
            for name, model in self._scoring.items():
                with self._as_scoring(model):
                    filled[name] = passes.logprobs(model, batch)
        return filled

    @contextmanager
    def _as_scoring(self, model: Any) -> Iterator[None]:
        """Puts a model that only scores on the device. A policy that is its own reference runs without adapters."""
        if model is self.policy:
            before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
            try:
                with model.disable_adapter():
                    yield
            finally:  # PEFT lets all adapters learn again, also frozen ones
                for parameter, is_learning in before:
                    parameter.requires_grad_(is_learning)
            return
        try:
            yield model.to(self.device) if self._is_offloaded else None
        finally:
            if self._is_offloaded:
                model.to("cpu")

    def credit(self, batch: TokenBatch) -> tuple[TokenBatch, dict[str, float]]:
        """Fills in `advantages` and `returns` of a scored batch; first adds the KL penalty to the rewards.

        Returns the metrics of `credit_batch`. Truncated episodes are still in the batch: `iteration.improve`, which has the
        episodes, leaves them out (`training.mask_truncated_episodes`).
        """
        return credit_batch(batch, self.training, self.kl_controller)

    # -- updates -----------------------------------------------------------------------------------------------

    def update(self, batch: TokenBatch, *, critic_only: bool = False) -> dict[str, float]:
        """Trains on a scored and credited batch: `ppo_epochs` passes in mini-batches. Metrics are means over the steps.

        With `critic_only` (critic warm-up) only the critic learns, to fit the values of this policy. The policy computes no
        gradient and takes no step, and its learning-rate schedule does not advance. A critic with its own trunk needs no pass
        of the policy; of a shared critic, only the head learns. Without a critic the steps are only counted.

        Metrics: `policy_loss value_loss entropy kl_loss loss clip_fraction approx_kl ratio_mean
        value_clip_fraction grad_norm critic_grad_norm learning_rate num_optimizer_steps num_skipped_steps`,
        each if it was computed. Without a row there is no step and no metric.
        """
        if batch.advantages is None:
            raise ValueError("the batch has no advantages: call `score` and `credit` before `update`")
        self.older.keep()
        if not len(batch):
            return {}
        totals: dict[str, float] = defaultdict(float)
        steps = 0
        self._pass_values = None
        if batch.slots is not None and not critic_only:
            self._pass_values = PassValues(int(batch.slots.max()), self.device)
        for _ in range(self.training.ppo_epochs):
            generator = torch.Generator().manual_seed(self.training.seed * 1_000_003 + self.num_steps)
            for mini in batch.mini_batches(self.training.mini_batch_size, generator):
                if not critic_only:
                    mini, losses = self._weighted(mini)
                    taken = self._take_step(self._gradients(mini, self._policy_pass, losses), "policy", "critic")
                elif self.critic is not None:
                    losses = functools.partial(value_losses, training=self.training)
                    taken = self._take_step(self._gradients(mini, self._critic_pass, losses), "critic")
                else:
                    self.num_steps += 1
                    taken = {"num_skipped_steps": 0.0}
                for name, value in taken.items():
                    totals[name] += value
                steps += 1
        skipped = totals.pop("num_skipped_steps")
        means = {name: total / steps for name, total in totals.items()}
        return {**means, "num_optimizer_steps": steps, "num_skipped_steps": skipped}

    def pass_values(self) -> dict[str, Tensor]:
        """Returns the log-probabilities and entropies of the last update's latest pass over each recorded token, by slot, in main
        memory (`PassValues.gathered`); empty if the policy did not learn, or nothing is recorded."""
        return {} if self._pass_values is None else self._pass_values.gathered(self.process_group)

    def _weighted(self, batch: TokenBatch) -> tuple[TokenBatch, Losses]:
        """Returns an optimizer step's batch with the weights of its tokens, and its losses. Call it before the batch is split."""
        training, norm_tokens = self.training, self.optimizer.schedule.max_tokens
        weights, denominator = loss_weights(batch.loss_mask, batch.token_episodes, training.loss_agg, norm_tokens)
        if weights is not None:
            batch = batch.with_fields(loss_weights=weights)
        if self._pass_values is not None and batch.slots is not None:
            self._pass_values.forget(batch.slots)
        return batch, functools.partial(ppo_losses, training=training, denominator=denominator)

    def sft_step(self, batch: TokenBatch) -> dict[str, float]:
        """Takes one optimizer step of cross-entropy, averaged over all mask-True tokens of the batch (nats per token).

        Metrics: `loss grad_norm learning_rate num_tokens num_skipped_steps`.
        """
        taken = self._take_step(self._gradients(batch, self._sft_pass, _sft_losses), "policy")
        return {**taken, "num_tokens": batch.num_policy_tokens}

    def sft_loss(self, batch: TokenBatch) -> float:
        """Returns the cross-entropy that `sft_step` would report, without learning from it."""
        total = torch.zeros((), dtype=torch.float64)
        with torch.no_grad(), self._passes.context():
            for _, is_own, micro in self._passes.over(batch):
                loss = float(_sft_losses(self._sft_pass(micro), micro, batch.num_policy_tokens)["loss"])
                total += loss if is_own else 0.0
        self.process_group.sum({"loss": total})
        return float(total)

    def _take_step(self, sums: Mapping[str, Tensor], *modules: str) -> dict[str, float]:
        """Takes a step of `modules`, or none if a gradient is not finite. Returns its metrics and `sums`."""
        numbers = {"policy": self.num_policy_steps, "critic": self.num_steps}
        taken = self.optimizer.step({name: numbers[name] for name in modules})
        self.num_steps += 1
        self.num_policy_steps += "policy" in modules
        return {**{name: float(value) for name, value in sums.items()}, **taken}

    def _gradients(self, batch: TokenBatch, forward: Forward, losses: Losses) -> dict[str, Tensor]:
        """Accumulates the gradients of all micro-batches in the parameters. Returns the sums of their metrics."""
        sums: dict[str, Tensor] = {}
        self.optimizer.zero_grad()
        with self._passes.context():
            for _, is_own, micro in self._passes.over(batch):
                outputs = forward(micro)
                if self._pass_values is not None and micro.slots is not None and is_own:
                    self._pass_values.keep(micro.slots[micro.loss_mask], outputs)
                terms = losses(outputs, micro, batch.num_policy_tokens)
                del outputs  # the next pass needs its memory
                if not is_own:
                    terms = {name: 0.0 * value for name, value in terms.items()}
                if not terms["loss"].requires_grad:
                    raise SettingsError(
                        "the loss depends on no weight that learns: the weights that answer are frozen "
                        "(requires_grad=False); call model.requires_grad_(True), or set model.lora_rank"
                    )
                terms["loss"].backward()
                self.optimizer.gather()
                for name, value in terms.items():
                    sums[name] = sums.get(name, 0.0) + value.detach()
        self.process_group.sum(sums)
        return sums

    def _sft_pass(self, micro: TokenBatch) -> TokenOutputs:
        return self._passes.forward(self.policy, micro)

    def _policy_pass(self, micro: TokenBatch) -> TokenOutputs:
        learns_entropy = self.training.entropy_coef != 0
        return self._passes.forward(self.policy, micro, self.critic, entropy=True, learns_entropy=learns_entropy)

    def _critic_pass(self, micro: TokenBatch) -> Tensor:
        """Computes only the critic's values. If the policy's trunk is shared, only the head gets a gradient."""
        assert self.critic is not None
        if not self.critic.is_shared:
            return self.critic.token_values(micro, packed=self._passes.packing)
        with torch.no_grad():
            states = hidden_states(self.policy, ModelInputs.of(micro, packed=self._passes.packing))
        values: Tensor = self.critic.head(states)
        return values

    # -- state -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimizer's tensors under the parameters' names, and the counters. Weights are not included."""
        return {
            "num_steps": self.num_steps,
            "num_policy_steps": self.num_policy_steps,
            "kl_controller": self.kl_controller.state_dict(),
            "moments": self.optimizer.state_dict(),
        }

    def load_policy(self) -> None:
        """Does nothing: the policy in this process is the one that learns."""

    def close(self) -> None:
        """Does nothing: a learner in this process holds no resources but its models."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`, after the weights were restored. Raises CheckpointError if it belongs to other models."""
        self.older.clear()
        self.optimizer.load_state_dict(state["moments"])
        self.num_steps = state["num_steps"]
        self.num_policy_steps = state["num_policy_steps"]
        self.kl_controller.load_state_dict(state["kl_controller"])


def _sft_losses(outputs: TokenOutputs, micro: TokenBatch, num_tokens: int) -> dict[str, Tensor]:
    return {"loss": -outputs.logprobs.sum() / num_tokens}
