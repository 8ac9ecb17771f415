"""Translates our settings into verl's: a table of verl's keys with their source and value.

Written for verl 0.9.1. Does not import verl.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from midthought.cluster.verl.settings import (
    AGENT_NAME,
    CORRECTIONS,
    ESTIMATORS,
    KL_KINDS,
    LOSSES,
    DerivedValues,
    require_supported,
)

KL_HORIZON = 10_000
"""Episodes over which our KL controller changes its coefficient by at most 20 %."""
MAX_ROLLOUT_WEIGHT = 2.0
"""Our largest weight of the rollout correction."""
DISABLED_DUAL_CLIP = 1.0e6
"""verl always applies dual clipping; with this bound it has no effect."""
CHECKPOINT_CONTENTS = ("model", "optimizer", "extra", "hf_model")
"""Contents of a checkpoint. `hf_model` is a Hugging Face folder. verl cannot write it for a model with adapters."""
_EXTRA_CONTEXT_TOKENS = 16
"""Tokens that a server needs in addition to prompt and response."""


class BundlePath(str):
    """A path inside the bundle, made absolute when the bundle runs."""


class Row(NamedTuple):
    """One key of verl's configuration."""

    key: str
    ours: str
    """Source: keys of our settings, or the reason."""
    value: Callable[[DerivedValues], Any]
    applies: Callable[[DerivedValues], bool] = lambda derived: True
    """Whether the key is written; else verl's default applies."""


def _of(key: str) -> Callable[[DerivedValues], Any]:
    """Returns a function that reads one of our keys unchanged."""
    section, _, name = key.partition(".")
    return lambda derived: getattr(derived.verl if section == "verl" else getattr(derived.config, section), name)


def _same(theirs: str, ours: str, applies: Callable[[DerivedValues], bool] = lambda derived: True) -> Row:
    return Row(theirs, ours, _of(ours), applies)


def _critic(derived: DerivedValues) -> bool:
    return derived.training.has_critic


def _both(row: Row) -> tuple[Row, Row]:
    """Returns a row of the policy, and the same one of the critic, if there is one."""
    key = f"critic.{row.key.removeprefix('actor_rollout_ref.').removeprefix('actor.')}"
    return row, row._replace(key=key, applies=lambda derived: _critic(derived) and row.applies(derived))


def _dynamic(derived: DerivedValues) -> bool:
    return derived.verl.rows_per_gpu is None


def _padded(derived: DerivedValues) -> bool:
    return not _dynamic(derived)


def _offloads(derived: DerivedValues) -> bool:
    return derived.training.gradient_checkpointing == "offload"


def _adapters(derived: DerivedValues) -> bool:
    return derived.config.model.adapter_rank > 0


ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"

