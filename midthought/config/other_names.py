"""Settings under the names that other packages (verl, TRL, transformers, vLLM) use: which setting is meant, for errors.

They are not accepted: the same name may have another unit or meaning there.
"""

from __future__ import annotations

from collections.abc import Mapping

_NAMES: Mapping[str, str] = {
    "model.local_path": "model_path model_name_or_path model_id pretrained_model path base_model tokenizer_name tokenizer_path",
    "model.dtype": "torch_dtype dtype precision bf16 fp16",
    "model.lora_rank": "use_lora use_peft lora_r lora_dim peft_config",
    "model.attn_implementation": "use_flash_attention flash_attention attention_implementation",
    "model.hidden_size": "hidden_dim embed_dim n_embd",
    "model.num_layers": "n_layers num_hidden_layers n_layer",
    "model.tensor_parallel_size": "tensor_parallel_size tensor_model_parallel_size tp_size tp",
    "inference.max_tokens": "max_tokens max_new_tokens max_response_length response_length max_completion_length",
    "inference.max_seq_len": "max_model_len max_seq_length max_length max_prompt_length context_length",
    "inference.max_turns": "max_turns max_assistant_turns max_user_turns max_turns_per_episode num_turns",
    "inference.backend": "backend use_vllm rollout_backend engine",
    "inference.temperature": "temperature sampling_temperature",
    "inference.cuda_graphs": "enforce_eager use_cuda_graph",
    "inference.max_num_seqs": "max_concurrency max_running_requests",
    "inference.base_url": "server_url api_base vllm_server_host",
    "training.learning_rate": "lr actor_lr policy_lr",
    "training.critic_learning_rate": "critic_lr value_lr",
    "training.clip_ratio": "clip_range cliprange clip_epsilon clip_eps clip_param epsilon",
    "training.clip_ratio_high": "epsilon_high cliprange_high",
    "training.clip_ratio_low": "epsilon_low cliprange_low",
    "training.cliprange_value": "value_clip vf_clip clip_range_vf value_clip_range",
    "training.lam": "gae_lambda lambda_ lmbda",
    "training.gamma": "discount discount_factor",
    "training.entropy_coef": "entropy_coeff ent_coef entropy_bonus entropy_weight",
    "training.value_loss_coef": "value_coef value_coeff vf_coef value_loss_weight critic_coef",
    "training.max_grad_norm": "grad_clip gradient_clip gradient_clipping clip_grad max_norm",
    "training.batch_size": "batch_size train_batch_size rollout_batch_size per_device_train_batch_size num_episodes num_rollouts",
    "training.mini_batch_size": "minibatch_size ppo_mini_batch_size ppo_minibatch_size",
    "training.micro_batch_tokens": "micro_batch_size ppo_micro_batch_size ppo_max_token_len_per_gpu",
    "training.ppo_epochs": "num_ppo_epochs update_epochs n_epochs",
    "training.group_size": "num_generations num_samples rollout_n n num_return_sequences",
    "training.accumulation_steps": "gradient_accumulation_steps grad_accumulation",
    "training.gradient_checkpointing": "gradient_checkpointing enable_gradient_checkpointing",
    "training.num_epochs": "epochs total_epochs num_train_epochs",
    "training.num_train_iters": "num_iterations total_steps total_training_steps max_iters num_steps max_train_steps",
    "training.num_train_iters_per_epoch": "num_iters_per_epoch steps_per_epoch",
    "training.validate_every": "test_freq eval_steps eval_interval eval_freq eval_every validation_interval",
    "training.kl_coef": "init_kl_coef kl_beta kl_penalty_coef kl_coeff",
    "training.kl_loss_coef": "use_kl_loss beta kl_loss",
    "training.kl_kind": "kl_penalty kl_estimator kl_type",
    "training.norm_adv_by_std": "norm_adv_by_std_in_grpo scale_rewards",
    "training.whiten_advantages": "normalize_advantages norm_adv normalize_advantage whiten_rewards",
    "training.lr_schedule": "lr_scheduler lr_scheduler_type scheduler warmup_style",
    "training.warmup_steps": "lr_warmup_steps num_warmup_steps",
    "training.loss_agg": "loss_agg_mode loss_type",
    "training.adv_estimator": "advantage_estimator adv_type",
    "training.seed": "seed random_seed",
    "checkpoint.output_dir": "output_dir save_dir save_path checkpoint_dir checkpoint_path default_local_dir run_dir logging_dir",
    "checkpoint.save_interval": "save_freq save_steps save_every checkpoint_interval checkpoint_freq",
    "checkpoint.keep_last_n": "keep_last max_checkpoints save_total_limit max_to_keep keep_checkpoints",
    "checkpoint.tracker_project": "project_name project",
    "checkpoint.trackers": "use_wandb report_to wandb logger",
    "environment.max_steps": "max_episode_length max_episode_steps episode_length horizon",
    "ray.num_actors": "num_workers n_workers num_rollout_workers",
    "ray.gpus_per_actor": "num_gpus num_gpus_per_actor n_gpus_per_node gpus_per_worker",
    "ray.cpus_per_actor": "num_cpus num_cpus_per_actor cpus_per_worker",
}
_SETTINGS = {name: setting for setting, names in _NAMES.items() for name in names.split()}


def setting_named(other: str) -> str | None:
    """Returns the setting (`section.name`) that another package calls `other`, or None.

    >>> setting_named("lr")
    'training.learning_rate'
    """
    return _SETTINGS.get(other)


def settings_with_other_names() -> list[str]:
    """Returns the settings that have another name in other packages."""
    return list(_NAMES)
