"""Loads and saves causal language models and tokenizers as Hugging Face folders, also with an output layer in float32.

Safetensors only; code from the folder is never run. A loading error names the path and the remedy.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from midthought.errors import MidthoughtError, ModelPathError, SettingsError, TrainingStoppedError
from midthought.files.output_folder import MANIFEST, damage_in, kind_of, replaced
from midthought.files.regular import require_regular_files
from midthought.models.gguf import is_gguf, model_folder, quiet_transformers
from midthought.models.peft_folders import ADAPTER_CONFIG, base_name_of, merged_from, save_merged

_NOTHING_WRITTEN = (
    "Nothing was written; earlier checkpoints are untouched. Lower the learning rate and resume from the last one"
)
_log = logging.getLogger(__name__)

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")
"""A tokenizer has one of these files. Without any, transformers would create an empty tokenizer for some architectures."""


def is_on_this_machine(source: str) -> bool:
    """Whether a model is a folder or GGUF file here, or a Hugging Face name whose `config.json` is in the cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if Path(source).expanduser().is_dir() or (is_gguf(source) and Path(source).expanduser().is_file()):
        return True
    try:
        return isinstance(try_to_load_from_cache(source, "config.json"), str)
    except HFValidationError:
        return False


def load_model(
    path: str | Path,
    dtype: Any = "float32",
    attn_implementation: str = "auto",
    *,
    is_checked: bool = False,
    model_class: Any = None,
) -> Any:
    """Loads a causal LM from a folder, a GGUF file (`model_folder`) or a Hugging Face name. `attn_implementation`: transformers'
    name, or `auto`, its default. `model_class`: its class; None: the one that transformers has for its configuration.

    For a folder of adapters (a checkpoint with LoRA), loads their base model and merges the adapters. Raises `ModelPathError`,
    with the path and the remedy, if there is no folder, no model, or an incomplete one, and as `require_intact_model`, unless
    the folder `is_checked` already.
    """
    given, path = path, model_folder(path)
    folder = Path(path).expanduser()
    require_regular_files(folder)
    if not is_checked:
        require_intact_model(folder)
    if (folder / ADAPTER_CONFIG).is_file():
        try:
            return merged_from(folder, lambda base: load_model(base, dtype, attn_implementation))
        except MidthoughtError:
            raise
        except Exception as error:  # damaged adapters can cause any error
            raise ModelPathError(
                f"model path {str(path)!r}: its adapters do not load ({why_not_loaded(error)}); save them anew, or give another "
                "path"
            ) from error
    remedy = _remedy_for(folder, str(path))
    try:
        with quiet_transformers():
            policy = _loaded(str(folder if folder.is_dir() else path), dtype, attn_implementation, model_class)
    except Exception as error:
        reason = why_not_loaded(error)
        raise ModelPathError(
            f"model path {str(path)!r} does not load as a causal language model from safetensors: {reason}; {remedy}"
        ) from error
    allow_sampling_options(policy)
    if path != given:  # the base model that adapters name; the cache may be deleted
        policy.name_or_path = str(Path(given).expanduser().absolute())
    return policy.eval()


def load_weights(model: Any, folder: Path, *, is_checked: bool = False) -> None:
    """Gives a model the weights in a folder. Its own class reads them, so none of the folder's code is needed for an unknown one.

    Raises `ModelPathError` as `load_model`, RuntimeError if they are another model's.
    """
    dtype = functools.reduce(torch.promote_types, {each.dtype for each in model.parameters()})  # none is rounded
    saved = load_model(folder, dtype, is_checked=is_checked, model_class=type(model))
    model.load_state_dict(saved.state_dict())


def allow_sampling_options(model: Any) -> None:
    """Sets `do_sample` of a model whose generation config has sampling options without it, as published ones have: transformers
    refuses to save such a model."""
    try:
        if getattr(model, "generation_config", None) is not None:
            model.generation_config.validate(strict=True)
    except ValueError:
        model.generation_config.do_sample = True


