"""Configurations of models with two layers: nothing is downloaded."""

from typing import Any

VOCABULARY = 48


def tiny_config(kind: str = "Qwen3", **changes: Any) -> Any:
    """A configuration of two layers of one of transformers' architectures."""
    import transformers

    options: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if kind == "GPT2":
        options = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128}
        options |= {"bos_token_id": 1, "eos_token_id": 2}
    return getattr(transformers, f"{kind}Config")(**{**options, **changes})
