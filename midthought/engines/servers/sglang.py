"""SGLang: how its native server is started and spoken to by token ids, and the engines over it.

The package itself is never imported here. Written to its documented protocol; never seen with a real server.
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


class SGLangDialect:
    """`/generate` with `input_ids`. Implements `midthought.engines.servers.dialect.Dialect`.

    Its own end-of-sequence tokens cannot be switched off alone: where it stops at one that is none of ours, the engine
    asks it to go on. Log-probabilities take the temperature into account, but not `top_p` (the model alone, where the
    server runs with SGLANG_RETURN_ORIGINAL_LOGPROB); the engine finds out. Its `repetition_penalty` looks, in some of
    its versions, at the tokens of one request's answer only. It heeds a request's seed only with
    `--enable-deterministic-inference`.
    """

    name = "sglang"
    path = "/generate"
    num_spare_tokens = 1
    penalises_prompt = False

    def command(self, model_path: str, options: ServerOptions) -> tuple[list[str], dict[str, str]]:
        """It needs a GPU."""
        words = ["-m", "sglang.launch_server"]
        words += ["--model-path", model_path, "--served-model-name", options.served_model_name or model_path]
        words += ["--host", options.host, "--port", str(options.port), "--dtype", options.dtype]
        words += ["--max-running-requests", str(options.max_num_seqs)]
        words += ["--context-length", str(options.max_seq_len)] if options.max_seq_len is not None else []
        words += ["--tp-size", str(options.num_gpus)] if options.num_gpus > 1 else []
        if options.max_lora_rank:
            words += ["--enable-lora", "--max-lora-rank", str(options.max_lora_rank), "--lora-target-modules", "all"]
        return words, {}

    def body(
        self,
        model: str,
        token_ids: Sequence[int],
        sampling: Sampling,
        stop_token_ids: Sequence[int],
        adapter: str | None = None,
    ) -> dict[str, Any]:
        """A request; what `generation_config.json` would set on the server is set here. It has one model: no name."""
        is_greedy = sampling.temperature == 0
        body: dict[str, Any] = {
            "input_ids": list(token_ids),
            "sampling_params": {
                "max_new_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": 1.0 if is_greedy else sampling.top_p,
                "top_k": -1 if is_greedy else sampling.top_k or -1,
                "min_p": 0.0 if is_greedy else sampling.min_p,
                "repetition_penalty": sampling.repetition_penalty,
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
        return body if adapter is None else {**body, "lora_path": adapter}

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

    async def load_weights(self, post: Post, path: str) -> None:
        """The server waits for what others have running there, and flushes its cache."""
        body = {"model_path": path, "flush_cache": True, "abort_all_requests": False}
        _require_success(await post("/update_weights_from_disk", body), "/update_weights_from_disk")

    async def load_adapter(self, post: Post, name: str, path: str) -> None:
        """The cache tells adapters apart, so it stays."""
        said = await post("/load_lora_adapter", {"lora_name": name, "lora_path": path})
        _require_success(said, "/load_lora_adapter")

    async def unload_adapter(self, post: Post, name: str) -> None:
        await post("/unload_lora_adapter", {"lora_name": name})


class SGLangEngine(ServerEngine):
    """`ServerEngine` for SGLang servers."""

    dialect = SGLangDialect()


class SGLangInferenceEngine(ServerInferenceEngine):
    __doc__ = ServerInferenceEngine.__doc__

    engine_class = SGLangEngine


def _aborted(reason: dict[str, Any]) -> Exception:
    status, message = reason.get("status_code"), str(reason.get("message"))[:300]
    if isinstance(status, int) and 400 <= status < 500:
        return EngineError(f"the server refuses the request ({status}): {message}")
    return Interrupted(f"aborted ({status}): {message}")


def _require_success(said: dict[str, Any] | None, path: str) -> None:
    if said is None:
        raise EngineError(f"it has no {path}; use an SGLang that has it")
    if said.get("success") is not True:
        raise EngineError(f"{path}: {str(said.get('message') or said)[:300]}")
