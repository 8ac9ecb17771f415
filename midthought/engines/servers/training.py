"""Servers for a training run's rollouts: running ones from the settings, or one that is started here."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import tempfile
from pathlib import Path
from typing import Any

from midthought.config import InferenceConfig, settled
from midthought.engines.servers.connection import require_httpx
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.generation import probe_text
from midthought.engines.servers.launch import start_server
from midthought.engines.servers.options import ServerOptions
from midthought.engines.servers.process import ServerProcess
from midthought.engines.servers.sglang import SGLangEngine
from midthought.engines.servers.vllm import VLLMEngine
from midthought.engines.weight_sync.synced_engine import SyncedEngine
from midthought.engines.weight_sync.transport import WeightTransport, choose_transport, shares_gpu
from midthought.engines.weight_sync.weight_check import probe_token_ids
from midthought.engines.weight_sync.weight_folder import has_loadable_adapters, write_model
from midthought.errors import EngineError, SettingsError
from midthought.tokenization import Renderer

logger = logging.getLogger(__name__)
_UNKNOWN_FLAG = "unrecognized arguments"
"""Part of the error of Python's argument parser."""
SERVER_ENGINES: dict[str, type[ServerEngine]] = {"vllm": VLLMEngine, "sglang": SGLangEngine}


def serve_policy(
    policy: Any, renderer: Renderer, inference: InferenceConfig, *, model_path: str, max_seq_len: int
) -> SyncedEngine:
    """Returns servers that follow the policy, which is trained in place. LoRA adapters are sent alone, other adapters merged.

    Raises `SettingsError` if the model of the servers at `base_url` is not named or differs, `EngineError` if a server does
    not start or does not load the weights, `MissingExtraError` without httpx.
    """
    engine_class = SERVER_ENGINES[inference.backend]
    require_httpx(engine_class.server_class.name)
    name = _served_name(inference, model_path)
    is_started_here, device = not inference.base_url, str(policy.device)
    transport = choose_transport(
        inference.weight_transport,
        device=device,
        sends_adapters=has_loadable_adapters(policy),
        is_started_here=is_started_here,
        server_flags=inference.server_flags,
        weights_path=inference.weights_path,
        announces_transport=engine_class.server_class.announces_transport,
    )
    can_sleep = shares_gpu(device, is_started_here=is_started_here, server_flags=inference.server_flags)
    logger.info("weights go to the servers by %s: %s", transport.name, transport.reason)
    with contextlib.ExitStack() as undo:
        process = None
        if is_started_here:
            options = server_options(policy, inference, transport, name, max_seq_len, can_sleep=can_sleep)
            process, transport = start_for_policy(policy, renderer, inference, options, transport)
            undo.callback(process.stop)
        engine = engine_class(
            [process.url] if process is not None else inference.base_url,
            name,
            eos_token_ids=renderer.eos_token_ids,
            probe=probe_text(renderer),
            max_seq_len=max_seq_len,
            max_num_seqs=settled(inference.max_num_seqs),
            api_key_env=inference.api_key_env,
            own_key="" if process is None else process.key,
            training_temperature=inference.temperature,
            max_outage_seconds=inference.server_wait_seconds,
            exit_reason=None if process is None else process.exit_reason,
            transport=transport,
            can_sleep=can_sleep,
        )
        synced = SyncedEngine(
            engine,
            policy,
            probe_ids=probe_token_ids(renderer),
            max_seq_len=max_seq_len,
            folder=inference.weights_path,
            in_memory=transport.name == "shared_memory",
            tolerance=inference.sync_tolerance,
            stop=None if process is None else process.stop,
        )
        undo.pop_all()
    return synced


def _served_name(inference: InferenceConfig, model_path: str) -> str:
    name = inference.served_model_name or model_path or "policy"
    if inference.base_url and name == "policy":
        raise SettingsError(
            "inference.base_url is set, but not the model on these servers: set inference.served_model_name, too, and "
            "start them on a folder with this same model (model.local_path)"
        )
    return name


def server_options(
    policy: Any,
    inference: InferenceConfig,
    transport: WeightTransport,
    name: str,
    max_seq_len: int,
    *,
    can_sleep: bool = False,
) -> ServerOptions:
    """Returns the options of a server that the run starts for this policy."""
    sends_adapters = has_loadable_adapters(policy)
    share = inference.gpu_memory_utilization
    return ServerOptions(
        served_model_name=name,
        dtype=str(policy.dtype).removeprefix("torch."),
        max_seq_len=max_seq_len,
        max_num_seqs=settled(inference.max_num_seqs),
        accepts_weights=not sends_adapters,
        max_lora_rank=policy.peft_config[policy.active_adapters[0]].r if sends_adapters else 0,
        weight_transport=transport.name if transport.sends_tensors else "",
        can_sleep=can_sleep,
        gpu_memory_share=None if share == "auto" or policy.device.type == "cpu" else share,
        flags=inference.server_flags,
    )


def start_for_policy(
    policy: Any, renderer: Renderer, inference: InferenceConfig, options: ServerOptions, transport: WeightTransport
) -> tuple[ServerProcess, WeightTransport]:
    """Starts a server with the policy's current weights. Returns it and the transport that it was started for.

    An older server that does not know the flag of the transport is started without it, and gets files, unless the settings
    name the transport.
    """
    kind = SERVER_ENGINES[inference.backend].server_class
    with tempfile.TemporaryDirectory(prefix="midthought-start-") as folder:
        path = Path(folder) / "model"
        write_model(policy, path, renderer.tokenizer, with_adapters=not has_loadable_adapters(policy))
        try:
            return start_server(kind, path, options, python=inference.server_python), transport
        except EngineError as error:
            if transport.is_required or not options.weight_transport or _UNKNOWN_FLAG not in str(error):
                raise
            logger.warning("this %s is too old for weights by %s, so they go through files", kind.name, transport.name)
        options = dataclasses.replace(options, weight_transport="")
        process = start_server(kind, path, options, python=inference.server_python)
    return process, WeightTransport(name="shared_memory", reason="an older server", may_be_refused=False)
