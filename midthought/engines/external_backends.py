"""The engines of a training run outside the learner's process: vLLM in this process, or servers, running or started here."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from pathlib import Path
from typing import Any

from midthought.config import InferenceConfig, settled
from midthought.engines.engine import Engine
from midthought.engines.external_engine import ExternalEngine
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.launch import SERVERS, require_own_server, start_server
from midthought.engines.servers.preparation import probe_text
from midthought.engines.servers.server import ServerOptions
from midthought.engines.servers.vllm import max_lora_rank
from midthought.engines.vllm_in_process import VLLMInProcessEngine
from midthought.engines.vllm_setup import import_vllm
from midthought.engines.weight_publication import PublishedPolicy, has_loadable_adapters, probe_token_ids, write_model
from midthought.errors import SettingsError
from midthought.models.peft_folders import save_config
from midthought.models.peft_weights import base_of
from midthought.tokenization import Renderer


def check_external(inference: InferenceConfig) -> None:
    """See `check_backend`."""
    if inference.engine not in SERVERS:
        raise SettingsError(
            f"inference.backend={inference.engine!r}: training needs an engine that receives its updates: use 'local', 'vllm' "
            "or 'sglang'"
        )
    if inference.deterministic:
        raise SettingsError(
            f"inference.deterministic with inference.backend={inference.engine!r}: its batches depend on time; "
            "use 'local' for a bit-identical repetition"
        )
    if inference.in_process and inference.backend == "sglang":
        raise SettingsError(
            "inference.in_process with inference.backend='sglang': only 'vllm' can run without a server; set one of the two "
            "differently"
        )
    if inference.in_process and inference.base_url:
        raise SettingsError(
            f"inference.in_process and inference.base_url={inference.base_url!r}: one excludes the other; without a server "
            "there is no URL"
        )
    require_own_server(inference.server_flags, inference.base_url, "inference.")
    if inference.in_process:
        import_vllm()


def external_engine(
    policy: Any, renderer: Renderer, inference: InferenceConfig, *, model_path: str, max_seq_len: int
) -> ExternalEngine:
    """See `policy_engine`. `policy`: with its adapters, if it has any."""
    published = PublishedPolicy(
        policy,
        probe_ids=probe_token_ids(renderer, max_seq_len),
        folder=inference.weights_path,
        keeps_in_memory=not inference.base_url,
        tolerance=inference.sync_tolerance,
    )
    if inference.in_process:
        return _vllm_in_process(policy, renderer, inference, max_seq_len).follow(published)
    return _servers(policy, renderer, inference, model_path, max_seq_len).follow(published)


def check_servers(inference: InferenceConfig, name: str, renderer: Renderer | None, engine: Engine | None) -> None:
    """Raises what is wrong with the servers at `inference.base_url`: whether they answer, serve the model `name`, and return
    usable log-probabilities. `renderer`: of the policy, if there is one; `engine`: of the run, which checked its own servers."""
    if isinstance(engine, ExternalEngine):
        return
    checked = ServerEngine(
        SERVERS[inference.engine],
        inference.base_url,
        name,
        eos_token_ids=(),
        probe=None if renderer is None else probe_text(renderer),
        max_seq_len=2,
        api_key_env=inference.api_key_env,
        retry_policy=RetryPolicy(connect_timeout_seconds=5.0, next_token_timeout_seconds=5.0),
        training_temperature=inference.temperature,
    )
    with contextlib.ExitStack() as stack, warnings.catch_warnings(action="ignore"):
        stack.callback(checked.shutdown)
        checked.check()


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
