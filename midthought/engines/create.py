"""The engines by name: `create_inference_engine`, and those that run in this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from midthought.config import InferenceConfig
from midthought.engines.byte_tokenizer import byte_tokenizer
from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.scripted import Script, ScriptedEngine
from midthought.engines.servers.sglang import SGLangInferenceEngine
from midthought.engines.servers.vllm import VLLMInferenceEngine
from midthought.engines.vllm_in_process import VLLMInProcessInferenceEngine
from midthought.errors import SettingsError, near_names
from midthought.pretrained import load_model, load_tokenizer, placed
from midthought.tokenization import Renderer


class LocalInferenceEngine(BaseInferenceEngine):
    """A Hugging Face causal LM in this process, with continuous batching.

    Args:
        model: a folder or Hugging Face name, or a loaded model (then give its `tokenizer`).
        tokenizer: the fast tokenizer of a loaded model.
        dtype: type of the weights of a model that is loaded here.
        device: where such a model computes, see `placed`; one that is given stays where it is.
        max_num_seqs: sequences in the cache at once.
        max_seq_len: most tokens of a sequence, prompt included.
        cuda_graphs: on a GPU, record passes of decoding and replay them.
        deterministic: batches follow from the prompts alone.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        dtype: str = "float32",
        device: str = "auto",
        max_num_seqs: int = 128,
        max_seq_len: int = 4096,
        cuda_graphs: bool = True,
        deterministic: bool = False,
        **sampling: Any,
    ) -> None:
        from midthought.engines.local.engine import LocalEngine

        if isinstance(model, str) or hasattr(model, "__fspath__"):
            path, model = model, placed(load_model(model, dtype), device)
            tokenizer = load_tokenizer(path) if tokenizer is None else tokenizer
        if tokenizer is None:
            raise SettingsError("a loaded model needs its tokenizer: LocalInferenceEngine(model, tokenizer)")
        renderer = Renderer(tokenizer)
        longest = getattr(model.config, "max_position_embeddings", None) or max_seq_len
        core = LocalEngine(
            model,
            eos_token_ids=renderer.eos_token_ids,
            max_num_seqs=max_num_seqs,
            max_seq_len=min(max_seq_len, longest),
            cuda_graphs=cuda_graphs,
            deterministic=deterministic,
        )
        super().__init__(core, renderer, **sampling)
        self.model: Any = model

    def update_weights(self) -> None:
        """The model's weights were changed in place: what the old ones computed is dropped."""

        async def drop_cache() -> None:
            self.core.update_weights()  # type: ignore[attr-defined]

        self.run(drop_cache())

    def shutdown(self) -> None:
        """Let go of the model."""
        super().shutdown()
        self.model = self.core = None  # type: ignore[assignment]


class ScriptedInferenceEngine(BaseInferenceEngine):
    """Writes what it is told to: for trying recipes, tools and environments without any model.

    Args:
        script: see `ScriptedEngine`; prompt number n, counted over the engine's life, gets the n-th text.
        tokenizer: any fast tokenizer; a byte-level one with a chat template by default.
    """

    def __init__(self, script: Script, tokenizer: Any = None, **sampling: Any) -> None:
        renderer = Renderer(byte_tokenizer() if tokenizer is None else tokenizer)
        super().__init__(ScriptedEngine(script, renderer), renderer, **sampling)

    def shutdown(self) -> None:
        """Nothing to give back but the engine's thread."""
        super().shutdown()


def create_inference_engine(
    model_path: Any = "",
    backend: str = "local",
    config: Mapping[str, Any] | InferenceConfig | None = None,
    **options: Any,
) -> BaseInferenceEngine:
    """An engine by the name of its backend.

    Args:
        model_path: a folder or Hugging Face name; for `local` a loaded model as well. Unused by `scripted`.
        backend: `local` (this process), `vllm`, `sglang` (servers), or `scripted` (`config={"script": [...]}`).
        config: what the engine's constructor takes by name, or the settings' `inference` section. With `in_process=True`
            `vllm` runs in this process, without a server: see `VLLMInProcessInferenceEngine` for what it takes then.
        options: the same, one by one; they win.

    Raises:
        SettingsError: an unknown backend or option, with the near names.
        ModelPathError: a model that is not there or does not load.
        MissingExtraError: the backend's package is not installed.
    """
    if backend not in BACKENDS:
        raise SettingsError(f"unknown backend {backend!r}. {near_names(backend, BACKENDS)}")
    given = options if isinstance(config, InferenceConfig) else {**(config or {}), **options}
    make, is_here = BACKENDS[backend], False
    if backend in BACKENDS_HERE and (is_here := _as_bool("in_process", given.pop("in_process", False))):
        make = BACKENDS_HERE[backend]
    known = _options_of(make)
    if isinstance(config, InferenceConfig):
        given = {name: value for name, value in config.model_dump().items() if name in known} | given
    if unknown := sorted(given.keys() - known):
        where = f"{backend!r} in_process" if is_here else repr(backend)
        known |= {"in_process"} if backend in BACKENDS_HERE else set()
        raise SettingsError(f"unknown option {unknown[0]!r} of backend {where}. {near_names(unknown[0], known)}")
    if backend != "scripted":
        return make(model_path, **given)
    if "script" not in given:
        raise SettingsError("backend 'scripted' needs what it is to write: script=['the first text', …]")
    return make(**given)


def _as_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{name}={value!r}: give true or false")
    return value


def _options_of(make: Callable[..., Any]) -> set[str]:
    """Names that an engine's constructor takes, those of its base included; the model itself left out."""
    signatures = [inspect.signature(make), inspect.signature(BaseInferenceEngine.__init__)]
    parameters = [each for signature in signatures for each in signature.parameters.values()]
    names = {each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)}
    return names - {"self", "model", "model_path", "core", "renderer"}


BACKENDS: dict[str, Callable[..., BaseInferenceEngine]] = {
    "local": LocalInferenceEngine,
    "vllm": VLLMInferenceEngine,
    "sglang": SGLangInferenceEngine,
    "scripted": ScriptedInferenceEngine,
}
"""Constructors by backend; add your own."""
BACKENDS_HERE: dict[str, Callable[..., BaseInferenceEngine]] = {"vllm": VLLMInProcessInferenceEngine}
"""Constructors of those that need no server where `in_process=True` says so."""
