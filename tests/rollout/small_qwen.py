"""Small models with random weights, a Qwen3 for tests with vLLM, and the settings of its training."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen3Config

from midthought import create_default_config
from midthought.config import ConfigStore
from midthought.tokenization import Renderer


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


def small_model(config_class: type[PreTrainedConfig], renderer: Renderer, **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    no_tokens = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    config = config_class(vocab_size=len(renderer.tokenizer), **{**sizes, **heads, **no_tokens, **more})
    return AutoModelForCausalLM.from_config(config).eval()


def token_logprobs(model: Any, token_ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of each token after the first one, by one plain forward pass."""
    ids = torch.tensor([list(token_ids)])
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]


def vllm_settings(num_iters: int, learning_rate: float, **inference: Any) -> ConfigStore:
    """Settings of a run with vLLM: GRPO in groups of four, an update in each iteration."""
    sampling = {"backend": "vllm", "max_tokens": 60, "max_num_seqs": 16}
    batch = {"adv_estimator": "grpo", "group_size": 4, "batch_size": 16, "mini_batch_size": 8, "validate_every": 0}
    lengths = {"learning_rate": learning_rate, "num_train_iters": num_iters}
    return create_default_config(inference=sampling | inference, training=batch | lengths)
