"""Converts GGUF files to Hugging Face folders in the user's cache, once each; then every engine reads the folder.

A GGUF file is data from outside: what it declares is compared with its length before memory is allocated. None of it is code.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from midthought.config.references import require_installed
from midthought.errors import ModelPathError
from midthought.files.output_folder import damage_in, describe, kind_of, replaced
from midthought.files.regular import read_json_object, storage_errors

_log = logging.getLogger(__name__)

CHECKED: set[Path] = set()
"""Folders whose files this process has compared with their manifest."""
_NOTE, _TOKENS = "gguf.json", "tokenizer.ggml.tokens"
_AS_GPT2 = ("gpt-2", "jais", "mpt", "olmo", "trillion")
_DIGITS_APART = ("codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder")
"""Names of splits that are GPT-2's, and GPT-2's after every digit was split apart (llama.cpp, `llama-vocab.cpp`)."""

_digest = functools.cache(lambda file, size, changed_ns: describe(file)["sha256"])


def is_gguf(source: str | Path) -> bool:
    """Whether the path ends with `.gguf` and is not a folder. The file need not exist."""
    path = Path(source)
    return path.suffix.lower() == ".gguf" and not path.expanduser().is_dir()


def model_folder(source: str | Path) -> str | Path:
    """Returns the folder that holds the model of a GGUF file, in float32 with tokenizer and chat template; the first call for a
    file writes it to `$XDG_CACHE_HOME/midthought/gguf`. Returns any other source unchanged.

    Says once per process that the weights were rounded. Raises `ModelPathError` if the file does not exist, is damaged, or
    cannot be read by transformers, `MissingExtraError`, `StorageError`.
    """
    import fcntl

    if not is_gguf(source):
        return source
    file = _existing(source)
    with storage_errors(file):
        found = file.stat()
        digest = _digest(file, found.st_size, found.st_mtime_ns)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "midthought" / "gguf"
    name = f"{digest[:32]}-{version('transformers')}"
    folder = cache / name
    if folder in CHECKED and kind_of(folder) == "model":
        return folder
    with storage_errors(cache, "or set XDG_CACHE_HOME to another folder"):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (cache / f".{name}.lock").open("w") as lock:
            with suppress(OSError):  # a file system without locks: runs that start together disturb each other
                fcntl.flock(lock, fcntl.LOCK_EX)
            if kind_of(folder) != "model" or damage_in(folder):
                _log.warning("model path %r: converting it to %s, once", str(source), folder)
                with replaced(folder, "model") as new, quiet_transformers():
                    _convert(file, new)
        note = read_json_object(folder / _NOTE)["note"]
    if note:
        _log.warning("model path %r: %s", str(source), note)
    CHECKED.add(folder)
    return folder


def gguf_config(source: str | Path) -> dict[str, Any]:
    """Returns the configuration of a GGUF file's model, as in a `config.json`, without reading weights."""
    from transformers import AutoConfig

    file = _existing(source)
    _read_header(file)
    with _alone(file) as where:
        return dict(AutoConfig.from_pretrained(**where).to_dict())


