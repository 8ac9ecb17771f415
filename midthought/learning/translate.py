"""The settings in the learner's own terms."""

from __future__ import annotations

from typing import Any

from midthought.algo.kl import KLKind
from midthought.config import InferenceConfig, RecipeConfig, TrainingConfig, settled
from midthought.errors import SettingsError
from midthought.learning.adapters import add_adapters, are_adapters_idle, has_adapters
from midthought.learning.learner import Learner
from midthought.learning.model import Critic, Models, frozen_copy
from midthought.learning.rollout_batch import PPOPlan
from midthought.learning.settings import LearnerSettings


def make_learner(policy: Any, config: RecipeConfig, num_iters: int) -> Learner:
    """A learner in this process for the policy as it stands, with what `learner_models` says."""
    return Learner(*learner_models(policy, config), ppo_settings(config.training, config.inference, num_iters))


def learner_models(policy: Any, config: RecipeConfig) -> Models:
    """The policy as it stands, a critic where the estimator needs one, and the reference where there is a KL term.

    With `model.lora_rank` adapters are put into the policy: they learn, and without them it is its own reference. So is a
    PEFT model whose adapters change nothing yet. Raises SettingsError for `model.lora_rank` with a PEFT model.
    """
    training = config.training
    if config.model.adapter_rank and has_adapters(policy):
        raise SettingsError(
            f"model.lora_rank={config.model.lora_rank}, but the model has adapters already; set model.lora_rank=0 to train those"
        )
    make_critic = Critic.separate if config.model.critic_kind == "separate" else Critic.shared
    critic = make_critic(policy) if "values" in training.estimator_needs[training.adv_estimator] else None
    needs_reference = bool(training.kl_coef or training.kl_loss_coef)
    if config.model.adapter_rank:
        adapted = add_adapters(policy, config.model.adapter_rank, config.model.lora_alpha)
        return Models(adapted, critic, adapted if needs_reference else None)
    if not needs_reference:
        return Models(policy, critic, None)
    return Models(policy, critic, policy if are_adapters_idle(policy) else frozen_copy(policy))


def ppo_settings(training: TrainingConfig, inference: InferenceConfig, num_iters: int) -> LearnerSettings:
    """A learner whose schedule ends with iteration `num_iters`."""
    steps_per_iter = training.ppo_epochs * -(-training.batch_size // training.mini_batch_size)
    num_waiting = critic_warmup_iters(training)
    return LearnerSettings(
        learning_rate=settled(training.learning_rate),
        critic_learning_rate=training.critic_learning_rate,
        schedule=training.lr_schedule,
        warmup_steps=training.warmup_steps,
        total_steps=max(num_iters - num_waiting, 0) * steps_per_iter,
        critic_total_steps=num_iters * steps_per_iter,
        min_learning_rate_ratio=training.min_learning_rate_ratio,
        max_grad_norm=training.max_grad_norm,
        adv_estimator=training.adv_estimator,
        gamma=training.gamma,
        lam=training.lam,
        whiten_advantages=training.whiten_advantages,
        norm_adv_by_std=training.norm_adv_by_std,
        policy_loss=training.policy_loss,
        loss_agg=training.loss_agg,
        loss_norm_tokens=training.loss_norm_tokens or inference.max_tokens,
        rollout_correction=_correction(training, inference),
        rollout_correction_level=training.rollout_correction_level,
        rollout_correction_max=training.rollout_correction_max,
        rollout_correction_min=training.rollout_correction_min,
        clip_ratio_low=training.clip_ratio_low or training.clip_ratio,
        clip_ratio_high=training.clip_ratio_high or training.clip_ratio,
        dual_clip=training.dual_clip,
        cliprange_value=training.cliprange_value,
        value_loss_coef=training.value_loss_coef,
        entropy_coef=training.entropy_coef,
        kl_coef=training.kl_coef,
        kl_kind=KLKind(training.kl_kind),
        target_kl=training.target_kl,
        kl_horizon=training.kl_horizon,
        kl_loss_coef=training.kl_loss_coef,
        kl_loss_kind=KLKind(training.kl_loss_kind),
        ppo_epochs=training.ppo_epochs,
        mini_batch_size=training.mini_batch_size,
        accumulation_steps=training.accumulation_steps,
        seed=training.seed,
        **pass_settings(training),
    )


def critic_warmup_iters(training: TrainingConfig) -> int:
    """First iterations in which only the critic learns; 0 for an estimator without one."""
    return training.critic_warmup_iters if "values" in training.estimator_needs[training.adv_estimator] else 0


def pass_settings(training: TrainingConfig) -> dict[str, Any]:
    """Those of `LearnerSettings` that say how passes are computed, for supervised steps as for PPO's: memory and speed."""
    return {
        "micro_batch_tokens": settled(training.micro_batch_tokens),
        "packing": training.packing,
        "logits_mib": training.logits_mib,
        "gradient_checkpointing": training.recomputes_layers,
        "compile": training.compile,
        "master_weights": training.master_weights,
        "offload_reference": training.offload_reference,
    }


def _correction(training: TrainingConfig, inference: InferenceConfig) -> str | None:
    """Tokens of carried episodes were sampled by older policies, so partial rollouts are never without it."""
    if training.rollout_correction != "none":
        return training.rollout_correction
    return "truncated" if inference.partial_rollouts else None


def ppo_plan(training: TrainingConfig, inference: InferenceConfig, pad_token_id: int) -> PPOPlan:
    """What the loop does in every iteration."""
    needs = training.estimator_needs[training.adv_estimator]
    return PPOPlan(
        batch_size=training.batch_size,
        group_size=training.episodes_per_task,
        pad_token_id=pad_token_id,
        critic_warmup_iters=critic_warmup_iters(training),
        drop_flat_groups="groups" in needs,
        flat_by_turn="turns" in needs,
        max_batches=training.max_dynamic_batches,
        over_sampling=inference.partial_over_sampling if inference.partial_rollouts else None,
        greedy_baseline="baselines" in needs,
        overlong_penalty=training.overlong_penalty if training.overlong_buffer_tokens else 0.0,
        overlong_max_tokens=inference.max_tokens,
        overlong_buffer_tokens=training.overlong_buffer_tokens,
    )
