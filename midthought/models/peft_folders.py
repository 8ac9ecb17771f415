"""PEFT models on disk: adapters without their base model, or the whole model with the adapters merged into its weights.

Does not depend on training. The weights themselves: `peft_weights`.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from midthought.errors import ModelPathError
from midthought.files.regular import read_json_object
from midthought.models.peft_weights import base_of, effective_tensors, is_adapted, model_leaves

ADAPTER_CONFIG, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"
MAX_SHARD_BYTES = 2 * 2**30
_LAYER = re.compile(r"(.*?\.\d+)\.")


def save_adapters(model: Any, folder: Path) -> None:
    """Writes the adapters as PEFT does (`PeftModel.from_pretrained` loads them), and nothing of the base model.

    The file's metadata holds a digest of the base weights.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    base_path = Path(base_of(model).name_or_path)  # merged adapters are rounded differently in each data type
    digest = "" if (base_path / ADAPTER_CONFIG).is_file() else base_digest(base_of(model))
    for name, config in model.peft_config.items():
        where = _adapter_folder(model, name, folder)
        where.mkdir(parents=True, exist_ok=True)
        tensors = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
        prefix = _key_prefix(model)
        copies = {prefix + key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in tensors.items()}
        save_file(copies, where / ADAPTER_FILE, metadata={"format": "pt", "base": digest})
        saved = copy.deepcopy(config)
        base = saved.base_model_name_or_path or base_of(model).name_or_path  # PEFT names it in the first adapter only
        saved.base_model_name_or_path = str(Path(base).resolve()) if base and Path(base).is_dir() else base
        saved.inference_mode = True
        saved.save_pretrained(where)


def load_adapters(model: Any, folder: Path) -> None:
    """Loads the adapters that `save_adapters` wrote into a model that has the same ones.

    Raises `ModelPathError` if they belong to another base model, RuntimeError if they are other adapters.
    """
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    for name in model.peft_config:
        file = _adapter_folder(model, name, folder) / ADAPTER_FILE
        if not file.is_file():
            raise RuntimeError(f"{folder} holds no adapter {name!r}")
        _require_base(base_of(model), file)
        tensors = {key.removeprefix(_key_prefix(model)): tensor for key, tensor in load_file(file).items()}
        result: Any = set_peft_model_state_dict(model, tensors, adapter_name=name)
        missing = [key for key in result.missing_keys if "lora_" in key and f".{name}." in f"{key}."]
        if missing or result.unexpected_keys:
            raise RuntimeError(f"adapters do not fit: {(missing or result.unexpected_keys)[0]!r}")


def base_name_of(folder: Path) -> str:
    """Returns the base model that a folder of adapters names. Raises `ModelPathError`.

    Without a name it is the model in whose folder the adapters are, as verl's `model_merger` writes them. If the base was moved
    together with the adapters, it is found beside their folder or above it."""
    file = folder / ADAPTER_CONFIG
    try:
        base = read_json_object(file).get("base_model_name_or_path")
    except (OSError, ValueError) as error:
        raise ModelPathError(
            f"{file} cannot be read ({' '.join(str(error).split())[:200]}); save the adapters anew"
        ) from None
    if not base and (folder.resolve().parent / "config.json").is_file():
        return str(folder.resolve().parent)
    if not isinstance(base, str) or not base or "\0" in base:
        raise ModelPathError(
            f"{folder} contains adapters, but does not name their base model; write base_model_name_or_path in {file}"
        )
    if Path(base).is_absolute() and not Path(base).is_dir():
        moved = [parent / Path(base).name for parent in folder.resolve().parents]
        base = next((str(place) for place in moved if (place / "config.json").is_file()), base)
    if Path(base).resolve() == folder.resolve():
        raise ModelPathError(
            f"{folder} contains adapters and is named as their base; give the model that they were trained on"
        )
    return base


