"""Writes a policy as folders that model servers load: the whole model with its output layer stored separately, or
its adapters alone. Does not depend on a running server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from midthought.models.gguf import quiet_transformers
from midthought.models.peft_folders import save_merged
from midthought.models.peft_weights import adapter_state, is_adapted


def has_loadable_adapters(policy: Any) -> bool:
    """Whether the adapters of the policy can be loaded by servers: LoRA or rsLoRA of one rank and scale, and nothing else.

    vLLM and SGLang refuse DoRA, `modules_to_save` and trained biases, and ignore ranks and scales of single layers.
    """
    if not hasattr(policy, "get_base_model") or len(policy.active_adapters) != 1:
        return False
    config = policy.peft_config[policy.active_adapters[0]]
    others = ("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters", "lora_bias")
    patterns = ("rank_pattern", "alpha_pattern")
    return (
        config.peft_type.value == "LORA"
        and config.bias == "none"
        and not any(getattr(config, name, None) for name in (*others, *patterns))
        and not is_adapted(policy.get_input_embeddings())
        and not is_adapted(policy.get_output_embeddings())
        and not any(disabled or merged for _, disabled, _, merged, _ in adapter_state(policy))
    )


def is_tied(policy: Any) -> bool:
    """Whether its output layer is its embedding."""
    return policy.get_output_embeddings().weight is policy.get_input_embeddings().weight


def write_model(policy: Any, path: Path, tokenizer: Any = None, *, with_adapters: bool = True) -> None:
    """Writes a model folder: the policy with its adapters merged, or with `with_adapters=False` its base model.

    The output layer of a model with tied embeddings is stored as well, so that a server
    started on the folder reloads both (vLLM's reload of tied embeddings does not change the output layer). Any Hugging Face
    tool loads the folder.
    """

    with quiet_transformers():
        save_merged(policy, path, with_adapters=with_adapters, unties_embeddings=True)
        if tokenizer is not None:
            tokenizer.save_pretrained(path)


def write_adapters(policy: Any, path: Path) -> None:
    """Writes the active adapter of a PEFT model in the form that `load_lora_adapter` reads."""
    [name] = policy.active_adapters
    policy.save_pretrained(path, selected_adapters=[name])
    if (path / name).is_dir():  # PEFT's folder for adapters that are not named "default"
        for file in (path / name).iterdir():
            file.rename(path / file.name)
        (path / name).rmdir()