def _remedy_for(folder: Path, path: str) -> str:
    """Returns the remedy if the model of this folder or Hugging Face name does not load. Raises `ModelPathError` for others."""
    if not folder.is_dir():
        if not _looks_like_hub_name(path):
            raise ModelPathError(f"model path {path!r} is not a folder; give the one that holds config.json")
        return "give a folder on this machine, or a Hugging Face name that can be reached from it"
    if not (folder / "config.json").is_file():
        files = ", ".join(sorted(str(file) for file in (*folder.glob("*.gguf"), *folder.glob("policy")))[:3])
        remedy = f"give what is in it: {files}" if files else "give a folder that `save_pretrained` wrote"
        raise ModelPathError(f"model path {path!r} has no config.json; {remedy}")
    return "save it anew with `save_pretrained`, or give another path"


def _loaded(name: str, dtype: Any, attn_implementation: str, model_class: Any) -> Any:
    """Returns the model, of one that also reads images its text part. Raises ValueError if it lacks weights, or if
    what is saved of it could not be loaded."""
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": False, "use_safetensors": True}
    options |= {} if attn_implementation == "auto" else {"attn_implementation": attn_implementation}
    loaded: Any = (model_class or AutoModelForCausalLM).from_pretrained(name, **options, output_loading_info=True)
    policy, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"it lacks {len(missing)} of the model's weights, first {missing[0]!r}")
    if model_class is None and type(policy.config) not in AutoModelForCausalLM._model_mapping:
        raise ValueError(f"transformers cannot load its text part alone ({policy.config.model_type})")
    return policy


def require_intact_model(folder: Path) -> None:
    """Raises `ModelPathError` if this library wrote a model folder, or the checkpoint that it is in, and a file is not as it was
    written. Other folders are not looked at."""
    for place, below in ((folder, ""), (folder.parent, f"{folder.name}/")):
        found = "" if kind_of(place) is None else damage_in(place, below)
        if found:
            raise ModelPathError(
                f"model path {str(folder)!r} {found}; take a checkpoint of the run, or, if the file was changed on purpose, "
                f"delete {place / MANIFEST}"
            )


def why_not_loaded(error: Exception) -> str:
    """Returns the reason of a loading error in one sentence. Names the remedy if the model asks for code of its own."""
    words = " ".join(str(error).split())
    if "custom code" in words or "trust_remote_code" in words:
        return (
            "it needs code from its own folder (trust_remote_code), which is never run here; use a model whose architecture "
            "transformers has"
        )
    return words.partition(". ")[0][:300] or type(error).__name__


def placed(model: Any, device: str) -> Any:
    """Moves the model to a device: `cpu`, `cuda`, `cuda:1` …; `auto`: the first GPU if torch finds one, else unchanged.

    Raises `SettingsError` if there is no such device.
    """
    if device == "auto":
        return model.to("cuda") if torch.cuda.is_available() else model
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        known = ["auto", "cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        reason = str(error).splitlines()[0][:200]
        raise SettingsError(
            f"no device {device!r} for the model here ({reason}); there are: {', '.join(known)}"
        ) from None


def policy_folder(path: Path, in_run: Sequence[str] = ("policy", "warmup")) -> Path:
    """Returns the model folder that a path means: the path itself, that of a GGUF file, or the first of the folders `in_run` that
    a run or a checkpoint has. Raises ModelPathError if there is none, or if that folder holds no model: the next one is another
    model."""
    path = Path(model_folder(path))
    for candidate in (path, *(path / name for name in in_run)):
        if any((candidate / name).is_file() for name in ("config.json", ADAPTER_CONFIG)):
            return candidate
        if candidate != path and candidate.is_dir() and any(candidate.iterdir()):
            raise ModelPathError(
                f"{candidate} is not whole: config.json (of an adapter: {ADAPTER_CONFIG}) is missing; restore it from a copy"
            )
    raise ModelPathError(f"{path} holds no policy; give a run folder, a checkpoint, or a folder with config.json")


def load_tokenizer(path: str | Path) -> Any:
    """Loads the tokenizer of a model folder or GGUF file, or of the base model of adapters that have none. The default pad token
    is the end-of-sequence token. Raises `ModelPathError`."""
    from transformers import AutoTokenizer

    path = model_folder(path)
    folder = Path(path).expanduser()
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        if (folder / ADAPTER_CONFIG).is_file():
            return load_tokenizer(base_name_of(folder))
        _remedy_for(folder, str(path))
        raise ModelPathError(f"{path} holds a model but no tokenizer; save one beside it with `save_pretrained`")
    require_regular_files(folder)
    remedy = "save one beside it" if folder.is_dir() else _remedy_for(folder, str(path))
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder if folder.is_dir() else path), trust_remote_code=False)
    except Exception as error:  # a damaged tokenizer.json can cause any error
        raise ModelPathError(f"{path} has no tokenizer that loads ({why_not_loaded(error)}); {remedy}") from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def warn_without_template(tokenizer: Any, what: str) -> None:
    """Says how conversations are written if the tokenizer of a model has no chat template."""
    if not tokenizer.chat_template:
        instead = "texts are joined by newlines, without roles; for another form set tokenizer.chat_template"
        _log.warning("%s has no chat template: %s", what, instead)


