"""Size of a decoder from its config.json: exact parameter counts by part, bytes of keys and values. Reads no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.errors import ModelPathError, SettingsError, near_names
from midthought.files.regular import read_json_object
from midthought.models.gguf import gguf_config, is_gguf
from midthought.plan.model_configs import MODEL_CONFIGS
from midthought.plan.settings import PlanSettings

KINDS = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "mixtral", "qwen2_moe", "qwen3_moe")
"""Values of `model_type` whose layers are counted here."""
GEMMA_DEFAULTS = {
    "gemma2": {"head_dim": 256},
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208},
}
"""Values that published configurations leave out, because they are the defaults of transformers."""
FULL_EVERY = {"gemma2": 2, "gemma3_text": 6}
"""One layer in so many attends to all tokens, the others within a window."""
DEFAULT_VOCABULARY = 151_936


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
    qkv_bias: bool = False
    out_bias: bool = False
    """Whether the attention's output projection has a bias."""
    mlp_bias: bool = False
    is_gemma: bool = False
    """Layers of Gemma 2 and 3: four norms, whose products are kept in float32."""
    attn_softcap: bool = False
    """Attention logits are capped (Gemma 2): all scores are computed and kept, and rows are padded."""
    final_softcap: bool = False
    """The output layer's logits are capped (Gemma 2)."""
    sliding_window: int = 0
    """Tokens that a layer with a sliding window attends to."""
    num_sliding_layers: int = 0
    num_experts: int = 0
    """Experts of a layer; 0: one MLP."""
    experts_per_token: int = 0
    expert_size: int = 0
    """Width of an expert's MLP."""
    shared_expert_size: int = 0
    """Width of the MLP that every token uses besides its experts (Qwen2-MoE)."""
    num_dense_layers: int = 0
    """Layers with one MLP, in a model whose other layers have experts."""
    adapts_experts: bool = False
    """Whether LoRA on all linear layers includes experts and router (peft does so for Mixtral and Qwen3-MoE)."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Shape:
        """Returns the shape of a parsed `config.json`. Raises `SettingsError` for an unsupported architecture."""
        kind = str(config.get("model_type", ""))
        if kind not in KINDS:
            raise SettingsError(
                f"model_type={kind!r} is not counted here. {near_names(kind, KINDS)} Give its size in words: "
                "hidden_size=… num_layers=… num_heads=… num_kv_heads=… intermediate_size=… vocab_size=…"
            )
        config = {**GEMMA_DEFAULTS.get(kind, {}), **config}
        try:
            return cls(**_attention_of(kind, config), **_family_of(kind, config), **_experts_of(kind, config))
        except KeyError as error:
            raise SettingsError(f"model_type={kind!r}: its configuration lacks {error}, so it is not counted") from None

    @property
    def has_fused_decoder(self) -> bool:
        """Whether `engines.local.decoder` computes the layers, from copies of small weights and of layers with adapters."""
        return not self.is_gemma and not self.num_experts

    @property
    def query_size(self) -> int:
        """Width of all queries of a token."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all keys of a token; of all values, too."""
        return self.num_kv_heads * self.head_dim

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Linear maps of a layer: name to (in, out)."""
        hidden, query, key, inner = self.hidden_size, self.query_size, self.key_size, self.intermediate_size
        return {
            "q": (hidden, query),
            "k": (hidden, key),
            "v": (hidden, key),
            "o": (query, hidden),
            "gate": (hidden, inner),
            "up": (hidden, inner),
            "down": (inner, hidden),
        }

    @property
    def attention_linears(self) -> dict[str, tuple[int, int]]:
        """Linear maps of a layer's attention: name to (in, out)."""
        return {name: self.linears[name] for name in ("q", "k", "v", "o")}

    @property
    def num_expert_layers(self) -> int:
        return self.num_layers - self.num_dense_layers if self.num_experts else 0

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts of a layer, without the router."""
        return 3 * self.num_experts * self.hidden_size * self.expert_size

    @property
    def largest_map(self) -> int:
        """Parameters of a layer's largest weight; gate and up of all experts are one."""
        of_experts = 2 * self.expert_parameters // 3
        maps = self.linears if self.num_dense_layers or not self.num_experts else self.attention_linears
        return max(of_experts, *(inputs * outputs for inputs, outputs in maps.values()))

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer; with experts, of a layer that has them."""
        return self._outside_mlp + (self._experts if self.num_experts else self._mlp)

    @property
    def all_layers_parameters(self) -> int:
        """Parameters of all layers."""
        num_dense = self.num_layers - self.num_expert_layers
        return self.num_layers * self._outside_mlp + num_dense * self._mlp + self.num_expert_layers * self._experts

    @property
    def _outside_mlp(self) -> int:
        matrices = sum(inputs * outputs for inputs, outputs in self.attention_linears.values())
        num_norms = 4 if self.is_gemma else 2
        norms = num_norms * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        return (
            matrices + norms + (self.query_size + 2 * self.key_size) * self.qkv_bias + self.hidden_size * self.out_bias
        )

    @property
    def _mlp(self) -> int:
        biases = (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        return 3 * self.hidden_size * self.intermediate_size + biases

    @property
    def _experts(self) -> int:
        """Experts, router, and the shared expert with its gate."""
        shared = self.hidden_size * (3 * self.shared_expert_size + 1) if self.shared_expert_size else 0
        return self.expert_parameters + self.num_experts * self.hidden_size + shared

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, and of the output layer if it is not tied."""
        return self.vocab_size * self.hidden_size

    @property
    def trunk_parameters(self) -> int:
        """All parameters except an untied output layer."""
        return self.all_layers_parameters + self.embedding_parameters + self.hidden_size

    @property
    def parameters(self) -> int:
        return self.trunk_parameters + (0 if self.is_tied else self.embedding_parameters)

    @property
    def computing_parameters(self) -> int:
        """Parameters that every token is multiplied by: layers, with the experts of one token, and output layer."""
        each = 3 * self.hidden_size * self.expert_size
        left_out = self.num_expert_layers * (self.num_experts - self.experts_per_token) * each
        return self.all_layers_parameters + self.embedding_parameters - left_out

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of LoRA on every linear map of the layers, without the output layer: rank × (in + out) each.

        Of a layer with experts: its attention, the shared expert with its gate, and, if `adapts_experts`, the router and every
        expert; there gate and up are one map, with twice the rank, and MLPs of layers without experts have no adapters.
        """

        def count(maps: Mapping[str, tuple[int, int]]) -> int:
            return sum(rank * (inputs + outputs) for inputs, outputs in maps.values())

        num_dense = self.num_layers - self.num_expert_layers
        attention, whole = count(self.attention_linears), count(self.linears)
        of_dense = attention if self.adapts_experts else whole
        return num_dense * of_dense + self.num_expert_layers * (attention + self.expert_adapters(rank))

    @property
    def dora_parameters(self) -> int:
        """Magnitudes of DoRA: one per output of each linear map of the layers."""
        return self.num_layers * sum(outputs for _, outputs in self.linears.values())

    def expert_adapters(self, rank: int) -> int:
        """Parameters of the adapters of a layer with experts, without its attention's."""
        hidden, size, shared = self.hidden_size, self.expert_size, self.shared_expert_size
        of_shared = rank * (3 * (hidden + shared) + hidden + 1) if shared else 0
        if not self.adapts_experts:
            return of_shared
        of_router = rank * (hidden + self.num_experts)
        return of_shared + of_router + self.num_experts * rank * (2 * (hidden + 2 * size) + size + hidden)

    def kv_bytes_of_sequence(self, num_tokens: float, bytes_per_number: int, *, drops_old: bool = True) -> float:
        """Bytes of a sequence's keys and values. `drops_old`: layers with a sliding window keep only the window."""
        in_window = min(num_tokens, self.sliding_window) if drops_old and self.num_sliding_layers else num_tokens
        num_full = self.num_layers - self.num_sliding_layers
        tokens = num_full * num_tokens + self.num_sliding_layers * in_window
        return 2 * self.key_size * bytes_per_number * tokens


