"""One optimizer step after another on batches: scoring, credit, PPO updates and SFT steps.

Knows neither where trajectories come from nor when to stop: loops stand in `sft` and `ppo`. Losses are averaged over
the policy tokens of the whole optimizer step, so micro-batches change nothing. Which estimator and which loss is a name.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from midthought.algo.advantages import AdvantageEstimator, compute_advantage
from midthought.algo.aggregation import LossAggregation, loss_weights
from midthought.algo.correction import CorrectionLevel, rollout_weights
from midthought.algo.kl import KLController, KLKind, apply_kl_penalty, kl_divergence
from midthought.algo.losses import POLICY_LOSSES, PolicyLossInputs, compute_value_loss, masked_average
from midthought.errors import CheckpointError
from midthought.learning.batch import PPOBatch
from midthought.learning.model import Critic, TokenFigures, spread, token_figures

Losses = Callable[[PPOBatch, int], dict[str, Tensor]]
"""(micro-batch, policy tokens of the whole step) -> figures that add up over micro-batches; `loss` has a gradient."""


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """How a learner learns. Steps are optimizer steps."""

    learning_rate: float = 1e-5
    critic_learning_rate: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    """On matrices only: norms and biases never decay."""
    max_grad_norm: float = 1.0
    """For the policy and the critic each on its own."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    """Where a linear or cosine schedule reaches `min_learning_rate_ratio`."""
    min_learning_rate_ratio: float = 0.0

    adv_estimator: str = AdvantageEstimator.GAE
    """A name of `midthought.algo.advantages`, or of the user's own."""
    gamma: float = 1.0
    lam: float = 1.0
    whiten_advantages: bool = True
    norm_adv_by_std: bool = True
    """GRPO: divide by the group's deviation."""

    policy_loss: str = "ppo"
    """A name of `midthought.algo.losses`, or of the user's own."""
    loss_agg: str = LossAggregation.TOKEN_MEAN
    """How the policy loss, the entropy and the KL term are averaged; the value loss is a mean over tokens."""
    loss_norm_tokens: int | None = None
    """The constant of `seq-mean-token-sum-norm`."""
    rollout_correction: str | None = None
    """What becomes of recomputed over sampled probability as a weight (`RolloutCorrection`); None: it is left out."""
    rollout_correction_level: str = CorrectionLevel.TOKEN
    rollout_correction_max: float = 2.0
    rollout_correction_min: float = 0.0
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    dual_clip: float | None = None
    cliprange_value: float | None = 0.2
    value_loss_coef: float = 0.5
    entropy_coef: float = 0.01
    kl_coef: float = 0.0
    """Of the KL penalty in the rewards; 0 leaves it out."""
    kl_kind: KLKind = KLKind.K1
    target_kl: float | None = None
    """Steers `kl_coef` towards this KL per token; None keeps it fixed."""
    kl_horizon: int = 10_000
    kl_loss_coef: float = 0.0
    """Of the KL term in the loss; 0 leaves it out."""
    kl_loss_kind: KLKind = KLKind.K3

    ppo_epochs: int = 1
    mini_batch_size: int = 64
    """Episodes per optimizer step."""
    micro_batch_tokens: int = 4096
    """Tokens per forward and backward pass, padding counted: a matter of memory and speed only."""
    accumulation_steps: int | None = None
    """Forward and backward passes per optimizer step, whatever their tokens; None: by `micro_batch_tokens`."""
    seed: int = 0
    """The order of mini-batches is drawn from (seed, optimizer step)."""


def learning_rate_factor(step: int, settings: LearnerSettings) -> float:
    """What the peak learning rate is multiplied by at optimizer step `step` (from 0): a pure function of both.

    Linear warm-up `(step + 1) / warmup_steps`, then constant, or down to `min_learning_rate_ratio` at `total_steps`
    along a line or half a cosine.
    """
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return 1.0
    if settings.total_steps is None:
        raise ValueError(f"schedule {settings.schedule!r} needs total_steps; set it, or use 'constant'")
    done = min(1.0, (step - settings.warmup_steps) / max(1, settings.total_steps - settings.warmup_steps))
    left = 1.0 - done if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return settings.min_learning_rate_ratio + (1.0 - settings.min_learning_rate_ratio) * left


