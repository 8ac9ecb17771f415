"""A policy as folders that model servers load: the whole model with its output layer stored apart, or its adapters alone.

Folders appear whole or not at all. Knows safetensors and peft; nothing of servers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from midthought.output_folder import require_ours
from midthought.pretrained import quiet_transformers

_INDEX = "model.safetensors.index.json"


def has_adapters(policy: Any) -> bool:
    """Whether it is a peft model, whose adapters alone learn."""
    return hasattr(policy, "peft_config")


def is_tied(policy: Any) -> bool:
    """Whether its output layer is its embedding."""
    return policy.get_output_embeddings().weight is policy.get_input_embeddings().weight


def write_model(policy: Any, path: Path, tokenizer: Any = None) -> None:
    """Write a model folder, adapters left out.

    Tied embeddings are stored twice, and the folder says that they are two: a server started on it reloads both
    (vLLM's own reload of tied ones leaves the output layer as it was). Any Hugging Face tool loads the folder.
    """
    model = policy.get_base_model() if has_adapters(policy) else policy

    def write(partial: Path) -> None:
        states = {name: value for name, value in model.state_dict().items() if "lora_" not in name}
        plain = {name.replace(".base_layer.", "."): value for name, value in states.items()}
        with quiet_transformers():
            model.save_pretrained(partial, state_dict=plain)
            if tokenizer is not None:
                tokenizer.save_pretrained(partial)
        if is_tied(model):
            _store_apart(model, partial)

    _whole_or_not_at_all(path, write)


def write_adapters(policy: Any, path: Path) -> None:
    """Write the adapters of a peft model as `load_lora_adapter` takes them."""
    _whole_or_not_at_all(path, policy.save_pretrained)


def _store_apart(model: Any, folder: Path) -> None:
    """Give a folder of a tied model the output layer as a tensor of its own, in a file of its own."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    head = model.get_output_embeddings().weight
    name = next(name for name, value in model.named_parameters(remove_duplicate=False) if _is_head(name, value, model))
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


def _is_head(name: str, value: Any, model: Any) -> bool:
    """The output layer's own name; the embedding's is another name of the same tensor."""
    return value is model.get_output_embeddings().weight and model.get_submodule(name.rpartition(".")[0]) is (
        model.get_output_embeddings()
    )


def _whole_or_not_at_all(path: Path, write: Callable[[Path], None]) -> None:
    require_ours(path, "model")
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    write(partial)
    partial.rename(path)