def _attention_of(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    default_head = 128 if kind == "qwen3" else config["hidden_size"] // heads
    return {
        "hidden_size": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or default_head,
        "intermediate_size": config["intermediate_size"],
        "vocab_size": config["vocab_size"],
    }


def _family_of(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what differs between the families: norms, biases, ties, caps and windows."""
    bias = bool(config.get("attention_bias", False))
    is_gemma = kind in FULL_EVERY
    return {
        "is_tied": bool(config.get("tie_word_embeddings", is_gemma)),
        "qk_norm": kind in ("qwen3", "qwen3_moe", "gemma3_text"),
        "qkv_bias": kind == "qwen2"
        or (kind == "qwen2_moe" and config.get("qkv_bias", True))
        or (bias and kind != "mistral"),
        "out_bias": bias and kind in ("llama", "qwen3", "qwen3_moe", "gemma2", "gemma3_text"),
        "mlp_bias": bool(config.get("mlp_bias", False)) and kind == "llama",
        "is_gemma": is_gemma,
        "attn_softcap": is_gemma and bool(config.get("attn_logit_softcapping", 50.0 if kind == "gemma2" else None)),
        "final_softcap": is_gemma and bool(config.get("final_logit_softcapping", 30.0 if kind == "gemma2" else None)),
        **_windows_of(kind, config),
    }


def _windows_of(kind: str, config: Mapping[str, Any]) -> dict[str, int]:
    num_layers, window = config["num_hidden_layers"], config.get("sliding_window")
    if kind in FULL_EVERY:
        pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or FULL_EVERY[kind]
        types = config.get("layer_types")
        num_sliding = types.count("sliding_attention") if types else num_layers - num_layers // pattern
        return {"sliding_window": window or 4096, "num_sliding_layers": num_sliding}
    if window and kind in ("mistral", "mixtral"):
        return {"sliding_window": window, "num_sliding_layers": num_layers}
    return {}


def _experts_of(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    if kind not in ("mixtral", "qwen2_moe", "qwen3_moe"):
        return {}
    num_layers = config["num_hidden_layers"]
    found = {
        "num_experts": config.get("num_local_experts") or config["num_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "adapts_experts": kind != "qwen2_moe",
    }
    if kind == "mixtral":
        return {**found, "expert_size": config["intermediate_size"]}
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    has_experts = [layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers)]
    return {
        **found,
        "expert_size": config["moe_intermediate_size"],
        "shared_expert_size": config["shared_expert_intermediate_size"] if kind == "qwen2_moe" else 0,
        "num_dense_layers": has_experts.count(False),
    }


def find_shape(settings: PlanSettings) -> Shape:
    """Returns the shape that the settings name: of a folder, a well-known model, a hub model, or explicit sizes.

    Raises `SettingsError`, `ModelPathError` with the remedy.
    """
    if not settings.model:
        return _in_words(settings)
    given = [name for name in ("hidden_size", "num_layers", "num_heads") if getattr(settings, name) is not None]
    if given:
        raise SettingsError(f"model={settings.model!r} and {given[0]} say the size twice; leave one of them out")
    return _shape_of(settings.model)


def _shape_of(model: str, above: frozenset[Path] = frozenset()) -> Shape:
    """`above`: folders of adapters whose base model this is."""
    if is_gguf(model):
        return Shape.from_config(gguf_config(model))
    folder = Path(model).expanduser()
    adapters = folder / "adapter_config.json"
    if adapters.is_file() and not (folder / "config.json").is_file():
        base = read_config(adapters).get("base_model_name_or_path")
        if not base or folder.resolve() in above:
            raise ModelPathError(f"{adapters} names no base model but adapters ({base!r:.200}); give the model itself")
        return _shape_of(str(base), above | {folder.resolve()})
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
    remedy = f"give a folder, a name that can be reached, sizes in words, or one of {', '.join(sorted(MODEL_CONFIGS))}"
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


def _in_words(settings: PlanSettings) -> Shape:
    hidden, layers, heads = settings.hidden_size, settings.num_layers, settings.num_heads
    if hidden is None or layers is None or heads is None:
        raise SettingsError(
            "no model: give model=FOLDER or a Hugging Face name, or its size: hidden_size=4096 num_layers=36 num_heads=32 "
            "num_kv_heads=8 head_dim=128 intermediate_size=12288 vocab_size=151936"
        )
    return Shape(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=settings.num_kv_heads or heads,
        head_dim=settings.head_dim or hidden // heads,
        intermediate_size=settings.intermediate_size or 3 * hidden,
        vocab_size=settings.vocab_size or DEFAULT_VOCABULARY,
        is_tied=settings.tie_embeddings,
        qk_norm=settings.qk_norm,
    )
