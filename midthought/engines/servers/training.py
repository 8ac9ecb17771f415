"""Servers for a training run's rollouts: running ones from the settings, or one that is started here."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from midthought.config import InferenceConfig, settled
from midthought.engines.servers.connection import require_httpx
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.generation import probe_text
from midthought.engines.servers.launch import start_server
from midthought.engines.servers.server import ServerOptions
from midthought.engines.servers.sglang import SGLangEngine
from midthought.engines.servers.vllm import VLLMEngine
from midthought.engines.weight_sync.synced_engine import SyncedEngine
from midthought.engines.weight_sync.weight_check import probe_token_ids
from midthought.engines.weight_sync.weight_folder import has_loadable_adapters, write_model
from midthought.errors import SettingsError
from midthought.tokenization import Renderer

SERVER_ENGINES: dict[str, type[ServerEngine]] = {"vllm": VLLMEngine, "sglang": SGLangEngine}


def serve_policy(
    policy: Any, renderer: Renderer, inference: InferenceConfig, *, model_path: str, max_seq_len: int
) -> SyncedEngine:
    """Returns servers that follow the policy, which is trained in place. LoRA adapters are sent alone, other adapters merged.

    Raises `SettingsError` if the model of the servers at `base_url` is not named or differs, `EngineError` if a server does
    not start or does not load the weights, `MissingExtraError` without httpx.
    """
    engine_class = SERVER_ENGINES[inference.backend]
    kind = engine_class.server_class
    require_httpx(kind.name)
    name = inference.served_model_name or model_path or "policy"
    if inference.base_url and name == "policy":
        raise SettingsError(
            "inference.base_url is set, but not the model on these servers: set inference.served_model_name, too, and "
            "start them on a folder with this same model (model.local_path)"
        )
    is_started_here = not inference.base_url
    sends_adapters = has_loadable_adapters(policy)
    with contextlib.ExitStack() as undo:
        process = None
        if is_started_here:
            options = server_options(policy, inference, name, max_seq_len)
            with tempfile.TemporaryDirectory(prefix="midthought-start-") as folder:
                path = Path(folder) / "model"
                write_model(policy, path, renderer.tokenizer, with_adapters=not sends_adapters)
                process = start_server(kind, path, options, python=inference.server_python)
            undo.callback(process.stop)
        engine = engine_class(
            inference.base_url,
            name,
            eos_token_ids=renderer.eos_token_ids,
            probe=probe_text(renderer),
            max_seq_len=max_seq_len,
            max_num_seqs=settled(inference.max_num_seqs),
            api_key_env=inference.api_key_env,
            process=process,
            training_temperature=inference.temperature,
            max_outage_seconds=inference.server_wait_seconds,
        )
        synced = SyncedEngine(
            engine,
            policy,
            probe_ids=probe_token_ids(renderer),
            max_seq_len=max_seq_len,
            folder=inference.weights_path,
            in_memory=process is not None,
            tolerance=inference.sync_tolerance,
            stop=None if process is None else process.stop,
        )
        undo.pop_all()
    return synced


def server_options(policy: Any, inference: InferenceConfig, name: str, max_seq_len: int) -> ServerOptions:
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
        gpu_memory_share=None if share == "auto" or policy.device.type == "cpu" else share,
        flags=inference.server_flags,
    )