class Learner:
    """A policy, perhaps a critic and a frozen reference, and the optimizer that changes the first two.

    An iteration of PPO: `batch, figures = score(batch)`, `batch, more = credit(batch)`, `metrics = update(batch)`.
    Models stay in eval mode (no dropout), so that probabilities are the same in scoring and in updating. What does not
    require a gradient does not learn: of a LoRA policy (`peft`) the adapters alone. Given as its own reference, a LoRA
    policy is compared with itself without adapters. Raises ValueError where nothing of the policy learns, or where it is
    its own reference and has no adapters.
    """

    def __init__(self, policy: Any, critic: Critic | None, reference: Any | None, settings: LearnerSettings) -> None:
        if reference is policy and not hasattr(policy, "disable_adapter"):
            raise ValueError("the reference is the policy itself, which learns; give `frozen_copy(policy)`")
        if not any(parameter.requires_grad for parameter in policy.parameters()):
            raise ValueError("no parameter of the policy requires a gradient: there is nothing to train")
        self.policy = policy.eval()
        self.critic = critic.eval() if critic is not None else None
        self.reference = reference.eval() if reference is not None else None
        self.settings = settings
        self.num_steps = 0
        """Optimizer steps taken."""
        self.kl_controller = KLController(settings.kl_coef, settings.target_kl, settings.kl_horizon)
        self._modules: dict[str, nn.Module] = {"policy": policy}
        if critic is not None:
            self._modules["critic"] = critic
        self.optimizer = torch.optim.AdamW(self._parameter_groups(), betas=settings.betas, fused=True)

    @property
    def device(self) -> torch.device:
        return next(self.policy.parameters()).device

    @property
    def learning_rate(self) -> float:
        """Of the policy, at the next optimizer step."""
        return self.settings.learning_rate * learning_rate_factor(self.num_steps, self.settings)

    # -- before the update -------------------------------------------------------------------------------------

    @torch.no_grad()
    def score(self, batch: PPOBatch) -> tuple[PPOBatch, dict[str, float]]:
        """Fill in `old_logprobs`, and `reference_logprobs`, `values` and `rollout_weights` where they are asked for.

        Figures: `logprob_difference_max` and `_mean`, |recomputed − sampled| over policy tokens: the health of the
        whole chain from engine to learner (stale tokens aside, whose difference is the way that the policy has gone since);
        those of `rollout_weights` where there is a correction.
        """
        filled: dict[str, Tensor] = defaultdict(lambda: torch.zeros(batch.token_ids.shape))
        for rows in batch.micro_batch_rows(self.settings.micro_batch_tokens):
            micro = batch.select(rows).to(self.device)
            figures = token_figures(self.policy, micro, self.critic)
            found = {"old_logprobs": figures.logprobs}
            if self.critic is not None:
                found["values"] = self._values(figures, micro)
            if self.reference is not None:
                found["reference_logprobs"] = self._reference_logprobs(micro)
            width = micro.token_ids.shape[1]
            for name, values in found.items():
                filled[name][rows, :width] = spread(values, micro.loss_mask).cpu()
        scored = batch.with_fields(**filled)
        fresh = batch.loss_mask if batch.is_stale is None else batch.loss_mask & ~batch.is_stale
        difference = (filled["old_logprobs"] - batch.sampled_logprobs)[fresh].abs()
        health = {
            "logprob_difference_max": float(difference.max()) if len(difference) else math.nan,
            "logprob_difference_mean": float(difference.mean()),
        }
        if self.settings.rollout_correction is None:
            return scored, health
        scored, shares = self._correct(scored)
        return scored, {**health, **shares}

    def _reference_logprobs(self, micro: PPOBatch) -> Tensor:
        assert self.reference is not None
        as_it_was = self.reference.disable_adapter() if self.reference is self.policy else nullcontext()
        with as_it_was:
            return token_figures(self.reference, micro).logprobs

    def _correct(self, batch: PPOBatch) -> tuple[PPOBatch, dict[str, float]]:
        assert batch.old_logprobs is not None and self.settings.rollout_correction is not None
        weights, figures = rollout_weights(
            batch.by_episode(batch.old_logprobs),
            batch.by_episode(batch.sampled_logprobs),
            batch.by_episode(batch.loss_mask),
            self.settings.rollout_correction,
            level=self.settings.rollout_correction_level,
            max_weight=self.settings.rollout_correction_max,
            min_weight=self.settings.rollout_correction_min,
        )
        return batch.with_fields(rollout_weights=batch.by_row(weights)), figures

    def credit(self, batch: PPOBatch) -> tuple[PPOBatch, dict[str, float]]:
        """Fill in `advantages` and `returns` of a scored batch; the KL penalty goes into the rewards first.

        Segments of one episode are taken as one row, so the reward at its end reaches the earlier ones.
        Figures: `kl_reference` (k1, nats per token), `kl_coef`, `explained_variance` (1 − Var(R − V) / Var(R); 0
        where the returns do not vary), `value_mean`, `return_mean`.
        """
        if batch.old_logprobs is None:
            raise ValueError("the batch has not been scored: call `score` before `credit`")
        settings, mask, rewards = self.settings, batch.loss_mask, batch.rewards
        if self.reference is None and (settings.kl_coef or settings.kl_loss_coef):
            raise ValueError("kl_coef and kl_loss_coef need a reference policy: give the learner one, or set both to 0")
        figures: dict[str, float] = {}
        if batch.reference_logprobs is not None:
            figures["kl_coef"] = coef = self.kl_controller.coef
            logprobs, reference = batch.old_logprobs, batch.reference_logprobs
            rewards, kl = apply_kl_penalty(rewards, logprobs, reference, mask, coef, settings.kl_kind)
            figures["kl_reference"] = float(masked_average(kl_divergence(logprobs, reference), mask))
            self.kl_controller.update(float(kl), batch.num_episodes)
        advantages, returns = compute_advantage(
            settings.adv_estimator,
            batch.by_episode(rewards),
            batch.by_episode(mask),
            values=None if batch.values is None else batch.by_episode(batch.values),
            groups=batch.episode_groups,
            turns=batch.by_episode(batch.turns, missing=-1),
            baselines=None if batch.baselines is None else batch.of_episodes(batch.baselines),
            gamma=settings.gamma,
            lam=settings.lam,
            whiten=settings.whiten_advantages,
            norm_by_std=settings.norm_adv_by_std,
        )
        credited = batch.with_fields(advantages=batch.by_row(advantages), returns=batch.by_row(returns))
        if batch.values is not None and credited.returns is not None:
            figures |= _critic_figures(batch.values[mask], credited.returns[mask])
        return credited, figures

    # -- updates -----------------------------------------------------------------------------------------------

    def update(self, batch: PPOBatch, *, critic_only: bool = False) -> dict[str, float]:
        """PPO on a scored and credited batch: `ppo_epochs` passes in mini-batches; metrics are means over the steps.

        With `critic_only` the policy's gradients are dropped: a fresh critic first learns what this policy is worth.

        `policy_loss value_loss entropy kl_loss loss clip_fraction approx_kl ratio_mean value_clip_fraction grad_norm
        critic_grad_norm learning_rate num_optimizer_steps num_skipped_steps`, each where it applies.
        """
        if batch.advantages is None:
            raise ValueError("the batch has no advantages: call `score` and `credit` before `update`")
        totals: dict[str, float] = defaultdict(float)
        steps = 0
        for _ in range(self.settings.ppo_epochs):
            generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + self.num_steps)
            for mini in batch.mini_batches(self.settings.mini_batch_size, generator):
                for name, value in self._ppo_step(mini, critic_only=critic_only).items():
                    totals[name] += value
                steps += 1
        skipped = totals.pop("num_skipped_steps")
        means = {name: total / steps for name, total in totals.items()}
        return {**means, "num_optimizer_steps": steps, "num_skipped_steps": skipped}

    def _ppo_step(self, batch: PPOBatch, *, critic_only: bool) -> dict[str, float]:
        """One optimizer step; how its tokens are averaged is settled here, before it is cut into micro-batches."""
        settings = self.settings
        weights, denominator = loss_weights(
            batch.loss_mask, batch.episodes, settings.loss_agg, settings.loss_norm_tokens
        )
        if weights is not None:
            batch = batch.with_fields(loss_weights=weights)
        losses = functools.partial(self._ppo_losses, denominator=denominator)
        return self._step(batch, losses, critic_only=critic_only, num_parts=settings.accumulation_steps)

    def sft_step(self, batch: PPOBatch) -> dict[str, float]:
        """One optimizer step of cross-entropy, averaged over all masked tokens of the batch (nats per token).

        Metrics: `loss grad_norm learning_rate num_tokens num_skipped_steps`.
        """
        return {**self._step(batch, self._sft_losses), "num_tokens": batch.num_policy_tokens}

    def sft_loss(self, batch: PPOBatch) -> float:
        """The cross-entropy that `sft_step` would report, without learning from it."""
        with torch.no_grad():
            total = sum(
                float(self._sft_losses(micro.to(self.device), batch.num_policy_tokens)["loss"])
                for micro in batch.micro_batches(self.settings.micro_batch_tokens)
            )
        return total

    def _step(
        self, batch: PPOBatch, losses: Losses, *, critic_only: bool = False, num_parts: int | None = None
    ) -> dict[str, float]:
        """Gradients over all micro-batches, then one optimizer step, or none where a gradient is not finite."""
        sums: dict[str, Tensor] = {}
        self.optimizer.zero_grad(set_to_none=True)
        for micro in batch.micro_batches(self.settings.micro_batch_tokens, num_parts):
            figures = losses(micro.to(self.device), batch.num_policy_tokens)
            figures["loss"].backward()
            for name, value in figures.items():
                sums[name] = sums.get(name, 0.0) + value.detach()
        factor = learning_rate_factor(self.num_steps, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        if critic_only:
            self.policy.zero_grad(set_to_none=True)
        norms = {name: self._clip(module) for name, module in self._modules.items()}
        finite = all(math.isfinite(norm) for norm in norms.values())
        if finite:
            self.optimizer.step()
        self.num_steps += 1
        metrics = {name: float(value) for name, value in sums.items()}
        metrics["grad_norm"] = norms["policy"]
        if "critic" in norms:
            metrics["critic_grad_norm"] = norms["critic"]
        return {
            **metrics,
            "learning_rate": self.settings.learning_rate * factor,
            "num_skipped_steps": float(not finite),
        }

    def _clip(self, module: nn.Module) -> float:
        return float(nn.utils.clip_grad_norm_(module.parameters(), self.settings.max_grad_norm))

    def _sft_losses(self, micro: PPOBatch, num_tokens: int) -> dict[str, Tensor]:
        return {"loss": -token_figures(self.policy, micro).logprobs.sum() / num_tokens}

    def _ppo_losses(self, micro: PPOBatch, num_tokens: int, *, denominator: float) -> dict[str, Tensor]:
        """The terms of the loss, averaged as the settings say, and metrics, averaged over tokens."""
        settings, mask = self.settings, micro.loss_mask
        learns_entropy = settings.entropy_coef != 0
        figures = token_figures(self.policy, micro, self.critic, entropy=True, entropy_gradient=learns_entropy)
        assert figures.entropy is not None
        weights = None if micro.loss_weights is None else micro.loss_weights[mask]

        def averaged(losses: Tensor) -> Tensor:
            return (losses if weights is None else losses * weights).sum() / denominator

        losses, metrics = self._policy_losses(figures, micro)
        metrics = {name: figure.sum() / num_tokens for name, figure in metrics.items()}
        metrics |= {"policy_loss": averaged(losses), "entropy": figures.entropy.sum() / num_tokens}
        loss = metrics["policy_loss"] - settings.entropy_coef * averaged(figures.entropy)
        if micro.reference_logprobs is not None and settings.kl_loss_coef:
            kl = kl_divergence(figures.logprobs, micro.reference_logprobs[mask], settings.kl_loss_kind)
            metrics["kl_loss"] = averaged(kl)
            loss = loss + settings.kl_loss_coef * metrics["kl_loss"]
        if self.critic is not None:
            everywhere = torch.ones_like(figures.logprobs, dtype=torch.bool)
            assert micro.values is not None and micro.returns is not None
            value_loss, value_metrics = compute_value_loss(
                self._values(figures, micro),
                micro.values[mask],
                micro.returns[mask],
                everywhere,
                settings.cliprange_value,
                num_tokens,
            )
            loss = loss + settings.value_loss_coef * value_loss
            metrics |= {"value_loss": value_loss, **value_metrics}
        return {**metrics, "loss": loss}

    def _policy_losses(self, figures: TokenFigures, micro: PPOBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The policy loss of every policy token, and figures of it, each [N] in row order."""
        settings, mask = self.settings, micro.loss_mask
        assert micro.old_logprobs is not None and micro.advantages is not None
        inputs = PolicyLossInputs(
            old_logprobs=micro.old_logprobs,
            logprobs=spread(figures.logprobs, mask),
            advantages=micro.advantages,
            mask=mask,
            clip_low=settings.clip_ratio_low,
            clip_high=settings.clip_ratio_high,
            dual_clip=settings.dual_clip,
        )
        losses, named = POLICY_LOSSES.find(settings.policy_loss)(inputs)
        if micro.rollout_weights is not None:
            losses = losses * micro.rollout_weights
        return losses[mask], {name: figure.detach()[mask] for name, figure in named.items()}

    def _values(self, figures: TokenFigures, micro: PPOBatch) -> Tensor:
        if figures.values is not None:
            return figures.values
        assert self.critic is not None
        return self.critic.token_values(micro)

    # -- state -------------------------------------------------------------------------------------------------

    def _parameter_groups(self) -> list[dict[str, Any]]:
        peaks = {"policy": self.settings.learning_rate, "critic": self.settings.critic_learning_rate}
        groups = []
        for name, module in self._modules.items():
            learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
            for decays in (True, False):
                chosen = [parameter for parameter in learning if (parameter.dim() >= 2) is decays]
                decay = self.settings.weight_decay if decays else 0.0
                groups.append({"params": chosen, "lr": peaks[name], "peak": peaks[name], "weight_decay": decay})
        return [group for group in groups if group["params"]]

    def _named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for prefix, module in self._modules.items():
            for name, parameter in module.named_parameters():
                yield f"{prefix}.{name}", parameter

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's tensors under the parameters' names, and the counters. The weights are not part of it."""
        moments = {
            f"{name}/{field}": tensor
            for name, parameter in self._named_parameters()
            for field, tensor in self.optimizer.state.get(parameter, {}).items()
        }
        return {"num_steps": self.num_steps, "kl_controller": self.kl_controller.state_dict(), "moments": moments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`. Raises CheckpointError where it belongs to other parameters."""
        moments: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in state["moments"].items():
            name, _, field = key.rpartition("/")
            moments[name][field] = tensor
        parameters = dict(self._named_parameters())
        for name, fields in moments.items():
            if name not in parameters or fields["exp_avg"].shape != parameters[name].shape:
                raise CheckpointError(
                    f"the optimizer's state is of other models: {name!r} has no place; resume with the same settings"
                )
        self.optimizer.state.clear()
        for name, fields in moments.items():
            parameter = parameters[name]
            self.optimizer.state[parameter] = {
                field: tensor.to(parameter.device, copy=True) for field, tensor in fields.items()
            }
        self.num_steps = state["num_steps"]
        self.kl_controller.load_state_dict(state["kl_controller"])


def _critic_figures(values: Tensor, returns: Tensor) -> dict[str, float]:
    variance = float(returns.var(correction=0))
    explained = 1.0 - float((returns - values).var(correction=0)) / variance if variance > 0 else 0.0
    return {"explained_variance": explained, "value_mean": float(values.mean()), "return_mean": float(returns.mean())}
