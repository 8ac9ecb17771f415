"""The recipe's settings in the terms of the rooms below: learner, loop, rollout."""

from __future__ import annotations

from midthought.algo.advantages import AdvantageEstimator
from midthought.inference.rollout import RolloutSettings
from midthought.learning.learner import LearnerSettings
from midthought.learning.ppo import PPOPlan
from midthought.recipes.podcast.settings import PodcastConfig


def sft_settings(config: PodcastConfig, num_steps: int) -> LearnerSettings:
    """A supervised learner whose learning rate falls to 0 at `num_steps`."""
    warmup, training = config.warmup, config.training
    return LearnerSettings(
        learning_rate=warmup.learning_rate,
        warmup_steps=warmup.warmup_steps,
        schedule="linear",
        total_steps=num_steps,
        max_grad_norm=training.max_grad_norm,
        micro_batch_tokens=training.micro_batch_tokens,
        seed=training.seed,
    )


def ppo_settings(config: PodcastConfig) -> LearnerSettings:
    """The PPO learner."""
    training = config.training
    steps_per_pass = -(-training.batch_size // training.mini_batch_size)
    return LearnerSettings(
        learning_rate=training.learning_rate,
        critic_learning_rate=training.critic_learning_rate,
        schedule=training.lr_schedule,
        warmup_steps=training.warmup_steps,
        total_steps=training.num_train_iters * training.ppo_epochs * steps_per_pass,
        max_grad_norm=training.max_grad_norm,
        adv_estimator=AdvantageEstimator(training.adv_estimator),
        gamma=training.gamma,
        lam=training.lam,
        clip_ratio_low=training.clip_ratio_low or training.clip_ratio,
        clip_ratio_high=training.clip_ratio_high or training.clip_ratio,
        cliprange_value=training.cliprange_value,
        value_loss_coef=training.value_loss_coef,
        entropy_coef=training.entropy_coef,
        kl_coef=training.kl_coef,
        ppo_epochs=training.ppo_epochs,
        mini_batch_size=training.mini_batch_size,
        micro_batch_tokens=training.micro_batch_tokens,
        seed=training.seed,
    )


def ppo_plan(config: PodcastConfig, pad_token_id: int) -> PPOPlan:
    """The PPO loop."""
    training = config.training
    return PPOPlan(
        num_iters=training.num_train_iters,
        batch_size=training.batch_size,
        group_size=training.group_size,
        seed=training.seed,
        pad_token_id=pad_token_id,
        critic_warmup_iters=training.critic_warmup_iters,
    )


def rollout_settings(config: PodcastConfig) -> RolloutSettings:
    """The rollout loop."""
    inference = config.inference
    return RolloutSettings(
        max_tokens=inference.max_tokens,
        max_segment_length=inference.max_segment_length,
        max_tool_calls_per_cot=inference.max_tool_calls_per_cot,
        max_result_tokens=inference.max_result_tokens,
        temperature=inference.temperature,
        top_p=inference.top_p,
    )
