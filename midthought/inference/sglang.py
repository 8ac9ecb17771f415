"""SGLang: how its native server is spoken to by token ids, how one is started, and the engines over it.

The package itself is never imported here. Written to its documented protocol; never seen with a real server.
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


class SGLangDialect:
    """`/generate` with `input_ids`. Implements `midthought.inference.server_streams.Dialect`.

    Its own end-of-sequence tokens cannot be switched off alone: where it stops at one that is none of ours, the engine
    asks it to go on. Log-probabilities take the temperature into account, but not `top_p` (the model alone, where the
    server runs with SGLANG_RETURN_ORIGINAL_LOGPROB); the engine finds out. It heeds a request's seed only with
    `--enable-deterministic-inference`.
    """

    name = "sglang"
    path = "/generate"
    num_spare_tokens = 1

    def body(
        self, model: str, token_ids: Sequence[int], sampling: Sampling, stop_token_ids: Sequence[int]
    ) -> dict[str, Any]:
        """A request; what `generation_config.json` would set on the server is set here. It has one model: no name."""
        return {
            "input_ids": list(token_ids),
            "sampling_params": {
                "max_new_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p if sampling.temperature > 0 else 1.0,
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "sampling_seed": sampling.seed % 2**31,
                "ignore_eos": False,
                "stop_token_ids": list(stop_token_ids),
                "skip_special_tokens": False,
            },
            "return_logprob": True,
            "stream": True,
        }

    def reader(self, token_ids: Sequence[int]) -> Callable[[dict[str, Any]], Chunk]:
        """Events hold all tokens so far, or, where the server streams incrementally, the new ones; both are read."""
        num_sent, num_seen = len(token_ids), 0

        def read(event: dict[str, Any]) -> Chunk:
            nonlocal num_seen
            meta = event["meta_info"]
            reason = meta["finish_reason"] or {}
            kind, matched = reason.get("type"), reason.get("matched")
            if kind == "abort":
                raise _aborted(reason)
            if kind not in (None, "stop", "length"):
                raise Interrupted(f"the server ended with {kind!r}")
            if meta["prompt_tokens"] != num_sent:
                raise EngineError(
                    f"the server was sent a prompt of {num_sent} tokens and continued one of {meta['prompt_tokens']}"
                )
            listed, num_all = meta.get("output_token_logprobs"), meta["completion_tokens"]
            if listed is None:
                raise EngineError("the server returns no log-probabilities; use an SGLang that heeds return_logprob")
            if len(listed) >= num_all:
                new = listed[num_seen:]
            elif len(listed) == num_all - num_seen:
                new = listed
            else:
                raise ValueError(f"{len(listed)} tokens listed, {num_all} sampled, {num_seen} seen before")
            num_seen += len(new)
            return Chunk(
                token_ids=[entry[1] for entry in new],
                logprobs=[math.nan if entry[0] is None else float(entry[0]) for entry in new],
                ended_by=kind,
                stop_token_id=matched if isinstance(matched, int) else None,
            )

        return read


class SGLangEngine(ServerEngine):
    """`ServerEngine` for SGLang servers."""

    dialect = SGLangDialect()


class SGLangInferenceEngine(ServerInferenceEngine):
    __doc__ = ServerInferenceEngine.__doc__

    engine_class = SGLangEngine

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
    """Start an SGLang server on this machine (it needs a GPU), reachable from it only, and wait until it is ready.

    Args:
        served_model_name: the name that it tells; `model_path` by default.
        max_seq_len: most tokens of a sequence; the model's own limit by default.
        flags: further words of the command line; they win.
        python: the interpreter of an environment that has SGLang; this one by default.

    Raises NoServerPackageError (a MissingExtraError) where SGLang is not installed, EngineError where it does not get
    ready.
    """
    port = free_port()
    command = [interpreter_with("sglang", python), "-m", "sglang.launch_server"]
    command += ["--model-path", str(model_path), "--served-model-name", served_model_name or str(model_path)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype]
    command += ["--max-running-requests", str(max_num_seqs)]
    command += ["--context-length", str(max_seq_len)] if max_seq_len is not None else []
    environment = {"HF_HUB_OFFLINE": "1"} if Path(model_path).is_dir() else {}
    server = ServerProcess([*command, *flags], port, environment=environment, log_path=log_path)
    server.wait_until_ready(timeout_seconds)
    return server


def _aborted(reason: dict[str, Any]) -> Exception:
    status, message = reason.get("status_code"), str(reason.get("message"))[:300]
    if isinstance(status, int) and 400 <= status < 500:
        return EngineError(f"the server refuses the request ({status}): {message}")
    return Interrupted(f"aborted ({status}): {message}")