TABLE: tuple[Row, ...] = (
    # what is trained
    *_both(_same(f"{MODEL}.path", "model.local_path")),
    _same(f"{MODEL}.lora_rank", "model.lora_rank", _adapters),
    _same(f"{MODEL}.lora_alpha", "model.lora_alpha", _adapters),
    Row(f"{ROLLOUT}.dtype", "model.dtype", lambda f: f.config.model.weights_dtype),
    # what it is trained on
    Row("data.train_files", "the bundle", lambda derived: BundlePath("data/train.parquet")),
    Row("data.val_files", "the bundle", lambda derived: BundlePath("data/validation.parquet")),
    Row("data.train_batch_size", "training.batch_size / group_size", lambda f: f.prompts(f.training.batch_size)),
    _same("data.max_prompt_length", "verl.max_prompt_length"),
    _same("data.max_response_length", "inference.max_tokens"),
    Row("data.filter_overlong_prompts", "a prompt that does not fit ends verl's run", lambda derived: True),
    Row("data.tool_config_path", "our prompts already describe the tools", lambda derived: None),
    _same("data.seed", "training.seed"),
    # the episodes
    _same(f"{ROLLOUT}.name", "verl.rollout"),
    _same(f"{ROLLOUT}.temperature", "inference.temperature"),
    _same(f"{ROLLOUT}.top_p", "inference.top_p"),
    Row(f"{ROLLOUT}.n", "training.group_size", lambda derived: derived.training.episodes_per_task),
    _same(f"{ROLLOUT}.max_num_seqs", "inference.max_num_seqs"),
    Row(f"{ROLLOUT}.prompt_length", "verl.max_prompt_length, and a little", lambda f: f.prompt_length),
    Row(
        f"{ROLLOUT}.max_model_len",
        "verl.max_prompt_length + inference.max_tokens, and a little",
        lambda f: f.prompt_length + f.inference.max_tokens + _EXTRA_CONTEXT_TOKENS,
    ),
    _same(f"{ROLLOUT}.tensor_model_parallel_size", "verl.tensor_parallel"),
    _same(f"{ROLLOUT}.gpu_memory_utilization", "verl.gpu_memory_utilization"),
    _same(f"{ROLLOUT}.agent.num_workers", "verl.num_agent_workers"),
    Row(f"{ROLLOUT}.agent.default_agent_loop", "our loop", lambda derived: AGENT_NAME),
    Row(f"{ROLLOUT}.agent.agent_loop_config_path", "the bundle", lambda derived: BundlePath("agent_loop.yaml")),
    Row(f"{ROLLOUT}.multi_turn.tool_config_path", "the bundle", lambda derived: BundlePath("tools.yaml")),
    Row(
        "reward.custom_reward_function.path",
        "the reward in the record of our loop",
        lambda derived: "pkg://midthought.cluster.verl.record",  # a file has no name, which its records need
    ),
    Row("reward.custom_reward_function.name", "our function", lambda derived: "compute_score"),
    # credit
    Row("algorithm.adv_estimator", "training.adv_estimator", lambda f: ESTIMATORS[f.training.adv_estimator]),
    _same("algorithm.gamma", "training.gamma"),
    _same("algorithm.lam", "training.lam"),
    Row("algorithm.norm_adv_by_std_in_grpo", "false for dr_grpo", lambda f: f.training.adv_estimator != "dr_grpo"),
    Row("algorithm.filter_groups.enable", "training.max_dynamic_batches", lambda f: f.training.max_dynamic_batches > 1),
    Row(
        "algorithm.filter_groups.max_num_gen_batches",
        "training.max_dynamic_batches",
        lambda f: f.training.max_dynamic_batches if f.training.max_dynamic_batches > 1 else 0,
    ),
    Row("algorithm.use_kl_in_reward", "training.kl_coef", lambda f: f.training.kl_coef > 0),
    Row("algorithm.kl_penalty", "our estimator, k1", lambda f: KL_KINDS["k1"]),
    _same("algorithm.kl_ctrl.kl_coef", "training.kl_coef"),
    Row("algorithm.kl_ctrl.type", "training.target_kl", lambda f: "adaptive" if f.training.target_kl else "fixed"),
    _same("algorithm.kl_ctrl.target_kl", "training.target_kl", lambda derived: derived.training.target_kl is not None),
    Row("algorithm.kl_ctrl.horizon", "our horizon", lambda f: KL_HORIZON),
    Row(
        "algorithm.rollout_correction.rollout_is",
        "training.rollout_correction",
        lambda f: CORRECTIONS.get(f.training.correction),
    ),
    Row("algorithm.rollout_correction.rollout_is_threshold", "our largest weight", lambda f: MAX_ROLLOUT_WEIGHT),
    # the update
    Row(f"{ACTOR}.ppo_mini_batch_size", "training.mini_batch_size", lambda f: f.prompts(f.training.mini_batch_size)),
    _same(f"{ACTOR}.ppo_epochs", "training.ppo_epochs"),
    Row(f"{ACTOR}.policy_loss.loss_mode", "training.policy_loss", lambda f: LOSSES[f.training.policy_loss]),
    _same(f"{ACTOR}.loss_agg_mode", "training.loss_agg"),
    Row(
        f"{ACTOR}.loss_scale_factor",
        "inference.max_tokens",
        lambda f: f.inference.max_tokens,
        lambda f: f.training.loss_agg == "seq-mean-token-sum-norm",
    ),
    _same(f"{ACTOR}.clip_ratio", "training.clip_ratio"),
    _same(f"{ACTOR}.clip_ratio_low", "training.clip_ratio"),
    Row(
        f"{ACTOR}.clip_ratio_high",
        "training.clip_ratio_high",
        lambda f: f.training.clip_ratio_high or f.training.clip_ratio,
    ),
    Row(f"{ACTOR}.clip_ratio_c", "training.dual_clip", lambda f: f.training.dual_clip or DISABLED_DUAL_CLIP),
    _same(f"{ACTOR}.entropy_coeff", "training.entropy_coef"),
    Row(f"{ACTOR}.use_kl_loss", "training.kl_loss_coef", lambda f: f.training.kl_loss_coef > 0),
    _same(f"{ACTOR}.kl_loss_coef", "training.kl_loss_coef"),
    Row(f"{ACTOR}.kl_loss_type", "training.kl_loss_kind", lambda f: KL_KINDS[f.training.kl_loss_kind]),
    *_both(_same(f"{ACTOR}.grad_clip", "training.max_grad_norm")),
    *_both(_same(f"{ACTOR}.data_loader_seed", "training.seed")),
    _same(f"{ACTOR}.optim.lr", "training.learning_rate"),
    _same("critic.optim.lr", "training.critic_learning_rate", _critic),
    *_both(_same(f"{ACTOR}.optim.lr_warmup_steps", "training.warmup_steps")),
    *_both(_same(f"{ACTOR}.optim.lr_scheduler_type", "training.lr_schedule")),
    *_both(_same(f"{ACTOR}.optim.weight_decay", "training.weight_decay")),
    *_both(Row(f"{ACTOR}.optim.betas", "training.adam_beta2", lambda f: [0.9, f.training.adam_beta2])),
    _same("critic.cliprange_value", "training.cliprange_value", _critic),
    _same("trainer.critic_warmup", "training.critic_warmup_iters", _critic),
    # memory
    *_both(Row(f"{MODEL}.enable_activation_offload", "training.gradient_checkpointing", lambda f: True, _offloads)),
    Row(f"{ACTOR}.use_dynamic_bsz", "verl.rows_per_gpu", _dynamic),
    *_both(
        Row(f"{ACTOR}.ppo_max_token_len_per_gpu", "verl.max_tokens_per_gpu", lambda f: f.max_tokens_per_gpu, _dynamic)
    ),
    *_both(_same(f"{ACTOR}.ppo_micro_batch_size_per_gpu", "verl.rows_per_gpu", _padded)),
    _same("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu", "verl.rows_per_gpu", _padded),
    _same(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "verl.rows_per_gpu", _padded),
    _same(f"{ACTOR}.fsdp_config.param_offload", "verl.offload"),
    _same(f"{ACTOR}.fsdp_config.optimizer_offload", "verl.offload"),
    _same("actor_rollout_ref.ref.fsdp_config.param_offload", "verl.offload"),
    _same("critic.fsdp.param_offload", "verl.offload", _critic),
    _same("critic.fsdp.optimizer_offload", "verl.offload", _critic),
    # the run
    _same("trainer.nnodes", "verl.num_nodes"),
    _same("trainer.n_gpus_per_node", "verl.gpus_per_node"),
    Row("trainer.total_epochs", "training.num_epochs, num_train_iters", lambda f: _epochs(f)),
    _same("trainer.total_training_steps", "training.num_train_iters"),
    Row("trainer.test_freq", "training.validate_every", lambda f: f.training.validate_every or -1),
    _same("trainer.save_freq", "checkpoint.save_interval"),
    _same("trainer.max_actor_ckpt_to_keep", "checkpoint.keep_last_n"),
    Row(
        f"{ACTOR}.checkpoint.save_contents",
        "adds a Hugging Face folder, for --from",
        lambda derived: list(CHECKPOINT_CONTENTS),
        lambda derived: not _adapters(derived),
    ),
    _same("trainer.max_critic_ckpt_to_keep", "checkpoint.keep_last_n", _critic),
    _same("trainer.project_name", "checkpoint.tracker_project"),
    Row("trainer.experiment_name", "the recipe", lambda derived: derived.recipe),
    Row("trainer.logger", "verl.loggers, checkpoint.trackers", lambda f: list(_loggers(f))),
    Row("trainer.default_local_dir", "the bundle", lambda derived: BundlePath("checkpoints")),
)


