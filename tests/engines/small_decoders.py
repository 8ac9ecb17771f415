"""Decoders that are small enough to compare to the last digit."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def random_model(config: Any, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Random weights, in evaluation mode."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval().to(dtype)


def small_model(seed: int = 0, **changes: Any) -> Any:
    """A Qwen3; `changes` of its settings."""
    return random_model(Qwen3Config(**{**SIZES, "head_dim": 8, **changes}), seed=seed)
