"""One optimizer step after another on batches: scoring, credit, PPO updates and SFT steps.

Knows neither where trajectories come from nor when to stop: loops stand in `sft` and `ppo`. Losses are averaged over
the policy tokens of the whole optimizer step, so micro-batches change nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from midthought.algo.advantages import AdvantageEstimator, compute_advantage
from midthought.algo.kl import KLController, KLKind, apply_kl_penalty, kl_divergence
from midthought.algo.losses import compute_policy_loss, compute_value_loss, masked_average
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

    adv_estimator: AdvantageEstimator = AdvantageEstimator.GAE
    gamma: float = 1.0
    lam: float = 1.0
    whiten_advantages: bool = True
    norm_adv_by_std: bool = True
    """GRPO: divide by the group's deviation."""

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
    Models stay in eval mode (no dropout), so that probabilities are the same in scoring and in updating.
    """

    def __init__(self, policy: Any, critic: Critic | None, reference: Any | None, settings: LearnerSettings) -> None:
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
        """Fill in `old_logprobs`, and `reference_logprobs` and `values` where there is a reference and a critic.

        Figures: `logprob_difference_max` and `_mean`, |recomputed − sampled| over policy tokens: the health of the
        whole chain from engine to learner.
        """
        filled: dict[str, Tensor] = defaultdict(lambda: torch.zeros(batch.token_ids.shape))
        for rows in batch.micro_batch_rows(self.settings.micro_batch_tokens):
            micro = batch.select(rows).to(self.device)
            figures = token_figures(self.policy, micro, self.critic)
            found = {"old_logprobs": figures.logprobs}
            if self.critic is not None:
                found["values"] = self._values(figures, micro)
            if self.reference is not None:
                found["reference_logprobs"] = token_figures(self.reference, micro).logprobs
            width = micro.token_ids.shape[1]
            for name, values in found.items():
                filled[name][rows, :width] = spread(values, micro.loss_mask).cpu()
        scored = batch.with_fields(**filled)
        difference = (filled["old_logprobs"] - batch.sampled_logprobs)[batch.loss_mask].abs()
        return scored, {
            "logprob_difference_max": float(difference.max()),
            "logprob_difference_mean": float(difference.mean()),
        }

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
                for name, value in self._step(mini, self._ppo_losses, critic_only=critic_only).items():
                    totals[name] += value
                steps += 1
        skipped = totals.pop("num_skipped_steps")
        means = {name: total / steps for name, total in totals.items()}
        return {**means, "num_optimizer_steps": steps, "num_skipped_steps": skipped}

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

    def _step(self, batch: PPOBatch, losses: Losses, *, critic_only: bool = False) -> dict[str, float]:
        """Gradients over all micro-batches, then one optimizer step, or none where a gradient is not finite."""
        sums: dict[str, Tensor] = {}
        self.optimizer.zero_grad(set_to_none=True)
        for micro in batch.micro_batches(self.settings.micro_batch_tokens):
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

    def _ppo_losses(self, micro: PPOBatch, num_tokens: int) -> dict[str, Tensor]:
        settings, mask = self.settings, micro.loss_mask
        assert micro.old_logprobs is not None and micro.advantages is not None
        learns_entropy = settings.entropy_coef != 0
        figures = token_figures(self.policy, micro, self.critic, entropy=True, entropy_gradient=learns_entropy)
        assert figures.entropy is not None
        everywhere = torch.ones_like(figures.logprobs, dtype=torch.bool)
        policy_loss, metrics = compute_policy_loss(
            micro.old_logprobs[mask],
            figures.logprobs,
            micro.advantages[mask],
            everywhere,
            settings.clip_ratio_low,
            settings.clip_ratio_high,
            num_tokens,
            dual_clip=settings.dual_clip,
        )
        entropy = figures.entropy.sum() / num_tokens
        loss = policy_loss - settings.entropy_coef * entropy
        metrics |= {"policy_loss": policy_loss, "entropy": entropy}
        if micro.reference_logprobs is not None and settings.kl_loss_coef:
            kl = kl_divergence(figures.logprobs, micro.reference_logprobs[mask], settings.kl_loss_kind)
            metrics["kl_loss"] = kl.sum() / num_tokens
            loss = loss + settings.kl_loss_coef * metrics["kl_loss"]
        if self.critic is not None:
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
