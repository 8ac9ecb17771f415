"""Settings under the names that other packages (verl, TRL, transformers, vLLM) use: which setting is meant, for errors.

They are not accepted: the same name may have another unit or meaning there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

SECTIONS_OF_VERL = (
    "actor_rollout_ref",
    "algorithm",
    "critic",
    "custom_reward_function",
    "data",
    "reward_model",
    "trainer",
)
_ONLY_THERE = re.compile(
    r"\b(custom_reward_function|reward_model|data\.(custom_cls|datagen|sampler)|critic\.model\.(path|tokenizer_path|lora_\w+)"
    r"|critic\.rollout_n|rollout\.(val_kwargs|trace))\b"
)
"""Nested names of verl that no setting corresponds to, although their last part is the name of another one."""
_NAMES: Mapping[str, str] = {
    "model.local_path": "model_path model_name_or_path model_id pretrained_model "
    "path base_model tokenizer_name tokenizer_path",
    "model.dtype": "torch_dtype dtype precision bf16 fp16",
    "model.lora_rank": "use_lora use_peft lora_r lora_dim peft_config",
    "model.attn_implementation": "use_flash_attention flash_attention attention_implementation",
    "model.hidden_size": "hidden_dim embed_dim n_embd",
    "model.num_layers": "n_layers num_hidden_layers n_layer",
    "model.tensor_parallel_size": "tensor_parallel_size tensor_model_parallel_size tp_size tp",
    "inference.max_tokens": "max_tokens max_new_tokens max_response_length response_length max_completion_length",
    "inference.max_seq_len": "max_model_len max_seq_length max_length max_prompt_length context_length",
    "inference.max_turns": "max_tool_calling_iterations max_turns max_assistant_turns "
    "max_user_turns max_turns_per_episode num_turns",
    "inference.backend": "rollout.name backend use_vllm rollout_backend engine",
    "inference.temperature": "temperature sampling_temperature",
    "inference.cuda_graphs": "enforce_eager use_cuda_graph",
    "inference.max_num_seqs": "max_concurrency max_running_requests",
    "inference.base_url": "server_url api_base vllm_server_host",
    "training.learning_rate": "lr actor_lr policy_lr",
    "training.critic_learning_rate": "critic.optim.lr critic_lr value_lr",
    "training.clip_ratio": "clip_range cliprange clip_epsilon clip_eps clip_param epsilon",
    "training.clip_ratio_high": "epsilon_high cliprange_high",
    "training.clip_ratio_low": "epsilon_low cliprange_low",
    "training.cliprange_value": "value_clip vf_clip clip_range_vf value_clip_range",
    "training.lam": "gae_lambda lambda_ lmbda",
    "training.gamma": "discount discount_factor",
    "training.entropy_coef": "entropy_coeff ent_coef entropy_bonus entropy_weight",
    "training.value_loss_coef": "value_coef value_coeff vf_coef value_loss_weight critic_coef",
    "training.max_grad_norm": "grad_clip gradient_clip gradient_clipping clip_grad max_norm",
    "training.batch_size": "generation_batch_size batch_size train_batch_size "
    "rollout_batch_size per_device_train_batch_size num_episodes num_rollouts",
    "training.mini_batch_size": "steps_per_generation gradient_accumulation_steps "
    "minibatch_size ppo_mini_batch_size ppo_minibatch_size",
    "training.micro_batch_tokens": "per_device_train_batch_size use_dynamic_bsz "
    "micro_batch_size ppo_micro_batch_size ppo_max_token_len_per_gpu",
    "training.ppo_epochs": "num_iterations num_ppo_epochs update_epochs n_epochs",
    "training.group_size": "num_generations num_samples rollout_n n num_return_sequences",
    "training.accumulation_steps": "gradient_accumulation_steps grad_accumulation",
    "training.gradient_checkpointing": "gradient_checkpointing enable_gradient_checkpointing",
    "training.num_epochs": "epochs total_epochs num_train_epochs",
    "training.num_train_iters": "num_iterations total_steps total_training_steps max_iters num_steps max_train_steps",
    "training.num_train_iters_per_epoch": "num_iters_per_epoch steps_per_epoch",
    "training.validate_every": "eval_strategy test_freq eval_steps "
    "eval_interval eval_freq eval_every validation_interval",
    "training.kl_coef": "use_kl_in_reward init_kl_coef kl_beta kl_penalty_coef kl_coeff",
    "training.kl_loss_coef": "use_kl_loss beta kl_loss",
    "training.kl_horizon": "kl_ctrl.horizon",
    "training.kl_kind": "kl_penalty kl_estimator kl_type",
    "training.norm_adv_by_std": "norm_adv_by_std_in_grpo scale_rewards",
    "training.whiten_advantages": "normalize_advantages norm_adv normalize_advantage whiten_rewards",
    "training.lr_schedule": "lr_scheduler lr_scheduler_type scheduler warmup_style",
    "training.warmup_steps": "lr_warmup_steps num_warmup_steps warmup_ratio",
    "training.loss_agg": "loss_agg_mode loss_type",
    "training.adv_estimator": "advantage_estimator adv_type",
    "training.seed": "seed random_seed",
    "model.float32_head": "cast_lm_head_to_fp32",
    "inference.max_result_tokens": "max_tool_response_length",
    "inference.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "training.algorithm": "algorithm.adv_estimator importance_sampling_level",
    "training.dual_clip": "clip_ratio_c delta",
    "training.rollout_correction": "rollout_is vllm_importance_sampling_correction vllm_importance_sampling_mode",
    "training.mask_truncated_episodes": "mask_truncated_completions",
    "training.optimizer": "optim",
    "checkpoint.output_dir": "output_dir save_dir save_path checkpoint_dir "
    "checkpoint_path default_local_dir run_dir logging_dir",
    "checkpoint.save_interval": "save_strategy save_freq save_steps save_every checkpoint_interval checkpoint_freq",
    "checkpoint.keep_last_n": "keep_last max_checkpoints save_total_limit max_to_keep keep_checkpoints",
    "checkpoint.tracker_project": "project_name project",
    "checkpoint.trackers": "use_wandb report_to wandb logger",
    "environment.max_steps": "max_episode_length max_episode_steps episode_length horizon",
    "ray.num_actors": "num_workers n_workers num_rollout_workers",
    "ray.gpus_per_actor": "num_gpus num_gpus_per_actor n_gpus_per_node gpus_per_worker",
    "ray.cpus_per_actor": "num_cpus num_cpus_per_actor cpus_per_worker",
}


def settings_named(other: str) -> list[str]:
    """Returns the settings (`section.name`) that other packages call `other`. Of a nested name the longest ending that is known
    counts.

    >>> settings_named("lr"), settings_named("actor.optim.lr"), settings_named("critic.optim.lr")
    (['training.learning_rate'], ['training.learning_rate'], ['training.critic_learning_rate'])
    """
    parts = other.split(".")
    endings = (".".join(parts[first:]) for first in range(len(parts)))
    found = ([setting for setting, names in _NAMES.items() if ending in names.split()] for ending in endings)
    return next(filter(None, found), [])


def counterparts(name: str, values: Mapping[str, Any], sections: Mapping[str, Iterable[str]]) -> str:
    """Returns which settings of `sections` (the names of the settings of each) correspond to the ones in verl's section `name`;
    empty if verl has no such section."""
    if name not in SECTIONS_OF_VERL:
        return ""
    ours, others = [], []
    for key in _leaves(name, values):
        last = key.rpartition(".")[2]
        own = [f"{section}.{last}" for section, names in sections.items() if last in names]
        found = [] if _ONLY_THERE.search(key) else settings_named(key) or own
        ours += [f"{key} is {' or '.join(found)}"] if found else []
        others += [] if found else [key]
    if others:
        ours.append(
            f"no setting corresponds to {', '.join(others[:8])}{f' and {len(others) - 8} more' if len(others) > 8 else ''}"
        )
    return f"{'; '.join(ours)}. Units and meanings: docs/coming_from.md"


def _leaves(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    else:
        yield name


def settings_with_other_names() -> list[str]:
    """Returns the settings that have another name in other packages."""
    return list(_NAMES)
