"""Size of a decoder from its config.json: exact parameter counts by part, bytes of keys and values. Reads no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.config import ModelConfig
from midthought.errors import ModelPathError, SettingsError
from midthought.files.regular import read_json_object
from midthought.models.gguf import gguf_config, is_gguf

KINDS = ("llama", "mistral", "qwen2", "qwen3")
"""Values of `model_type` whose layers are counted here."""
_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_QWEN3: dict[str, Any] = {"model_type": "qwen3", "head_dim": 128}
_TIED = {"tie_word_embeddings": True}
# fmt: off
_SIZES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "Qwen/Qwen3-0.6B": ((1024, 28, 16, 3072, 151_936), _QWEN3 | _TIED),
    "Qwen/Qwen3-1.7B": ((2048, 28, 16, 6144, 151_936), _QWEN3 | _TIED),
    "Qwen/Qwen3-4B": ((2560, 36, 32, 9728, 151_936), _QWEN3 | _TIED),
    "Qwen/Qwen3-8B": ((4096, 36, 32, 12_288, 151_936), _QWEN3),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": ((4096, 36, 32, 12_288, 151_936), _QWEN3),
    "meta-llama/Llama-3.1-8B": ((4096, 32, 32, 14_336, 128_256), {"model_type": "llama"}),
    "Qwen/Qwen3-14B": ((5120, 40, 40, 17_408, 151_936), _QWEN3),
    "Qwen/Qwen2.5-32B-Instruct": ((5120, 64, 40, 27_648, 152_064), {"model_type": "qwen2"}),
}
# fmt: on
MODEL_CONFIGS: dict[str, dict[str, Any]] = {
    name: {**dict(zip(_KEYS, sizes, strict=True)), "num_key_value_heads": 8, **more}
    for name, (sizes, more) in _SIZES.items()
}
"""Configurations (config.json) of well-known models, for plans without network access: by Hugging Face name, smallest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Dimensions that determine the size of a model."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    is_tied: bool
    """The output layer is the embedding."""
    qk_norm: bool = False
    """Whether queries and keys are normalized."""
    layer_biases: int = 0
    """Parameters of the biases of a layer's linear maps."""
    has_window: bool = False
    """Whether layers see only a window, so that the learner computes rows one by one."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Shape:
        """Returns the shape of a parsed `config.json`. Raises `SettingsError` for an unsupported architecture."""
        kind = str(config.get("model_type", ""))
        if kind not in KINDS:
            raise SettingsError(f"model_type={kind!r} is not counted here. Counted are {', '.join(KINDS)}")
        try:
            hidden, heads, inner = (config[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size"))
            num_layers, vocab_size = config["num_hidden_layers"], config["vocab_size"]
        except KeyError as error:
            raise SettingsError(f"model_type={kind!r}: its configuration lacks {error}, so it is not counted") from None
        kv_heads = config.get("num_key_value_heads") or heads
        head_dim = config.get("head_dim") or (128 if kind == "qwen3" else hidden // heads)
        has_bias = bool(config.get("attention_bias", False)) and kind in ("llama", "qwen3")
        biases = (heads + 2 * kv_heads) * head_dim * (has_bias or kind == "qwen2") + hidden * has_bias
        biases += (2 * inner + hidden) * (kind == "llama" and bool(config.get("mlp_bias", False)))
        is_windowed = kind == "mistral" or (
            bool(config.get("use_sliding_window", False)) and config.get("max_window_layers", 28) < num_layers
        )
        return cls(
            hidden_size=hidden,
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=inner,
            vocab_size=vocab_size,
            is_tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=kind == "qwen3",
            layer_biases=biases,
            has_window=is_windowed and config.get("sliding_window", 4096) is not None,
        )

    @property
    def query_size(self) -> int:
        """Width of all queries of a token."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all keys of a token; of all values, too."""
        return self.num_kv_heads * self.head_dim

    @property
    def linears(self) -> list[tuple[int, int]]:
        """Linear maps of a layer as (in, out): q, k, v, o, gate, up, down."""
        hidden, query, key, inner = self.hidden_size, self.query_size, self.key_size, self.intermediate_size
        attention = [(hidden, query), (hidden, key), (hidden, key), (query, hidden)]
        return [*attention, (hidden, inner), (hidden, inner), (inner, hidden)]

    @property
    def largest_map(self) -> int:
        """Parameters of a layer's largest weight."""
        return max(inputs * outputs for inputs, outputs in self.linears)

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: linear maps, norms, biases."""
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        return sum(inputs * outputs for inputs, outputs in self.linears) + norms + self.layer_biases

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, and of the output layer if it is not tied."""
        return self.vocab_size * self.hidden_size

    @property
    def trunk_parameters(self) -> int:
        """All parameters except an untied output layer."""
        return self.computing_parameters + self.hidden_size

    @property
    def parameters(self) -> int:
        return self.trunk_parameters + (0 if self.is_tied else self.embedding_parameters)

    @property
    def computing_parameters(self) -> int:
        """Parameters that every token is multiplied by: layers and output layer."""
        return self.num_layers * self.layer_parameters + self.embedding_parameters

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of LoRA on every linear map of the layers, without the output layer: rank × (in + out) each."""
        return self.num_layers * sum(rank * (inputs + outputs) for inputs, outputs in self.linears)


def small_shape(model: ModelConfig) -> Shape:
    """Returns the shape of the small model that a run creates (`models.small_model`)."""
    sizes = (model.hidden_size, model.num_layers, model.num_heads, 3 * model.hidden_size, model.vocab_size)
    return Shape.from_config({**dict(zip(_KEYS, sizes, strict=True)), **_QWEN3, **_TIED, "head_dim": 64})


def find_shape(model: str) -> Shape:
    """Returns the shape of a model's folder or file, of a well-known model, or of one on the hub.

    Raises `SettingsError`, `ModelPathError` with the remedy.
    """
    if is_gguf(model):
        return Shape.from_config(gguf_config(model))
    folder = Path(model).expanduser()
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        from midthought.models.peft_folders import base_name_of

        return find_shape(base_name_of(folder))
    if folder.is_dir():
        return Shape.from_config(read_config(folder / "config.json"))
    return Shape.from_config(MODEL_CONFIGS[model] if model in MODEL_CONFIGS else _from_hub(model))


def read_config(path: Path) -> dict[str, Any]:
    """Reads a config.json. Raises `ModelPathError` if it is missing or not JSON."""
    try:
        config = read_json_object(path)
    except FileNotFoundError:
        raise ModelPathError(f"model={str(path.parent)!r} holds no config.json; give a model's folder") from None
    except (OSError, ValueError) as error:
        raise ModelPathError(f"{path} cannot be read: {error}; save the model anew") from None
    text: dict[str, Any] = config.get("text_config") or config
    return text


def _from_hub(name: str) -> dict[str, Any]:
    remedy = f"give a folder, a name that can be reached, or one of {', '.join(sorted(MODEL_CONFIGS))}"
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        raise ModelPathError(f"model={name!r} is neither a folder nor a Hugging Face name; {remedy}")
    try:
        from huggingface_hub import hf_hub_download

        return read_config(Path(hf_hub_download(name, "config.json")))
    except ModelPathError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()).partition(". ")[0][:200]
        raise ModelPathError(f"model={name!r}: its config.json cannot be fetched: {reason}; {remedy}") from None
