"""Creates engines by backend name (`create_inference_engine`), and the engine of a training run (`policy_engine`)."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from midthought.config import InferenceConfig, settled
from midthought.engines.engine import TrainedEngine
from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.scripted import Script, ScriptedEngine, byte_tokenizer
from midthought.engines.servers.sglang import SGLangInferenceEngine
from midthought.engines.servers.training import SERVER_ENGINES, serve_policy
from midthought.engines.servers.vllm import VLLMInferenceEngine
from midthought.engines.vllm_in_process.inference_engine import VLLMInProcessInferenceEngine
from midthought.engines.vllm_in_process.training import check_in_process, in_process_policy
from midthought.errors import SettingsError, near_names
from midthought.models.pretrained import load_model, load_tokenizer, placed
from midthought.tokenization import Renderer


class LocalInferenceEngine(BaseInferenceEngine):
    """A Hugging Face causal LM in this process, with continuous batching.

    Args:
        model: a folder, GGUF file or Hugging Face name, or a loaded model (which needs its `tokenizer`).
        tokenizer: the fast tokenizer of a loaded model.
        dtype: data type of the weights, if the model is loaded here.
        device: device of a model that is loaded here, see `placed`; a loaded model stays on its device.
        max_num_seqs: maximum sequences in the cache.
        max_seq_len: maximum tokens of a sequence, including the prompt.
        cuda_graphs: on a GPU, record passes of few tokens as CUDA graphs and replay them.
        deterministic: batches depend only on the prompts.
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
        """Drops the cache: the model's weights were changed in place."""

        async def drop_cache() -> None:
            self.core.update_weights()  # type: ignore[attr-defined]

        self.run(drop_cache())

    def shutdown(self) -> None:
        """Shuts down and releases the model."""
        super().shutdown()
        self.model = self.core = None  # type: ignore[assignment]


class ScriptedInferenceEngine(BaseInferenceEngine):
    """Writes scripted texts, for testing recipes, tools and environments without a model.

    Args:
        script: see `ScriptedEngine`; the n-th prompt of this engine gets the n-th text.
        tokenizer: any fast tokenizer; a byte-level one with a chat template by default.
    """

    def __init__(self, script: Script, tokenizer: Any = None, **sampling: Any) -> None:
        renderer = Renderer(byte_tokenizer() if tokenizer is None else tokenizer)
        super().__init__(ScriptedEngine(script, renderer), renderer, **sampling)


def create_inference_engine(
    model_path: Any = "",
    backend: str = "local",
    config: Mapping[str, Any] | InferenceConfig | None = None,
    **options: Any,
) -> BaseInferenceEngine:
    """Creates an engine by the name of its backend.

    Args:
        model_path: a folder, GGUF file or Hugging Face name; for `local` a loaded model as well. Unused by `scripted`.
        backend: `local` (this process), `vllm`, `sglang` (servers), or `scripted` (`config={"script": [...]}`).
        config: keyword arguments of the engine's constructor, or the settings' `inference` section. With `in_process=True`
            `vllm` runs in this process, without a server, with the arguments of `VLLMInProcessInferenceEngine`.
            vLLM's names `max_model_len` and `tensor_parallel_size` are accepted by every backend.
        options: further keyword arguments; they override `config`.

    Raises:
        SettingsError: an unknown backend or option; the message lists similar names.
        ModelPathError: the model does not exist or does not load.
        MissingExtraError: the backend's package is not installed.
    """
    if backend not in BACKENDS:
        raise SettingsError(f"unknown backend {backend!r}. {near_names(backend, BACKENDS)}")
    given = options if isinstance(config, InferenceConfig) else {**(config or {}), **options}
    make, is_in_process = BACKENDS[backend], False
    by_default = config.in_process if isinstance(config, InferenceConfig) else False
    if backend in IN_PROCESS_BACKENDS:
        is_in_process = given.pop("in_process", by_default)
        if not isinstance(is_in_process, bool):
            raise SettingsError(f"in_process={is_in_process!r}: give true or false")
        make = IN_PROCESS_BACKENDS[backend] if is_in_process else make
    known = _options_of(make)
    given = _in_our_names(given, known, backend)
    if isinstance(config, InferenceConfig):
        given = {
            name: value for name, value in config.model_dump().items() if name in known and value != "auto"
        } | given
    if unknown := sorted(given.keys() - known):
        where = f"{backend!r} in_process" if is_in_process else repr(backend)
        known |= {"in_process"} if backend in IN_PROCESS_BACKENDS else set()
        raise SettingsError(f"unknown option {unknown[0]!r} of backend {where}. {near_names(unknown[0], known)}")
    if backend != "scripted":
        return make(model_path, **given)
    if "script" not in given:
        raise SettingsError("backend 'scripted' needs a script: script=['the first text', …]")
    return make(**given)


