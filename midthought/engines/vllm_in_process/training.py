"""In-process vLLM for a training run's rollouts."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from midthought.config import InferenceConfig, settled
from midthought.engines.servers.vllm import max_lora_rank
from midthought.engines.vllm_in_process.engine import VLLMInProcessEngine
from midthought.engines.vllm_in_process.setup import import_vllm
from midthought.engines.weight_sync.synced_engine import SyncedEngine
from midthought.engines.weight_sync.weight_check import probe_token_ids
from midthought.engines.weight_sync.weight_folder import has_loadable_adapters
from midthought.errors import SettingsError
from midthought.models.peft_folders import save_config
from midthought.models.peft_weights import base_of
from midthought.tokenization import Renderer


def check_in_process(inference: InferenceConfig) -> None:
    """Raises `SettingsError` if the settings contradict each other, `VLLMNotInstalledError` without vLLM."""
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


def in_process_policy(policy: Any, renderer: Renderer, inference: InferenceConfig, *, max_seq_len: int) -> SyncedEngine:
    """Starts vLLM without weights and returns an engine that follows the policy, which is trained in place.

    The weights go through shared memory. LoRA adapters are sent alone, other adapters merged. On a GPU the engine can `sleep`.

    Raises `EngineError` if vLLM does not start, or computes something else than the policy.
    """
    with contextlib.ExitStack() as undo:
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
            undo.callback(engine.shutdown)
        synced = SyncedEngine(
            engine,
            policy,
            probe_ids=probe_token_ids(renderer),
            max_seq_len=max_seq_len,
            in_memory=True,
            tolerance=inference.sync_tolerance,
            stop=engine.shutdown,
        )
        undo.pop_all()
    return synced


def vllm_arguments(policy: Any, inference: InferenceConfig, device_type: str) -> dict[str, Any]:
    """Returns the arguments of `AsyncEngineArgs` that depend on the device and on the policy's adapters."""
    arguments: dict[str, Any] = {}
    if device_type == "cuda":
        arguments = {"enable_sleep_mode": True}
        if inference.gpu_memory_utilization != "auto":
            arguments["gpu_memory_utilization"] = inference.gpu_memory_utilization
    if has_loadable_adapters(policy):
        rank = policy.peft_config[policy.active_adapters[0]].r
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": max_lora_rank(rank)}
    return arguments