def save_model(
    model: Any, tokenizer: Any, path: str | Path, *, in_run: bool = False, generation: Mapping[str, Any] | None = None
) -> None:
    """Writes a folder that `load_model` and any Hugging Face tool can load, completely or not at all.

    Adapters are merged into the written weights (`peft_folders.save_merged`); the model is not changed. `generation`: values of
    `generation_config.json` besides the model's own. Raises
    `OutputPathError` if `path` contains anything but a model that was saved here, except with `in_run` (models of a run folder).
    """
    with replaced(path, "model", in_run=in_run) as folder, quiet_transformers():
        if hasattr(model, "peft_config"):
            save_merged(model, folder)
        else:
            model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if generation:
            config = copy.deepcopy(model.generation_config)
            config.update(**generation)
            config.save_pretrained(folder)
    warn_without_template(tokenizer, str(path))


def _looks_like_hub_name(path: str) -> bool:
    """Whether it is `owner/name` and `owner` is not a folder here, which would mean a mistyped path."""
    owner, _, name = path.partition("/")
    return bool(owner and name) and "/" not in name and owner[0] not in ".~" and not Path(owner).is_dir()


def require_finite(model: Any, what: str, remedy: str = _NOTHING_WRITTEN) -> None:
    """Raises `TrainingStoppedError` if a weight of a module is NaN or infinite. `what` names the module."""
    parameters = {name: value.detach() for name, value in model.named_parameters() if value.is_floating_point()}
    flags = {name: value.isfinite().all() for name, value in parameters.items()}
    wrong = [name for name, flag in flags.items() if not flag]
    if wrong:
        count = int((~parameters[wrong[0]].isfinite()).sum())
        raise TrainingStoppedError(
            f"{what}: {len(wrong)} of {len(flags)} tensors hold values that are not finite, first {wrong[0]!r} ({count} of "
            f"{parameters[wrong[0]].numel()} values). {remedy}"
        )


class Float32Linear(nn.Linear):
    """A linear layer whose product is computed in float32. The weight keeps its type, so it may be shared with the embeddings.

    Sources: MiniMax-M1 (arXiv 2506.13585) and ScaleRL (arXiv 2510.13786): sampling and training agree better.
    """

    @property
    def dtype(self) -> torch.dtype:
        """The type of the product: float32, or the weight's if that is wider."""
        return torch.promote_types(self.weight.dtype, torch.float32)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., in] -> [..., out], in `dtype`, also under autocast."""
        bias = None if self.bias is None else self.bias.to(self.dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden.to(self.dtype), self.weight.to(self.dtype), bias)


def use_float32_head(model: Any) -> None:
    """Makes the output layer of a causal LM compute in float32, in place; copies of the model do so, too.

    Raises SettingsError if the output layer is not an `nn.Linear`.
    """
    head = model.get_output_embeddings()
    if type(head) not in (nn.Linear, Float32Linear):
        raise SettingsError(
            f"model.float32_head=true: the output layer of {type(model).__name__} is a {type(head).__name__}, not an "
            "nn.Linear; set model.float32_head to false"
        )
    head.__class__ = Float32Linear
