"""vLLM: start command and token-id protocol of its OpenAI-compatible server.

Does not import vllm, which runs in the server's process, often in another environment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from midthought.engines.engine import Sampling
from midthought.engines.servers.server import Server, ServerOptions, common_sampling_fields
from midthought.engines.servers.streams import Chunk, RetryableError
from midthought.errors import EngineError

_MINUS_INFINITY = -9999.0
"""vLLM's value for minus infinity."""
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Valid values of `--max-lora-rank`."""


class VLLMServer(Server):
    """`/v1/completions` with token ids in and out.

    The server ignores its own end-of-sequence tokens and stops at ours, which it lists like any other token. Log-probabilities
    are the model's (`--logprobs-mode raw_logprobs`, the default) or refer to the sampling distribution
    (`processed_logprobs`); a request cannot choose, so the engine probes this.
    """

    name = "vllm"
    path = "/v1/completions"
    has_socket = True

    @staticmethod
    def command(model_path: str, options: ServerOptions) -> tuple[list[str], dict[str, str]]:
        """Returns arguments and environment variables. Log-probabilities refer to the sampling distribution.

        Without a GPU: the flags of the CPU build, 4 GiB for keys and values unless VLLM_CPU_KVCACHE_SPACE is set, and no chunked
        prefill, because vLLM 0.32 then resets a request's random generator, which ends a CPU server ("CPU Generator does
        not use offset").
        """
        import torch

        words = ["-m", "vllm.entrypoints.openai.api_server"]
        words += ["--model", model_path, "--served-model-name", options.served_model_name or model_path]
        words += ["--uds", options.uds] if options.uds else ["--host", options.host, "--port", str(options.port)]
        words += ["--dtype", options.dtype]
        words += ["--max-num-seqs", str(options.max_num_seqs), "--logprobs-mode", "processed_logprobs"]
        words += ["--max-model-len", str(options.max_seq_len)] if options.max_seq_len is not None else []
        words += ["--tensor-parallel-size", str(options.num_gpus)] if options.num_gpus > 1 else []
        environment = {"VLLM_NO_USAGE_STATS": "1"}
        if options.gpu_memory_share is not None:
            words += ["--gpu-memory-utilization", str(options.gpu_memory_share)]
        if options.accepts_weights:
            environment["VLLM_SERVER_DEV_MODE"] = "1"
        if options.max_lora_rank:
            words += ["--enable-lora", "--max-lora-rank", str(max_lora_rank(options.max_lora_rank))]
            environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if not torch.cuda.is_available():
            words += ["--enforce-eager", "--no-enable-chunked-prefill"]
            environment |= {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return words, environment

    @staticmethod
    def body(
        model: str, token_ids: Sequence[int], sampling: Sampling, stop_token_ids: Sequence[int], adapter: str | None
    ) -> dict[str, Any]:
        """Returns a request that sets everything that `generation_config.json` could change."""
        return {
            **common_sampling_fields(sampling, stop_token_ids),
            "model": adapter or model,
            "prompt": list(token_ids),
            "add_special_tokens": False,
            "max_tokens": sampling.max_tokens,
            "top_k": 0 if sampling.temperature == 0 else sampling.top_k,
            "seed": sampling.seed,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stream": True,
        }

    @staticmethod
    def reader(token_ids: Sequence[int]) -> Callable[[dict[str, Any]], Chunk]:
        """Reads events with new tokens. The first event also contains the prompt, which must be ours."""
        sent = list(token_ids)

        def read(event: dict[str, Any]) -> Chunk:
            if not event["choices"]:
                return Chunk(token_ids=(), logprobs=())
            choice = event["choices"][0]
            prompt = choice.get("prompt_token_ids")
            if prompt is not None and prompt != sent:
                raise EngineError(f"the server was sent a prompt of {len(sent)} tokens and continued another one")
            new, reason = choice.get("token_ids"), choice.get("finish_reason")
            if new is None:
                raise EngineError("the server returns no token ids; use vLLM 0.10.2 or newer")
            if reason not in (None, "stop", "length"):
                raise RetryableError(f"the server ended with {reason!r}")
            logprobs = choice["logprobs"]["token_logprobs"] if new else []
            stop_reason = choice.get("stop_reason")
            return Chunk(
                token_ids=new,
                logprobs=[_logprob(value) for value in logprobs],
                ended_by=reason,
                stop_token_id=stop_reason if isinstance(stop_reason, int) else None,
            )

        return read

    async def load_weights(self, path: str) -> None:
        """Waits for other clients' requests (`/pause`, if the server has it). These routes exist only in development mode."""
        method = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        try:
            await self.post("/pause?mode=wait")
            if await self.post("/collective_rpc", method) is None:
                raise EngineError("it has no /collective_rpc: start it with VLLM_SERVER_DEV_MODE=1")
            dropped = await self.post("/reset_prefix_cache")
            if dropped is None or dropped.get("success") is False:
                raise EngineError("it does not reset its prefix cache: requests of other clients are running")
        finally:
            await self.post("/resume")

    async def load_adapter(self, name: str, path: str) -> None:
        """Loads the adapter. The prefix cache distinguishes adapters by name, so it is kept."""
        if await self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}) is None:
            raise EngineError(
                "it loads no adapters: start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
            )

    async def unload_adapter(self, name: str) -> None:
        await self.post("/v1/unload_lora_adapter", {"lora_name": name})


def max_lora_rank(rank: int) -> int:
    """Returns the smallest `--max-lora-rank` that vLLM accepts for adapters of this rank."""
    return next((valid for valid in _LORA_RANKS if valid >= rank), rank)


def _logprob(value: float | None) -> float:
    if value is None:
        return math.nan
    return float(value) if value > _MINUS_INFINITY else -math.inf
