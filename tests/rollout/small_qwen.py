"""A small, randomly initialized Qwen3 for tests with vLLM."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config


def make_model(vocab_size: int, *, tied: bool) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=96,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )
    return AutoModelForCausalLM.from_config(config).eval()
