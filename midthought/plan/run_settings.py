"""Arguments of a plan from the settings of a run."""

from __future__ import annotations

from typing import Any

from midthought.config import ModelConfig, RayConfig, RecipeConfig, settled

HEAD_SIZE = 64
MLP = 3
"""Head dimension, and ratio of MLP width to hidden size, of the small model that a run creates (`learning.small_model`)."""
FROM_TRAINING = (
    "batch_size",
    "mini_batch_size",
    "packing",
    "offload_reference",
    "optimizer",
    "offload_optimizer",
)
"""Settings of `training` that a plan uses under the same name."""


def plan_arguments(config: RecipeConfig) -> dict[str, Any]:
    """Returns the arguments of a plan for a run's settings. GPUs are the ones that Ray or verl requests, if any."""
    model, training, inference = config.model, config.training, config.inference
    needs = training.needs
    found: dict[str, Any] = {key: getattr(training, key) for key in FROM_TRAINING}
    found |= {
        "logits_mib": training.max_logits_mib,
        "micro_batch_tokens": training.max_micro_batch_tokens,
        "gradient_checkpointing": training.recomputes_layers,
        "offload_activations": training.offloads_activations,
        "dtype": model.weights_dtype,
        "critic": model.critic_kind if "values" in needs else "none",
        "lora_rank": model.adapter_rank,
        "reference": training.needs_reference,
        "response_tokens": inference.max_tokens,
        "max_num_seqs": settled(inference.max_num_seqs),
        "merge_adapters": inference.merge_adapters,
    }
    if inference.backend in ("local", "vllm", "sglang"):
        found["engine"] = inference.backend
    if inference.backend == "vllm" and inference.in_process:
        found |= {"in_process": True, "engine_sleeps": True}
        found |= {"gpu_memory_utilization": settled(inference.gpu_memory_utilization, 0.9)}
    if hasattr(config, "verl"):
        return found | _of_verl(config.verl, inference.max_tokens)
    return found | _of_ray(config.ray)


def _of_ray(ray: RayConfig) -> dict[str, Any]:
    """Returns the learning and sampling GPUs, one per process; empty if learning or sampling runs on CPUs.

    Ranks share all models. A single training process has one GPU, and so has a single sampling process.
    """
    has_ranks = ray.num_learners > 1
    if not (has_ranks or ray.use_ray):
        return {}
    if (has_ranks and not ray.gpus_per_learner) or (ray.use_ray and not ray.gpus_per_actor):
        return {}
    found: dict[str, Any] = {"shard": ray.num_learners}
    if ray.colocate:
        return {**found, "gpus": ray.num_learners, "engine_copies": True}
    num_engines = ray.num_actors if ray.use_ray else 1
    return {**found, "gpus": ray.num_learners + num_engines, "engine_gpus": num_engines}


def _of_verl(verl: Any, response_tokens: int) -> dict[str, Any]:
    """Returns the machines of a section `verl`. verl's engine always sleeps while it learns, with gradient checkpointing."""
    return {
        "gpus": verl.num_nodes * verl.gpus_per_node,
        "engine": verl.rollout,
        "engine_sleeps": True,
        "offload": verl.offload,
        "tensor_parallel": verl.tensor_parallel,
        "gpu_memory_utilization": verl.gpu_memory_utilization,
        "gradient_checkpointing": True,
        "packing": verl.rows_per_gpu is None,
        "prompt_tokens": verl.max_prompt_length,
        "micro_batch_tokens": verl.max_tokens_per_gpu or 2 * (verl.max_prompt_length + response_tokens),
    }


def model_arguments(model: ModelConfig, source: str = "") -> dict[str, Any]:
    """Returns the model of a plan: `source` or the one of the settings, or the sizes of the small one that a run creates."""
    if source or model.local_path:
        return {"model": source or model.local_path}
    return {
        "hidden_size": model.hidden_size,
        "num_layers": model.num_layers,
        "num_heads": model.num_heads,
        "head_dim": HEAD_SIZE,
        "intermediate_size": MLP * model.hidden_size,
        "vocab_size": model.vocab_size,
        "tie_embeddings": True,
    }
