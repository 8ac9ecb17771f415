"""vLLM: how its OpenAI-compatible server is spoken to by token ids, how one is started, and the engines over it.

The package itself is never imported here; it runs in the server's process, often in an environment of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from midthought.errors import EngineError
from midthought.inference.engine import Sampling
from midthought.inference.server_generation import ServerInferenceEngine
from midthought.inference.server_process import ServerProcess, free_port, interpreter_with
from midthought.inference.server_streams import Chunk, Interrupted
from midthought.inference.servers import ServerEngine

_MINUS_INFINITY = -9999.0
"""What vLLM writes for it."""


class VLLMDialect:
    """`/v1/completions` with token ids in and out. Implements `midthought.inference.server_streams.Dialect`.

    The server is told to ignore its own end-of-sequence tokens and to stop at ours, which it lists like any other token.
    vLLM records log-probabilities of the model alone (`--logprobs-mode raw_logprobs`, the default) or of the
    distribution that it samples from (`processed_logprobs`); a request cannot choose, so the engine finds out.
    """

    name = "vllm"
    path = "/v1/completions"
    num_spare_tokens = 0

    def body(
        self, model: str, token_ids: Sequence[int], sampling: Sampling, stop_token_ids: Sequence[int]
    ) -> dict[str, Any]:
        """A request; what `generation_config.json` would set on the server is set here."""
        return {
            "model": model,
            "prompt": list(token_ids),
            "add_special_tokens": False,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p if sampling.temperature > 0 else 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
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


class VLLMEngine(ServerEngine):
    """`ServerEngine` for vLLM servers."""

    dialect = VLLMDialect()


class VLLMInferenceEngine(ServerInferenceEngine):
    __doc__ = ServerInferenceEngine.__doc__

    engine_class = VLLMEngine

    def _start(self, model_path: str | Path, **options: Any) -> ServerProcess:
        return start_server(model_path, **options)


def start_server(
    model_path: str | Path,
    *,
    served_model_name: str | None = None,
    dtype: str = "auto",
    max_seq_len: int | None = None,
    max_num_seqs: int = 128,
    flags: Sequence[str] = (),
    python: str | None = None,
    log_path: str | Path | None = None,
    timeout_seconds: float = 900.0,
) -> ServerProcess:
    """Start a vLLM server on this machine, reachable from it only, and wait until it is ready.

    It records the log-probabilities of the distribution that it samples from. Without a GPU it is started as the CPU
    build needs it, with 4 GiB for keys and values unless VLLM_CPU_KVCACHE_SPACE says otherwise.

    Args:
        served_model_name: the name that requests use; `model_path` by default.
        max_seq_len: most tokens of a sequence; the model's own limit by default.
        flags: further words of the command line; they win.
        python: the interpreter of an environment that has vLLM; this one by default.

    Raises NoServerPackageError (a MissingExtraError) where vLLM is not installed, EngineError where it does not get ready.
    """
    port = free_port()
    command = [interpreter_with("vllm", python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model_path), "--served-model-name", served_model_name or str(model_path)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--max-num-seqs", str(max_num_seqs)]
    command += ["--logprobs-mode", "processed_logprobs"]
    command += ["--max-model-len", str(max_seq_len)] if max_seq_len is not None else []
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if Path(model_path).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    if not _has_gpu():
        command.append("--enforce-eager")
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    server = ServerProcess([*command, *flags], port, environment=environment, log_path=log_path)
    server.wait_until_ready(timeout_seconds)
    return server


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _logprob(value: float | None) -> float:
    if value is None:
        return math.nan
    return float(value) if value > _MINUS_INFINITY else -math.inf
