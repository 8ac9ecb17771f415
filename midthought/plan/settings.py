"""Input of the memory formulas: how a model is trained on one device, from the settings of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from midthought.config import RecipeConfig, settled
from midthought.errors import SettingsError
from midthought.plan.engine_choice import is_planned_in_process
from midthought.plan.hardware import GIB, Hardware

WIDTHS = {"float32": 4, "bfloat16": 2}
"""Bytes of a number."""
FROM_TRAINING = ("batch_size", "mini_batch_size", "packing", "offload_reference", "optimizer", "offload_optimizer")
"""Settings of `training` that are used as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSettings:
    """How a model is trained. Settings of a run have their names of `model`, `training` and `inference`, without `auto`."""

    device: Literal["gpu", "cpu"] = "gpu"
    """On a CPU, `local` keeps its cache while the learner works."""
    memory_gib: float = 80.0
    """Memory of the device."""
    dtype: str = "bfloat16"
    critic: Literal["none", "separate", "shared"] = "none"
    reference: bool = False
    """Whether there is a frozen reference. With LoRA it is the policy without adapters and takes no memory."""
    lora_rank: int = 0
    merge_adapters: bool = True
    optimizer: str
    offload_optimizer: bool
    offload_reference: bool
    gradient_checkpointing: bool | Literal["offload"]
    logits_mib: float
    """0: no limit."""
    packing: bool | str
    micro_batch_tokens: int
    batch_size: int
    mini_batch_size: int
    backend: Literal["local", "vllm", "apart"] = "local"
    """`local` samples with the learner's weights; `vllm` in this process has a copy, and releases its memory while the learner
    works; an engine apart has memory of its own, which is not planned."""
    gpu_memory_utilization: float = 0.5
    """The share of vLLM."""
    max_num_seqs: int = 256
    prompt_tokens: int = 1024
    max_tokens: int = 2048

    def __post_init__(self) -> None:
        if self.dtype not in WIDTHS:
            raise SettingsError(f"dtype={self.dtype!r} is not counted here; {' and '.join(WIDTHS)} are")

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return WIDTHS[self.dtype]

    @property
    def is_fused(self) -> bool:
        """Whether the learner fuses norms, LoRA layers and attention."""
        return self.device == "gpu" and self.dtype == "bfloat16"

    @property
    def tokens_of_episode(self) -> int:
        return self.prompt_tokens + self.max_tokens

    @property
    def tokens_of_pass(self) -> int:
        """Tokens of the largest micro-batch."""
        return max(self.micro_batch_tokens, self.tokens_of_episode)

    @property
    def memory_bytes(self) -> int:
        return round(self.memory_gib * GIB)


def plan_settings(config: RecipeConfig, hardware: Hardware, **fixed: Any) -> PlanSettings:
    """Returns the input for a run's settings. `fixed` replaces what does not follow from the settings. Raises `SettingsError`."""
    model, training, inference = config.model, config.training, config.inference
    in_process = hardware.kind == "gpu" and is_planned_in_process(config)
    values = {
        **{key: getattr(training, key) for key in FROM_TRAINING},
        "device": hardware.kind,
        "memory_gib": hardware.memory_gib,
        "dtype": model.weights_dtype,
        "critic": model.critic_kind if training.has_critic else "none",
        "lora_rank": model.adapter_rank,
        "reference": training.needs_reference,
        "logits_mib": training.max_logits_mib,
        "micro_batch_tokens": training.max_micro_batch_tokens,
        "gradient_checkpointing": settled(training.gradient_checkpointing, False),
        "max_tokens": inference.max_tokens,
        "max_num_seqs": settled(inference.max_num_seqs),
        "merge_adapters": inference.merge_adapters,
        "backend": "vllm" if in_process else "local",
        "gpu_memory_utilization": settled(inference.gpu_memory_utilization, 0.9),
    }
    if config.ray.use_ray or (inference.backend != "local" and not in_process):
        values |= {"backend": "apart"}
    return PlanSettings(**{**values, **fixed})
