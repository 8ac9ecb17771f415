"""Creates engines: public ones by the name of their backend, and the engine of a training run, which follows its policy."""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from midthought.config import InferenceConfig, settled
from midthought.engines.engine import TrainedEngine
from midthought.engines.external_engine import ExternalEngine
from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.inference_engines import (
    LocalInferenceEngine,
    ScriptedInferenceEngine,
    SGLangInferenceEngine,
    VLLMInferenceEngine,
    VLLMInProcessInferenceEngine,
)
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.launch import SERVERS, start_server
from midthought.engines.servers.preparation import probe_text
from midthought.engines.servers.server import ServerOptions
from midthought.engines.servers.vllm import max_lora_rank
from midthought.engines.vllm_in_process import VLLMInProcessEngine
from midthought.engines.vllm_setup import import_vllm
from midthought.engines.weight_publication import PublishedPolicy, has_loadable_adapters, probe_token_ids, write_model
from midthought.errors import SettingsError, near_names
from midthought.models.peft_folders import save_config
from midthought.models.peft_weights import base_of
from midthought.tokenization import Renderer

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


# -- the engine of a training run ----------------------------------------------------------------------------------


def check_backend(inference: InferenceConfig) -> None:
    """Raises `SettingsError` for a backend that training does not support, `MissingExtraError` for one that is not installed."""
    if inference.engine not in ("local", *SERVERS):
        raise SettingsError(
            f"inference.backend={inference.engine!r}: training needs an engine that receives its updates: use 'local', 'vllm' "
            "or 'sglang'"
        )
    if inference.engine == "local":
        return
    if inference.deterministic:
        raise SettingsError(
            f"inference.deterministic with inference.backend={inference.engine!r}: its batches depend on time; "
            "use 'local' for a bit-identical repetition"
        )
    if not inference.in_process:
        return
    if inference.backend == "sglang":
        raise SettingsError(
            "inference.in_process with inference.backend='sglang': only 'vllm' can run without a server; set one of the two "
            "differently"
        )
    if inference.base_url:
        raise SettingsError(
            f"inference.in_process and inference.base_url={inference.base_url!r}: one excludes the other; without a server "
            "there is no URL"
        )
    import_vllm()


def policy_engine(
    policy: Any, trained: Any, renderer: Renderer, inference: InferenceConfig, *, model_path: str, max_seq_len: int
) -> TrainedEngine:
    """Creates the engine of a training run. Shut it down after use. Servers and vLLM get LoRA adapters alone, others merged.

    Args:
        policy: the causal LM, whose weights change in place.
        trained: what the learner trains: the policy itself, or the policy with its adapters. None: a copy of the policy that is
            not trained here (Ray workers, evaluations).
        model_path: path that the model was loaded from; empty for a model without one.

    Raises `SettingsError` if the model of the servers at `base_url` is not named or differs, `EngineError` if an engine does
    not start or does not load the weights, `MissingExtraError` without httpx or vLLM.
    """
    from midthought.engines.local.engine import LocalEngine

    if inference.engine == "local":
        return LocalEngine(
            policy,
            eos_token_ids=renderer.eos_token_ids,
            max_num_seqs=settled(inference.max_num_seqs),
            max_seq_len=max_seq_len,
            merge_adapters=inference.merge_adapters,
            deterministic=inference.deterministic,
        )
    followed = policy if trained is None else trained
    engine: ExternalEngine
    if inference.in_process:
        engine = _vllm_in_process(followed, renderer, inference, max_seq_len)
    else:
        engine = _servers(followed, renderer, inference, model_path, max_seq_len)
    published = PublishedPolicy(
        followed,
        probe_ids=probe_token_ids(renderer, max_seq_len),
        folder=inference.weights_path,
        keeps_in_memory=not inference.base_url,
        tolerance=inference.sync_tolerance,
    )
    return engine.follow(published)


def _servers(
    policy: Any, renderer: Renderer, inference: InferenceConfig, model_path: str, max_seq_len: int
) -> ServerEngine:
    """Returns the running servers of the settings, or one that is started here on the policy."""
    kind = SERVERS[inference.backend]
    name = inference.served_model_name or model_path or "policy"
    if inference.base_url and name == "policy":
        raise SettingsError(
            "inference.base_url is set, but not the model on these servers: set inference.served_model_name, too, and "
            "start them on a folder with this same model (model.local_path)"
        )
    process = None
    if not inference.base_url:
        options = server_options(policy, inference, name, max_seq_len)
        with tempfile.TemporaryDirectory(prefix="midthought-start-") as folder:
            path = Path(folder) / "model"
            write_model(policy, path, renderer.tokenizer, with_adapters=options.accepts_weights)
            process = start_server(kind, path, options, python=inference.server_python)
    return ServerEngine(
        kind,
        inference.base_url,
        name,
        eos_token_ids=renderer.eos_token_ids,
        probe=probe_text(renderer),
        max_seq_len=max_seq_len,
        max_num_seqs=settled(inference.max_num_seqs),
        api_key_env=inference.api_key_env,
        process=process,
        training_temperature=inference.temperature,
        retry_policy=RetryPolicy(max_outage_seconds=inference.server_wait_seconds),
    )


def server_options(policy: Any, inference: InferenceConfig, name: str, max_seq_len: int) -> ServerOptions:
    """Returns the options of a server that the run starts for this policy."""
    rank, share = _adapter_rank(policy), inference.gpu_memory_utilization
    return ServerOptions(
        served_model_name=name,
        dtype=str(policy.dtype).removeprefix("torch."),
        max_seq_len=max_seq_len,
        max_num_seqs=settled(inference.max_num_seqs),
        accepts_weights=not rank,
        max_lora_rank=rank,
        gpu_memory_share=None if share == "auto" or policy.device.type == "cpu" else share,
        flags=inference.server_flags,
    )


def _vllm_in_process(
    policy: Any, renderer: Renderer, inference: InferenceConfig, max_seq_len: int
) -> VLLMInProcessEngine:
    """Starts vLLM without weights: they go through shared memory. On a GPU the engine can `sleep`."""
    with tempfile.TemporaryDirectory(prefix="midthought-start-") as folder:
        save_config(base_of(policy), Path(folder), policy.dtype, is_tied=False)
        engine = VLLMInProcessEngine(
            folder,
            eos_token_ids=renderer.eos_token_ids,
            max_seq_len=max_seq_len,
            max_num_seqs=settled(inference.max_num_seqs),
            dtype=str(policy.dtype).removeprefix("torch."),
            follows_policy=True,
            engine_args=vllm_arguments(policy, inference, policy.device.type),
        )
        engine.start()
    return engine


def vllm_arguments(policy: Any, inference: InferenceConfig, device_type: str) -> dict[str, Any]:
    """Returns the arguments of `AsyncEngineArgs` that depend on the device and on the policy's adapters."""
    arguments: dict[str, Any] = {}
    if device_type == "cuda":
        arguments = {"enable_sleep_mode": True}
        if inference.gpu_memory_utilization != "auto":
            arguments["gpu_memory_utilization"] = inference.gpu_memory_utilization
    if rank := _adapter_rank(policy):
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": max_lora_rank(rank)}
    return arguments


def _adapter_rank(policy: Any) -> int:
    """Returns the rank of adapters that are sent alone; 0 if whole models are sent."""
    return policy.peft_config[policy.active_adapters[0]].r if has_loadable_adapters(policy) else 0