def merged_from(folder: Path, load_base: Callable[[str], Any]) -> Any:
    """Returns the base model that a folder of adapters names, loaded by `load_base`, with the adapters merged.

    Raises `ModelPathError` as `base_name_of`, or if it has other weights than the one that the adapters were trained on.
    """
    from peft import PeftModel
    from safetensors import safe_open

    base = base_name_of(folder)
    try:
        model = load_base(base)
    except ModelPathError as error:
        raise ModelPathError(f"base_model_name_or_path in {folder / ADAPTER_CONFIG}: {error}") from None
    _require_base(model, folder / ADAPTER_FILE)
    embeddings = next(name for name, module in model.named_modules() if module is model.get_input_embeddings())
    with safe_open(folder / ADAPTER_FILE, "pt") as file:
        for key in file.keys():  # noqa: SIM118  # it is no mapping
            if key.endswith(f".{embeddings}.weight"):  # of a vocabulary with new tokens
                model.resize_token_embeddings(file.get_slice(key).get_shape()[0], mean_resizing=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys")  # PEFT would go on without them
        merged = merge(PeftModel.from_pretrained(model, folder)).requires_grad_(True)
    merged.name_or_path = str(folder.resolve())  # the base model that new adapters name
    return merged


@torch.no_grad()
def merge(model: Any) -> Any:
    """Merges the adapters into the base model's own weights, layer by layer, and returns the base model with its own layers."""
    base = base_of(model)
    is_tied = _is_tied(base)
    layers: list[Any] = [leaf for _, leaf in model_leaves(base) if isinstance(leaf, nn.Module)]
    for layer in layers:
        if hasattr(layer, "token_adapter"):
            layer.token_adapter.merge()
        elif hasattr(layer, "get_base_layer"):
            tensors = effective_tensors(layer)
            for name, parameter in layer.get_base_layer().named_parameters():
                parameter.data = tensors[name]
    model.unload()
    if not is_tied:
        base.config.tie_word_embeddings = base.config.get_text_config().tie_word_embeddings = False
    return base


@torch.no_grad()
def save_merged(model: Any, folder: Path, *, with_adapters: bool = True, unties_embeddings: bool = False) -> None:
    """Writes a model as a plain Hugging Face model folder, its active adapters merged into the weights.

    The weights are computed on the CPU, whose memory holds them until they are written. The model is not changed. bfloat16
    weights are rounded stochastically, as the engine's copies.

    Args:
        with_adapters: False writes the base model.
        unties_embeddings: stores the output layer of a model with tied embeddings as well, and the configuration says that
            they are not tied.
    """
    from huggingface_hub import save_torch_state_dict

    base = base_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    is_tied = not unties_embeddings and _is_tied(base)
    tensors = dict(merged_tensors(base, with_adapters=with_adapters, skips_output_layer=is_tied, device="cpu"))
    for name, tensor in tensors.items():
        if tensor.untyped_storage().nbytes() > tensor.nbytes:  # an expert of several
            tensors[name] = tensor.clone()
    save_torch_state_dict(tensors, folder, max_shard_size=MAX_SHARD_BYTES)
    save_config(base, folder, next(iter(tensors.values())).dtype, is_tied=is_tied)


def base_digest(base: Any) -> str:
    """Returns a digest of a few values of each weight, in bfloat16, which identifies the base model; empty on the meta device."""
    digest = hashlib.blake2b(digest_size=16)
    wrappers = re.compile(r"\.(base_layer|original_module|token_adapter)(?=\.)")  # experts have several
    for plain, name, tensor in sorted((wrappers.sub("", name), name, each) for name, each in base.named_parameters()):
        if "lora_" in name or ".modules_to_save." in name or "trainable_tokens" in name:
            continue
        if tensor.is_meta:
            return ""
        flat = tensor.detach().flatten()
        values = flat[:: max(1, len(flat) // 64)].to("cpu", torch.bfloat16).view(torch.int16)
        digest.update(f"{plain} {tuple(tensor.shape)}".encode() + values.numpy().tobytes())
    return digest.hexdigest()


def _require_base(base: Any, file: Path) -> None:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        expected = (opened.metadata() or {}).get("base", "")
    found = base_digest(base)
    if expected and found and expected != found:
        raise ModelPathError(
            f"{file.parent} contains adapters of another base model than the one given (their weights differ); give the model "
            "that the run started with"
        )


def _key_prefix(model: Any) -> str:
    """Returns what the names of weights in a file of adapters have before the model's own, if its adapters are transformers'."""
    return "" if hasattr(model, "get_base_model") else "base_model.model."


def _adapter_folder(model: Any, adapter: str, folder: Path) -> Path:
    active = model.active_adapters  # a method, if `add_adapter` of transformers made them
    return folder if adapter == (active() if callable(active) else active)[0] else folder / adapter


# -- merged weights ------------------------------------------------------------------------------------------------


@torch.no_grad()
def merged_tensors(
    model: Any, *, with_adapters: bool = True, skips_output_layer: bool = False, device: str | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors that `save_merged` writes, layer by layer, under the names that checkpoints of this architecture use.

    `device` None: each on its own device; those that have no adapters are the model's own, not copies.
    """
    from transformers.core_model_loading import revert_weight_conversion

    base = base_of(model)
    head = base.get_output_embeddings()
    head_prefix = next((f"{name}." for name, module in base.named_modules() if module is head), "-")
    seen: set[int] = set()

    def read(leaf: tuple[str, nn.Module | Tensor]) -> dict[str, Tensor]:
        name, value = leaf
        is_head = name.startswith(head_prefix)
        if is_head and skips_output_layer:
            return {}
        if isinstance(value, nn.Module):
            return {name + key: tensor for key, tensor in effective_tensors(value, device).items()}
        is_shared = id(value) in seen
        if is_shared and not is_head:
            return {}
        seen.add(id(value))
        return {name: value.detach() if device is None else value.detach().to(device, copy=is_shared)}

    leaves = model_leaves(base, with_adapters=with_adapters)
    for _, group in itertools.groupby(leaves, lambda leaf: (match := _LAYER.match(leaf[0])) and match[1]):
        tensors = {name: tensor for leaf in group for name, tensor in read(leaf).items()}
        for name, tensor in revert_weight_conversion(base, tensors).items() if tensors else ():
            yield name, tensor.contiguous()


def _is_tied(base: Any) -> bool:
    """Whether the output layer computes with the weight of the embedding, adapters included."""
    read, written = base.get_input_embeddings(), base.get_output_embeddings()
    if written is None or not base.config.get_text_config().tie_word_embeddings:
        return False
    if not is_adapted(read) and not is_adapted(written):
        return read.weight is written.weight
    first, second = (
        effective_tensors(each, "cpu")["weight"] if is_adapted(each) else each.weight.detach().cpu()
        for each in (read, written)
    )
    return first.shape == second.shape and torch.equal(first, second)


def save_config(base: Any, folder: Path, dtype: Any, *, is_tied: bool) -> None:
    """Writes the configuration of a model folder whose weights have this dtype."""
    config = copy.deepcopy(base.config)
    config.architectures = [type(base).__name__]
    config.dtype = str(dtype).removeprefix("torch.")
    if not is_tied:
        config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = False
    config.save_pretrained(folder)
    if base.can_generate():
        base.generation_config.save_pretrained(folder)
