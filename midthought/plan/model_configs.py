"""Configurations (config.json) of well-known models, for plans without network access."""

from __future__ import annotations

from typing import Any


def _config(
    model_type: str,
    hidden: int,
    layers: int,
    heads: int,
    inner: int,
    vocabulary: int,
    *,
    tied: bool = False,
    **more: Any,
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        **more,
    }


def _qwen3(hidden: int, layers: int, heads: int, inner: int, *, tied: bool = False) -> dict[str, Any]:
    return _config("qwen3", hidden, layers, heads, inner, 151_936, tied=tied, head_dim=128, attention_bias=False)


def _llama(hidden: int, layers: int, heads: int, inner: int, *, tied: bool = False) -> dict[str, Any]:
    biases = {"attention_bias": False, "mlp_bias": False}
    return _config("llama", hidden, layers, heads, inner, 128_256, tied=tied, **biases)


MODEL_CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-0.6B": _qwen3(1024, 28, 16, 3072, tied=True),
    "meta-llama/Llama-3.2-1B": _llama(2048, 16, 32, 8192, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 28, 16, 6144, tied=True),
    "Qwen/Qwen3-4B": _qwen3(2560, 36, 32, 9728, tied=True),
    "Qwen/Qwen3-8B": _qwen3(4096, 36, 32, 12288),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": _qwen3(4096, 36, 32, 12288),
    "meta-llama/Llama-3.1-8B": _llama(4096, 32, 32, 14336),
    "Qwen/Qwen3-14B": _qwen3(5120, 40, 40, 17408),
    "Qwen/Qwen2.5-32B-Instruct": _config("qwen2", 5120, 64, 40, 27648, 152_064),
    "Qwen/Qwen3-32B": _qwen3(5120, 64, 64, 25600),
    "meta-llama/Llama-3.1-70B": _llama(8192, 80, 64, 28672),
}
"""By Hugging Face name, smallest first."""
