"""Configurations (config.json) of well-known models, for plans without network access."""

from __future__ import annotations

from typing import Any


def _qwen3(hidden: int, layers: int, heads: int, inner: int, *, tied: bool = False) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": inner,
        "vocab_size": 151_936,
        "tie_word_embeddings": tied,
        "attention_bias": False,
    }


def _llama(hidden: int, layers: int, heads: int, inner: int, *, tied: bool = False) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": inner,
        "vocab_size": 128_256,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
    }


def _qwen2(hidden: int, layers: int, heads: int, kv_heads: int, inner: int, vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
    }


MODEL_CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-0.6B": _qwen3(1024, 28, 16, 3072, tied=True),
    "meta-llama/Llama-3.2-1B": _llama(2048, 16, 32, 8192, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 28, 16, 6144, tied=True),
    "Qwen/Qwen3-4B": _qwen3(2560, 36, 32, 9728, tied=True),
    "Qwen/Qwen3-8B": _qwen3(4096, 36, 32, 12288),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": _qwen3(4096, 36, 32, 12288),
    "meta-llama/Llama-3.1-8B": _llama(4096, 32, 32, 14336),
    "Qwen/Qwen3-14B": _qwen3(5120, 40, 40, 17408),
    "Qwen/Qwen2.5-32B-Instruct": _qwen2(5120, 64, 40, 8, 27648, 152_064),
    "Qwen/Qwen3-32B": _qwen3(5120, 64, 64, 25600),
    "meta-llama/Llama-3.1-70B": _llama(8192, 80, 64, 28672),
}
"""By Hugging Face name, smallest first."""