def overrides_of(derived: DerivedValues) -> dict[str, Any]:
    """Returns verl's keys with their values in the table's order; `verl.overrides` come last and replace ours.

    Raises `SettingsError` if verl does not support a setting, or sizes are not multiples of each other.
    """
    require_supported(derived)
    values = {row.key: row.value(derived) for row in TABLE if row.applies(derived)}
    arguments = derived.config.model.chat_template_kwargs  # new keys in verl's configuration
    values |= {f"+data.apply_chat_template_kwargs.{name}": value for name, value in arguments.items()}
    for key, value in _flat(derived.verl.overrides):
        values.pop(key.lstrip("+"), None)
        values[key] = value
    return values


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Flattens nested keys: `{"trainer": {"save_freq": 50}}` means `{"trainer.save_freq": 50}`."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _epochs(derived: DerivedValues) -> int:
    """Returns enough epochs for the requested steps. verl drops an incomplete last batch."""
    steps_per_epoch = derived.num_tasks // derived.prompts(derived.training.batch_size)
    if derived.training.num_train_iters is None:
        return derived.training.num_epochs
    return max(1, math.ceil(derived.training.num_train_iters / steps_per_epoch))


def _loggers(derived: DerivedValues) -> Iterator[str]:
    yield from derived.verl.loggers
    yield from (name for name in derived.config.checkpoint.trackers if name not in derived.verl.loggers)
