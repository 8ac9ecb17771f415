"""Creates an engine by the name of its backend."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from midthought.config import InferenceConfig
from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.inference_engines import (
    LocalInferenceEngine,
    ScriptedInferenceEngine,
    SGLangInferenceEngine,
    VLLMInferenceEngine,
    VLLMInProcessInferenceEngine,
)
from midthought.engines.servers.connection import RetryPolicy
from midthought.errors import SettingsError, near_names

BACKENDS: dict[str, Callable[..., BaseInferenceEngine]] = {
    "local": LocalInferenceEngine,
    "vllm": VLLMInferenceEngine,
    "sglang": SGLangInferenceEngine,
    "scripted": ScriptedInferenceEngine,
}
"""Constructors by backend; you may add your own."""
IN_PROCESS_BACKENDS: dict[str, Callable[..., BaseInferenceEngine]] = {"vllm": VLLMInProcessInferenceEngine}
"""Constructors for `in_process=True`, without a server."""


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
        section = config.model_dump() | {"retry_policy": RetryPolicy(max_outage_seconds=config.server_wait_seconds)}
        given = {name: value for name, value in section.items() if name in known and value != "auto"} | given
    if unknown := sorted(given.keys() - known):
        where = f"{backend!r} in_process" if is_in_process else repr(backend)
        known |= {"in_process"} if backend in IN_PROCESS_BACKENDS else set()
        raise SettingsError(f"unknown option {unknown[0]!r} of backend {where}. {near_names(unknown[0], known)}")
    if backend != "scripted":
        return make(model_path, **given)
    if "script" not in given:
        raise SettingsError("backend 'scripted' needs a script: script=['the first text', …]")
    return make(**given)


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
