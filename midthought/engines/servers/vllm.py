"""vLLM: how its OpenAI-compatible server is started and spoken to by token ids, and the engines over it.

The package itself is never imported here; it runs in the server's process, often in an environment of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from midthought.engines.engine import Sampling
from midthought.engines.servers.dialect import Post, ServerOptions
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.generation import ServerInferenceEngine
from midthought.engines.servers.streams import Chunk, Interrupted
from midthought.errors import EngineError

_MINUS_INFINITY = -9999.0
"""What vLLM writes for it."""
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` may be."""


class VLLMDialect:
    """`/v1/completions` with token ids in and out. Implements `midthought.engines.servers.dialect.Dialect`.

    The server is told to ignore its own end-of-sequence tokens and to stop at ours, which it lists like any other token.
    vLLM records log-probabilities of the model alone (`--logprobs-mode raw_logprobs`, the default) or of the
    distribution that it samples from (`processed_logprobs`); a request cannot choose, so the engine finds out.
    """

    name = "vllm"
    path = "/v1/completions"
    num_spare_tokens = 0
    penalises_prompt = True

    def command(self, model_path: str, options: ServerOptions) -> tuple[list[str], dict[str, str]]:
        """Log-probabilities are those of the distribution sampled from. Without a GPU as the CPU build needs it, with 4 GiB
        for keys and values unless VLLM_CPU_KVCACHE_SPACE says otherwise, and prompts computed whole: vLLM 0.32 rewinds a
        request's random numbers after each part of its prompt but the last, which on a CPU ends the server ("CPU Generator
        does not use offset")."""
        words = ["-m", "vllm.entrypoints.openai.api_server"]
        words += ["--model", model_path, "--served-model-name", options.served_model_name or model_path]
        words += ["--host", options.host, "--port", str(options.port), "--dtype", options.dtype]
        words += ["--max-num-seqs", str(options.max_num_seqs), "--logprobs-mode", "processed_logprobs"]
        words += ["--max-model-len", str(options.max_seq_len)] if options.max_seq_len is not None else []
        words += ["--tensor-parallel-size", str(options.num_gpus)] if options.num_gpus > 1 else []
        environment = {"VLLM_NO_USAGE_STATS": "1"}
        if options.takes_weights:
            environment["VLLM_SERVER_DEV_MODE"] = "1"
        if options.max_lora_rank:
            rank = next((rank for rank in _LORA_RANKS if rank >= options.max_lora_rank), options.max_lora_rank)
            words += ["--enable-lora", "--max-lora-rank", str(rank)]
            environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if not _has_gpu():
            words += ["--enforce-eager", "--no-enable-chunked-prefill"]
            environment |= {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return words, environment

    def body(
        self,
        model: str,
        token_ids: Sequence[int],
        sampling: Sampling,
        stop_token_ids: Sequence[int],
        adapter: str | None = None,
    ) -> dict[str, Any]:
        """A request; what `generation_config.json` would set on the server is set here."""
        is_greedy = sampling.temperature == 0
        return {
            "model": adapter or model,
            "prompt": list(token_ids),
            "add_special_tokens": False,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": 1.0 if is_greedy else sampling.top_p,
            "top_k": 0 if is_greedy else sampling.top_k,
            "min_p": 0.0 if is_greedy else sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": sampling.seed,
            "ignore_eos": True,
            "stop_token_ids": list(stop_token_ids),
            "skip_special_tokens": False,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stream": True,
        }

    def reader(self, token_ids: Sequence[int]) -> Callable[[dict[str, Any]], Chunk]:
        """Every event holds the new tokens; the first one also the prompt, which must be ours."""
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
                raise Interrupted(f"the server ended with {reason!r}")
            logprobs = choice["logprobs"]["token_logprobs"] if new else []
            stop_reason = choice.get("stop_reason")
            return Chunk(
                token_ids=new,
                logprobs=[_logprob(value) for value in logprobs],
                ended_by=reason,
                stop_token_id=stop_reason if isinstance(stop_reason, int) else None,
            )

        return read

    async def load_weights(self, post: Post, path: str) -> None:
        """Other clients' requests are waited for (`/pause`, where the server has it); reloading leaves the prefix cache as
        it is, so it is dropped. These routes are there in development mode only."""
        try:
            await post("/pause?mode=wait", None)
            method = {"method": "reload_weights", "kwargs": {"weights_path": path}}
            if await post("/collective_rpc", method) is None:
                raise EngineError("it has no /collective_rpc: start it with VLLM_SERVER_DEV_MODE=1")
            dropped = await post("/reset_prefix_cache", None)
            if dropped is None or dropped.get("success") is False:
                raise EngineError("it does not drop its prefix cache: requests of others are running there")
        finally:
            await post("/resume", None)

    async def load_adapter(self, post: Post, name: str, path: str) -> None:
        """The prefix cache tells adapters apart by their names, so it stays."""
        if await post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}) is None:
            raise EngineError(
                "it loads no adapters: start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
            )

    async def unload_adapter(self, post: Post, name: str) -> None:
        await post("/v1/unload_lora_adapter", {"lora_name": name})


class VLLMEngine(ServerEngine):
    """`ServerEngine` for vLLM servers."""

    dialect = VLLMDialect()


class VLLMInferenceEngine(ServerInferenceEngine):
    __doc__ = ServerInferenceEngine.__doc__

    engine_class = VLLMEngine


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _logprob(value: float | None) -> float:
    if value is None:
        return math.nan
    return float(value) if value > _MINUS_INFINITY else -math.inf
