"""Writes a policy as folders that model servers load: the whole model with its output layer stored apart, or its adapters
alone. A folder appears complete or not at all. Does not depend on a running server.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from midthought.output_folder import mark, require_ours
from midthought.peft_weights import adapter_state, base_of, is_adapted, model_tensors, stochastically_rounded
from midthought.pretrained import quiet_transformers

_INDEX = "model.safetensors.index.json"


def are_loadable(policy: Any) -> bool:
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
        and not _wraps_vocabulary(policy)
        and not any(disabled or merged for _, disabled, _, merged, _ in adapter_state(policy))
    )


def _wraps_vocabulary(policy: Any) -> bool:
    return is_adapted(policy.get_input_embeddings()) or is_adapted(policy.get_output_embeddings())


def is_tied(policy: Any) -> bool:
    """Whether its output layer is its embedding."""
    return policy.get_output_embeddings().weight is policy.get_input_embeddings().weight


def write_model(policy: Any, path: Path, tokenizer: Any = None, *, with_adapters: bool = True) -> None:
    """Write a model folder: what the policy computes, adapters merged, or with `with_adapters=False` its base model.

    Merged weights are rounded stochastically, so that small adapters of a bfloat16 model count. The output layer of a model
    with tied embeddings is stored too, and the folder says that they are two: a server started on it reloads both
    (vLLM's own reload of tied ones leaves the output layer as it was). Any Hugging Face tool loads the folder.
    """
    model = base_of(policy)

    def write(partial: Path) -> None:
        tensors = model_tensors(model, with_adapters=with_adapters, device="cpu", round_to=stochastically_rounded)
        states = dict(tensors)
        with quiet_transformers():
            _plainly(model).save_pretrained(partial, state_dict=dict(states))
            if tokenizer is not None:
                tokenizer.save_pretrained(partial)
        if model.config.get_text_config().tie_word_embeddings:
            head = model.get_output_embeddings()
            name = next(name for name, module in model.named_modules() if module is head) + ".weight"
            _store_apart(name, states[name], partial)

    _whole_or_not_at_all(path, write)


def _plainly(model: Any) -> Any:
    """The model, which transformers saves whole: of one with `model.add_adapter` it would save the adapters alone."""
    if not getattr(model, "_hf_peft_config_loaded", False):
        return model
    plain = copy.copy(model)
    plain._hf_peft_config_loaded = False
    return plain


def write_adapters(policy: Any, path: Path) -> None:
    """Write the active adapter of a PEFT model as `load_lora_adapter` takes it."""
    [name] = policy.active_adapters

    def write(partial: Path) -> None:
        policy.save_pretrained(partial, selected_adapters=[name])
        if (partial / name).is_dir():  # PEFT's place for adapters that are not called "default"
            for file in (partial / name).iterdir():
                file.rename(partial / file.name)
            (partial / name).rmdir()

    _whole_or_not_at_all(path, write)


def _store_apart(name: str, head: Any, folder: Path) -> None:
    """Give a folder of a model with tied embeddings the output layer as a tensor of its own, in a file of its own."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    if (folder / _INDEX).is_file():
        index = json.loads((folder / _INDEX).read_text("utf-8"))
    else:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
        with safe_open(folder / "model-00001-of-00002.safetensors", "pt") as file:
            index = {"metadata": {}, "weight_map": dict.fromkeys(file.keys(), "model-00001-of-00002.safetensors")}
    index["weight_map"][name] = "model-00002-of-00002.safetensors"
    if (folder / index["weight_map"][name]).exists():
        index["weight_map"][name] = "model-output-layer.safetensors"
    save_file({name: head.detach().clone()}, folder / index["weight_map"][name], metadata={"format": "pt"})
    (folder / _INDEX).write_text(json.dumps(index, indent=2), "utf-8")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    for section in (config, *(value for value in config.values() if isinstance(value, dict))):
        if section is config or "tie_word_embeddings" in section:
            section["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")


def _whole_or_not_at_all(path: Path, write: Callable[[Path], None]) -> None:
    require_ours(path, "model")
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    write(partial)
    mark(partial, "model")
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)
