"""Configurations (config.json) of well-known models, for plans without network access."""

from __future__ import annotations

from typing import Any

_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_QWEN3: dict[str, Any] = {"model_type": "qwen3", "head_dim": 128}
_TIED = {"tie_word_embeddings": True}
# fmt: off
_SIZES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "Qwen/Qwen3-0.6B": ((1024, 28, 16, 3072, 151_936), _QWEN3 | _TIED),
    "meta-llama/Llama-3.2-1B": ((2048, 16, 32, 8192, 128_256), {"model_type": "llama"} | _TIED),
    "Qwen/Qwen3-1.7B": ((2048, 28, 16, 6144, 151_936), _QWEN3 | _TIED),
    "Qwen/Qwen3-4B": ((2560, 36, 32, 9728, 151_936), _QWEN3 | _TIED),
    "Qwen/Qwen3-8B": ((4096, 36, 32, 12_288, 151_936), _QWEN3),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": ((4096, 36, 32, 12_288, 151_936), _QWEN3),
    "meta-llama/Llama-3.1-8B": ((4096, 32, 32, 14_336, 128_256), {"model_type": "llama"}),
    "Qwen/Qwen3-14B": ((5120, 40, 40, 17_408, 151_936), _QWEN3),
    "Qwen/Qwen2.5-32B-Instruct": ((5120, 64, 40, 27_648, 152_064), {"model_type": "qwen2"}),
    "Qwen/Qwen3-32B": ((5120, 64, 64, 25_600, 151_936), _QWEN3),
    "meta-llama/Llama-3.1-70B": ((8192, 80, 64, 28_672, 128_256), {"model_type": "llama"}),
}
# fmt: on
MODEL_CONFIGS: dict[str, dict[str, Any]] = {
    name: {**dict(zip(_KEYS, sizes, strict=True)), "num_key_value_heads": 8, **more}
    for name, (sizes, more) in _SIZES.items()
}
"""By Hugging Face name, smallest first."""