@contextmanager
def _alone(file: Path) -> Iterator[dict[str, Any]]:
    """Yields arguments of `from_pretrained` for the file in a folder of its own: transformers would also read other files beside
    it. Raises `ModelPathError` if the block fails."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "model.gguf").symlink_to(file)
        try:
            yield {"pretrained_model_name_or_path": place, "gguf_file": "model.gguf"}
        except Exception as error:  # transformers and tokenizers raise any error on a file that they cannot read
            raise ModelPathError(
                f"model path {str(file)!r} cannot be read by transformers: {_reason(error)}; give the model's Hugging Face "
                "folder, or another file"
            ) from error


def _existing(source: str | Path) -> Path:
    """Returns the path of a GGUF file. Raises `ModelPathError` if it is none, `MissingExtraError` if it cannot be read here."""
    file = Path(source).expanduser().resolve()
    if not file.is_file():
        raise ModelPathError(
            f"model path {str(source)!r} does not exist or is not a file; give a GGUF file that is here"
        )
    require_installed("gguf", "gguf", "accelerate", "transformers.integrations.gguf")
    return file


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    metadata, tensors = _read_header(file)
    with _alone(file) as where:
        num_unread = _num_unread(AutoConfig.from_pretrained(**where), tensors)
        tokenizer = AutoTokenizer.from_pretrained(**where)
        _correct_split(tokenizer, metadata)
        options = {"dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
        model, info = AutoModelForCausalLM.from_pretrained(**where, **options, output_loading_info=True)
        if missing := sorted(info["missing_keys"]):
            raise ValueError(f"it lacks {len(missing)} of the model's weights, first {missing[0]!r}")
    vars(model.config).pop("quantization_config", None)
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    saved = read_json_object(folder / "tokenizer.json")
    # transformers adds GPT-2's <|endoftext|> to a vocabulary without it; the model has no embedding for such a token
    saved["added_tokens"] = [token for token in saved["added_tokens"] if token["id"] < len(metadata[_TOKENS])]
    (folder / "tokenizer.json").write_text(json.dumps(saved, ensure_ascii=False), encoding="utf-8")
    (folder / _NOTE).write_text(
        json.dumps({"file": str(file), "note": _note(tensors, num_unread)}, indent=1) + "\n", encoding="utf-8"
    )


def _read_header(file: Path) -> tuple[dict[str, Any], Sequence[Any]]:
    """Returns metadata and tensors, of which nothing is read yet. transformers' reader goes first: it allocates no more than the
    file has. Raises `ModelPathError` if it is no GGUF file, or ends too early."""
    from gguf import GGUFReader
    from transformers.integrations.gguf.reader import read_gguf_metadata

    try:
        metadata, _ = read_gguf_metadata(str(file), (_TOKENS,))
        tensors: Sequence[Any] = GGUFReader(file).tensors
        if (num_bytes := sum(tensor.n_bytes for tensor in tensors)) > file.stat().st_size:
            raise ValueError(f"its weights overlap: they have {num_bytes:,} bytes")
        num_layers = metadata.get(f"{metadata['general.architecture']}.block_count", 0)
        if not isinstance(num_layers, int) or num_layers > len(tensors):
            raise ValueError(f"it declares {num_layers!r:.40} layers and holds {len(tensors)} tensors")
        if not metadata.get(_TOKENS):
            raise ValueError("it holds no tokenizer")
    except Exception as error:  # the readers raise any error on damaged bytes
        raise ModelPathError(
            f"model path {str(file)!r} is no whole GGUF file ({_reason(error)}); download it again, or give another file"
        ) from error
    return metadata, tensors


def _num_unread(config: Any, tensors: Sequence[Any]) -> int:
    """Returns how many values of the file have no place in transformers' model. Raises ValueError if the declared model is much
    larger than the weights in the file; missing ones are found later."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        declared = AutoModelForCausalLM.from_config(config)
    sizes = [sum(each.numel() for each in group) for group in (declared.parameters(), declared.buffers())]
    held = sum(tensor.n_elements for tensor in tensors)
    if max(sizes) > 2 * held:  # twice: some models derive weights from others
        raise ValueError(f"it declares a model of {max(sizes):,} values and holds {held:,}")
    return int(max(0, held - sizes[0]))


def _correct_split(tokenizer: Any, metadata: Mapping[str, Any]) -> None:
    """Makes a byte-level tokenizer split texts as the one that was trained.

    The file has only a name of the split. For names that transformers does not know it takes GPT-2's. Raises ValueError if that
    is wrong.
    """
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    name = metadata.get("tokenizer.ggml.pre")
    if metadata.get("tokenizer.ggml.model") != "gpt2" or name in {*GGUF_PRE_TOKENIZER_SPLITS, *_AS_GPT2}:
        return
    if name not in _DIGITS_APART:
        raise ValueError(f"transformers does not know how its tokenizer splits texts ({name!r})")
    parts = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)


def _note(tensors: Sequence[Any], num_unread: int) -> str:
    """Returns what the user must know of the file; empty: nothing."""
    unread = f"transformers does not read {num_unread:,} of its values, so the model may differ" if num_unread else ""
    rounded = [tensor for tensor in tensors if tensor.tensor_type.name not in ("F64", "F32", "F16", "BF16")]
    if not rounded:
        return unread
    num_bits = 8 * sum(tensor.n_bytes for tensor in rounded) / sum(tensor.n_elements for tensor in rounded)
    kinds = ", ".join(sorted({tensor.tensor_type.name for tensor in rounded}))
    return (
        f"its weights were rounded to {num_bits:.1f} bits on average ({kinds}) when the file was written; training continues "
        "from the rounded values, and a saved model is an ordinary Hugging Face folder with weights of model.dtype"
        + (f"; {unread}" if unread else "")
    )


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).partition(". ")[0].rstrip(".")[:300] or type(error).__name__


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Context in which transformers writes no progress bars and warnings on the terminal."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
