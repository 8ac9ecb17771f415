"""A small, randomly initialized Qwen3 for tests with vLLM, and the settings of its training."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from midthought import create_default_config
from midthought.config import ConfigStore


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


def vllm_settings(num_iters: int, learning_rate: float, **inference: Any) -> ConfigStore:
    """Settings of a run with vLLM: GRPO in groups of four, an update in each iteration."""
    sampling = {"backend": "vllm", "max_tokens": 60, "max_num_seqs": 16}
    batch = {"adv_estimator": "grpo", "group_size": 4, "batch_size": 16, "mini_batch_size": 8, "validate_every": 0}
    lengths = {"learning_rate": learning_rate, "num_train_iters_per_epoch": 1, "num_epochs": num_iters}
    return create_default_config(inference=sampling | inference, training=batch | lengths)