def check_backend(inference: InferenceConfig) -> None:
    """Raises `SettingsError` for a backend that training does not support, `MissingExtraError` for one that is not installed."""
    if inference.engine not in ("local", *SERVER_ENGINES):
        raise SettingsError(
            f"inference.backend={inference.engine!r}: training needs an engine that receives its updates: use 'local', 'vllm' "
            "or 'sglang'"
        )
    if inference.deterministic and inference.engine != "local":
        raise SettingsError(
            f"inference.deterministic with inference.backend={inference.engine!r}: its batches depend on time; "
            "use 'local' for a bit-identical repetition"
        )
    if inference.in_process and inference.engine != "local":
        check_in_process(inference)


def policy_engine(
    policy: Any,
    trained: Any,
    renderer: Renderer,
    inference: InferenceConfig,
    *,
    model_path: str,
    max_seq_len: int,
) -> TrainedEngine:
    """Creates the engine of a training run: on the policy's own weights, in-process vLLM, or servers. Shut it down after use.

    Args:
        policy: the causal LM, whose weights change in place.
        trained: what the learner trains: the policy itself, or the policy with its adapters. None: a copy of the policy that is
            not trained here (Ray workers, evaluations).
        model_path: path that the model was loaded from; empty for a model without one.
    """
    from midthought.engines.local.engine import LocalEngine

    if inference.engine != "local" and inference.in_process:
        followed = policy if trained is None else trained
        return in_process_policy(followed, renderer, inference, max_seq_len=max_seq_len)
    if inference.engine != "local":
        return serve_policy(trained, renderer, inference, model_path=model_path, max_seq_len=max_seq_len)
    return LocalEngine(
        policy,
        eos_token_ids=renderer.eos_token_ids,
        max_num_seqs=settled(inference.max_num_seqs),
        max_seq_len=max_seq_len,
        merge_adapters=inference.merge_adapters,
        deterministic=inference.deterministic,
    )


def _in_our_names(given: Mapping[str, Any], known: set[str], backend: str) -> dict[str, Any]:
    """Returns the options with vLLM's names `max_model_len`, `tensor_parallel_size` and `trust_remote_code` translated.

    Warns of `dtype`, `max_model_len` and `tensor_parallel_size` for an engine to which they do not apply.
    """
    found = dict(given)
    if found.pop("trust_remote_code", False):
        raise SettingsError(
            "trust_remote_code=True: code that comes with a model is never run; give a model whose architecture transformers "
            "contains, or a loaded model to backend 'local'"
        )
    if "max_model_len" in found:
        found.setdefault("max_seq_len", found.pop("max_model_len"))
    num_gpus = found.pop("tensor_parallel_size", 1)
    ignored: list[str] = [name for name in ("dtype", "max_seq_len") if name in found and name not in known]
    if num_gpus != 1 and "engine_args" in known:
        found["engine_args"] = {**found.get("engine_args", {}), "tensor_parallel_size": num_gpus}
    elif num_gpus != 1 and "server_flags" in known and not found.get("base_url"):
        found["server_flags"] = [*found.get("server_flags", ()), "--tensor-parallel-size", str(num_gpus)]
    elif num_gpus != 1:
        ignored.append("tensor_parallel_size")
    for name in ignored:
        found.pop(name, None)
        warnings.warn(f"{name} does not apply to this engine of backend {backend!r} and is ignored", stacklevel=3)
    if found.get("dtype") == "auto" and backend == "local":
        del found["dtype"]
    return found


def _options_of(make: Callable[..., Any]) -> set[str]:
    """Returns the option names of an engine's constructor and its base class, without the model."""
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
"""Constructors by backend; you may add your own."""
IN_PROCESS_BACKENDS: dict[str, Callable[..., BaseInferenceEngine]] = {"vllm": VLLMInProcessInferenceEngine}
"""Constructors for `in_process=True`, without a server."""
