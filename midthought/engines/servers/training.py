"""Servers for a training run's rollouts: running ones from the settings, or one that is started here."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from midthought.config import InferenceConfig, settled
from midthought.engines.servers.connection import require_httpx
from midthought.engines.servers.dialect import ServerOptions
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.generation import probe_text
from midthought.engines.servers.launch import start_server
from midthought.engines.servers.process import ServerProcess
from midthought.engines.servers.sglang import SGLangEngine
from midthought.engines.servers.vllm import VLLMEngine
from midthought.engines.servers.weight_folder import has_loadable_adapters, write_model
from midthought.engines.servers.weight_sync import SyncedServers
from midthought.errors import SettingsError
from midthought.tokenization import Renderer

SERVER_ENGINES: dict[str, type[ServerEngine]] = {"vllm": VLLMEngine, "sglang": SGLangEngine}
_MAX_PROBE_TOKENS = 320
_PROBE = (
    "The tide clock stands in the hall of the harbour house. It has one hand, which goes round once between two high "
    "tides, so it agrees with no other clock in the town. Who keeps it? Think first, then answer. The keeper's daughter "
    "wound it for forty-one years; on the last evening she wrote down 7 numbers: 3, 1, 4, 1, 5, 9 and 2. "
)


def check_backend(inference: InferenceConfig) -> None:
    """Raises `SettingsError` for a backend that training does not support."""
    if inference.backend not in ("local", *SERVER_ENGINES):
        raise SettingsError(
            f"inference.backend={inference.backend!r}: training needs an engine that receives its updates: use 'local', 'vllm' "
            "or 'sglang'"
        )
    if inference.deterministic and inference.backend != "local":
        raise SettingsError(
            f"inference.deterministic with inference.backend={inference.backend!r}: a server's batches depend on time; "
            "use 'local' for a bit-identical repetition"
        )


def serve_policy(
    policy: Any, renderer: Renderer, inference: InferenceConfig, *, model_path: str, max_seq_len: int
) -> SyncedServers:
    """Returns servers that follow the policy, which is trained in place. LoRA adapters are sent alone, other adapters merged.

    Raises `SettingsError` if the model of the servers at `base_url` is not named or differs, `EngineError` if a server does
    not start or does not load the weights, `MissingExtraError` without httpx.
    """
    engine_class = SERVER_ENGINES[inference.backend]
    require_httpx(engine_class.dialect.name)
    name = inference.served_model_name or model_path or "policy"
    if inference.base_url and name == "policy":
        raise SettingsError(
            "inference.base_url is set, but not the model on these servers: set inference.served_model_name, too, and "
            "start them on a folder with this same model (model.local_path)"
        )
    with contextlib.ExitStack() as undo:
        process = None
        if not inference.base_url:
            process = _start(policy, renderer, inference, name, max_seq_len)
            undo.callback(process.stop)
        engine = engine_class(
            [process.url] if process is not None else inference.base_url,
            name,
            eos_token_ids=renderer.eos_token_ids,
            probe=probe_text(renderer),
            max_seq_len=max_seq_len,
            max_num_seqs=settled(inference.max_num_seqs),
            api_key_env=inference.api_key_env,
            training_temperature=inference.temperature,
            max_outage_seconds=inference.server_wait_seconds,
            exit_reason=None if process is None else process.exit_reason,
        )
        probe_ids = renderer.prompt([{"role": "user", "content": _PROBE * 4}])[:_MAX_PROBE_TOKENS]
        synced = SyncedServers(
            engine,
            policy,
            probe_ids=probe_ids,
            max_seq_len=max_seq_len,
            folder=inference.weights_path,
            tolerance=inference.sync_tolerance,
            process=process,
        )
        undo.pop_all()
    return synced


def _start(policy: Any, renderer: Renderer, inference: InferenceConfig, name: str, max_seq_len: int) -> ServerProcess:
    """Starts a server with the policy's current weights."""
    sends_adapters = has_loadable_adapters(policy)
    options = ServerOptions(
        served_model_name=name,
        dtype=str(policy.dtype).removeprefix("torch."),
        max_seq_len=max_seq_len,
        max_num_seqs=settled(inference.max_num_seqs),
        accepts_weights=not sends_adapters,
        max_lora_rank=policy.peft_config[policy.active_adapters[0]].r if sends_adapters else 0,
        flags=inference.server_flags,
    )
    with tempfile.TemporaryDirectory(prefix="midthought-start-") as folder:
        path = Path(folder) / "model"
        write_model(policy, path, renderer.tokenizer, with_adapters=not sends_adapters)
        dialect = SERVER_ENGINES[inference.backend].dialect
        return start_server(dialect, path, options, python=inference.server_python)
