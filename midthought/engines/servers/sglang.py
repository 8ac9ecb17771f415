"""SGLang: start command and token-id protocol of its native server.

Does not import sglang. Written from its documentation; not tested with a real server.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from midthought.engines.engine import Sampling
from midthought.engines.servers.server import Server, ServerOptions, common_sampling_fields
from midthought.engines.servers.streams import Chunk, RetryableError
from midthought.errors import EngineError

_IDLE_SECONDS = 30.0
"""Time for the server to end requests that were closed."""
_POLL_SECONDS = 0.05


class SGLangServer(Server):
    """`/generate` with `input_ids`.

    Its own end-of-sequence tokens cannot be disabled: if it stops at one that is not ours, the engine continues with the next
    request. Log-probabilities include the temperature but not `top_p` (with SGLANG_RETURN_ORIGINAL_LOGPROB they are the
    model's); the engine probes this. It uses a request's seed only with `--enable-deterministic-inference`.
    """

    name = "sglang"
    path = "/generate"
    num_reserved_tokens = 1
    has_socket = False

    @staticmethod
    def command(model_path: str, options: ServerOptions) -> tuple[list[str], dict[str, str]]:
        """Returns arguments and environment variables. SGLang needs a GPU."""
        words = ["-m", "sglang.launch_server"]
        words += ["--model-path", model_path, "--served-model-name", options.served_model_name or model_path]
        words += ["--host", options.host, "--port", str(options.port), "--dtype", options.dtype]
        words += ["--config", options.key_file] if options.key_file else []
        words += ["--max-running-requests", str(options.max_num_seqs)]
        words += ["--context-length", str(options.max_seq_len)] if options.max_seq_len is not None else []
        words += ["--tp-size", str(options.num_gpus)] if options.num_gpus > 1 else []
        if options.gpu_memory_share is not None:
            words += ["--mem-fraction-static", str(options.gpu_memory_share)]
        if options.max_lora_rank:
            words += ["--enable-lora", "--max-lora-rank", str(options.max_lora_rank), "--lora-target-modules", "all"]
        return words, {}

    @staticmethod
    def body(
        model: str, token_ids: Sequence[int], sampling: Sampling, stop_token_ids: Sequence[int], adapter: str | None
    ) -> dict[str, Any]:
        """Returns a request that sets everything that `generation_config.json` could change. No model name: there is one."""
        top_k = 0 if sampling.temperature == 0 else sampling.top_k
        body: dict[str, Any] = {
            "input_ids": list(token_ids),
            "sampling_params": {
                **common_sampling_fields(sampling, stop_token_ids),
                "max_new_tokens": sampling.max_tokens,
                "top_k": top_k or -1,
                "sampling_seed": sampling.seed % 2**31,
                "ignore_eos": False,
            },
            "return_logprob": True,
            "stream": True,
        }
        return body if adapter is None else {**body, "lora_path": adapter}

    @staticmethod
    def reader(token_ids: Sequence[int]) -> Callable[[dict[str, Any]], Chunk]:
        """Reads events with all tokens so far, and events with only the new ones (incremental streaming)."""
        num_sent, num_seen = len(token_ids), 0

        def read(event: dict[str, Any]) -> Chunk:
            nonlocal num_seen
            meta = event["meta_info"]
            reason = meta["finish_reason"] or {}
            kind, matched = reason.get("type"), reason.get("matched")
            if kind == "abort":
                raise _aborted(reason)
            if kind not in (None, "stop", "length"):
                raise RetryableError(f"the server ended with {kind!r}")
            if meta["prompt_tokens"] != num_sent:
                raise EngineError(
                    f"the server was sent a prompt of {num_sent} tokens and continued one of {meta['prompt_tokens']}"
                )
            listed, num_all = meta.get("output_token_logprobs"), meta["completion_tokens"]
            if listed is None:
                raise EngineError(
                    "the server returns no log-probabilities; use an SGLang version that supports return_logprob"
                )
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

    async def load_weights(self, path: str) -> None:
        """The server itself waits for other clients' requests. Then its cache is flushed, once it is idle: it may not have
        noticed yet that a request was closed.
        """
        body = {"model_path": path, "flush_cache": False, "abort_all_requests": False}
        await self._order("/update_weights_from_disk", body)
        deadline = time.monotonic() + _IDLE_SECONDS
        while True:
            try:
                said = await self.post("/flush_cache")
            except EngineError as error:
                if time.monotonic() > deadline:
                    raise EngineError(f"it does not flush its cache: other requests are running ({error})") from None
                await asyncio.sleep(_POLL_SECONDS)
                continue
            if said is None:
                raise EngineError("it has no /flush_cache; use an SGLang version that has it")
            return

    async def load_adapter(self, name: str, path: str) -> None:
        """Loads the adapter. The cache distinguishes adapters, so it is kept."""
        await self._order("/load_lora_adapter", {"lora_name": name, "lora_path": path})

    async def unload_adapter(self, name: str) -> None:
        await self.post("/unload_lora_adapter", {"lora_name": name})

    async def _order(self, path: str, body: dict[str, Any]) -> None:
        """Raises `EngineError` if the server lacks the route or reports a failure."""
        said = await self.post(path, body)
        if said is None:
            raise EngineError(f"it has no {path}; use an SGLang version that has it")
        if said.get("success") is not True:
            raise EngineError(f"{path}: {str(said.get('message') or said)[:300]}")


def _aborted(reason: dict[str, Any]) -> Exception:
    status, message = reason.get("status_code"), str(reason.get("message"))[:300]
    if isinstance(status, int) and 400 <= status < 500:
        return EngineError(f"the server refuses the request ({status}): {message}")
    return RetryableError(f"aborted ({status}): {message}")
