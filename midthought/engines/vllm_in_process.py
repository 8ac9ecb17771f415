"""The engine over vLLM's `AsyncLLM`: token ids in and out, weight updates through shared memory, sleep.

Imports vllm only when an engine is created. Does not depend on text, tools or rewards.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midthought.engines.engine import Sampling
from midthought.engines.external_engine import ExternalEngine
from midthought.engines.servers.connection import RetryPolicy, named
from midthought.engines.servers.server import ServerOptions, request_seed
from midthought.engines.servers.streams import Chunk, PartialCompletion
from midthought.engines.servers.vllm import VLLMServer
from midthought.engines.shared_tensors import WeightReceiver
from midthought.engines.vllm_setup import checked_arguments, environment, hidden_script, import_vllm
from midthought.engines.weight_publication import Publication
from midthought.errors import EngineError
from midthought.models.gguf import model_folder
from midthought.tools.background_loop import BackgroundLoop
from midthought.types import Finish

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

_CHECK_EPISODE = -1
_TERMINATE_SECONDS = 15.0
"""Time for vLLM's processes to terminate by themselves."""
_SAID_OF_SAMPLING = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "ignore_eos", "stop_token_ids", "skip_special_tokens", "logprobs"),
)
"""Names that `VLLMServer.body` and vLLM's `SamplingParams` share."""


class VLLMInProcessEngine(ExternalEngine):
    """Samples from one model with vLLM's `AsyncLLM`.

    May be used from several event loops: vLLM runs on its own loop. It computes in child processes, which `shutdown` ends.
    Log-probabilities refer to the sampling distribution. The seed of each `sample` call depends only on (seed, position
    of its first token).

    Args:
        model_path: a folder or Hugging Face name; safetensors only, code that comes with a model is never run.
        eos_token_ids, max_seq_len, max_num_seqs: see `ExternalEngine`.
        dtype: type of the weights.
        follows_policy: whether the weights come from a policy (`follow`) only; the folder then needs no weights.
        engine_args: further fields of vLLM's `AsyncEngineArgs`. `enable_sleep_mode` makes `sleep` release GPU memory.

    Raises `MissingExtraError` without vLLM, `SettingsError` for an argument that is unknown to vLLM or fixed here.
    """

    reads_memory = True

    def __init__(
        self,
        model_path: str | Path,
        *,
        eos_token_ids: Sequence[int] | frozenset[int],
        max_seq_len: int | None = None,
        max_num_seqs: int = 128,
        dtype: str = "auto",
        follows_policy: bool = False,
        engine_args: Mapping[str, Any] | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        super().__init__(
            eos_token_ids=eos_token_ids, max_seq_len=max_seq_len, max_num_seqs=max_num_seqs, retry_policy=retry_policy
        )
        model_path = model_folder(model_path)
        words, self._environment = VLLMServer.command(str(model_path), ServerOptions())
        self._arguments = {
            "enforce_eager": "--enforce-eager" in words,
            "enable_chunked_prefill": False if "--no-enable-chunked-prefill" in words else None,
            "disable_log_stats": True,
            **checked_arguments(engine_args or {}),
            "model": str(model_path),
            "dtype": dtype,
            "max_model_len": max_seq_len,
            "max_num_seqs": max_num_seqs,
            "logprobs_mode": "processed_logprobs",
            "load_format": "dummy" if follows_policy else "safetensors",
            "worker_extension_cls": f"{WeightReceiver.__module__}.{WeightReceiver.__qualname__}",
            "trust_remote_code": False,
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
        }
        # Spawn: forking would copy this process's threads. Loopback: nothing needs the network.
        self._environment |= {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_HOST_IP": "127.0.0.1"}
        if Path(model_path).is_dir():
            self._environment["HF_HUB_OFFLINE"] = "1"
        self.can_sleep = bool(self._arguments.get("enable_sleep_mode"))
        self._released: list[str] = []
        """Parts of vLLM's memory that `sleep` released, by vLLM's names."""
        self._adapter: LoRARequest | None = None
        self._num_adapters = 0
        self._places = asyncio.Semaphore(max_num_seqs)
        self._numbers = itertools.count()
        self._llm: AsyncLLM | None = None
        self._end: weakref.finalize[..., VLLMInProcessEngine] | None = None

    def start(self) -> None:
        """Loads the model, which takes a while. Raises `EngineError` if vLLM does not become ready."""

        async def make() -> AsyncLLM:
            make_arguments, make_engine = import_vllm()
            return make_engine.from_engine_args(make_arguments(**self._arguments))

        try:
            with environment(self._environment), hidden_script():
                self._llm = self._loop.run(make())
        except BaseException as error:
            self._loop.close()
            if not isinstance(error, Exception):
                raise
            raise EngineError(f"vLLM does not start ({named(error)}); its log says more") from error
        self._end = weakref.finalize(self, _end, self._loop, self._llm)
        self.max_seq_len = self._llm.model_config.max_model_len

    async def _check(self) -> None:
        """Raises `EngineError` if vLLM is not running."""
        self._running_llm()

    def shutdown(self) -> None:
        """Also stops vLLM and its processes."""
        self._llm, self._is_shut_down = None, True
        if self._end is not None:
            self._end()
        super().shutdown()

    def _running_llm(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineError(f"this {type(self).__name__} is not running: it was never started, or was shut down")
        if self._llm.errored:
            raise EngineError("vLLM's process has ended, and its log says why; make another engine")
        return self._llm

    async def _load(self, publication: Publication) -> None:
        """After `sleep` vLLM first takes the memory of its weights again, then loads them, then takes the memory of its cache."""
        llm = self._running_llm()
        try:
            await self._replace_weights(llm, publication)
        except Exception as error:
            raise EngineError(f"vLLM does not take new weights ({named(error)}); its log says more") from error
        prefixes = publication.prefixes_within(self.max_seq_len)
        publication.check("vLLM", await asyncio.gather(*(self._next_token(*each) for each in enumerate(prefixes))))

    async def _sleep(self) -> None:
        """Drops the weights, because the next update sends new ones; a base model under an adapter, which is sent only once, is
        kept in the memory of the CPU."""
        await self._running_llm().sleep(level=2 if self._adapter is None else 1)
        self._released = ["weights", "kv_cache"]

    async def _next_token(self, seed: int, token_ids: Sequence[int]) -> tuple[int, float]:
        """Returns a sampled token and its log-probability, while the weights are being changed."""
        draft = PartialCompletion(list(token_ids), Sampling(max_tokens=1, seed=seed), frozenset())
        await self._complete(_CHECK_EPISODE, draft)
        return draft.token_ids[0], draft.logprobs[0]

    async def _replace_weights(self, llm: AsyncLLM, new: Publication) -> None:
        """Loads the weights, and drops what it computed with older ones."""
        if not self._released:
            await llm.pause_generation(mode="abort")
        try:
            await self._take_memory(llm, "weights")
            if new.tensors is not None:
                await llm.collective_rpc("load_shared_weights", args=(dict(new.tensors),))
            await self._take_memory(llm, "kv_cache")
            if new.adapter is not None:
                await self._load_adapter(llm, new.adapter, str(new.path))
            if not await llm.reset_prefix_cache():
                raise EngineError("vLLM does not drop its prefix cache: it is still computing requests")
        finally:
            if not self._released:
                await llm.resume_generation()

    async def _take_memory(self, llm: AsyncLLM, part: str) -> None:
        if part in self._released:
            await llm.wake_up(tags=[part])
            self._released.remove(part)

    async def _load_adapter(self, llm: AsyncLLM, name: str, path: str) -> None:
        from vllm.lora.request import LoRARequest

        self._num_adapters += 1
        adapter = LoRARequest(name, self._num_adapters, path)
        if not await llm.add_lora(adapter):
            raise EngineError(f"vLLM does not load the adapter {name}")
        old, self._adapter = self._adapter, adapter
        if old is not None:
            await llm.remove_lora(old.lora_int_id)

    async def _complete(self, episode: int, draft: PartialCompletion) -> None:
        llm = self._running_llm()
        vocab_size = llm.model_config.get_vocab_size()
        if wrong := [token_id for token_id in draft.prompt if not 0 <= token_id < vocab_size]:
            raise EngineError(
                f"episode {episode}: {wrong[0]} is not a token of the model, whose vocabulary has {vocab_size}"
            )
        room = min(draft.sampling.max_tokens, self.max_seq_len - len(draft.prompt))
        if room <= 0:
            draft.finish = Finish.LENGTH
            return
        params, name = self._params(draft, room), f"midthought-{next(self._numbers)}"
        seconds = self.retry_policy.first_token_timeout_seconds
        try:
            async with self._places, asyncio.timeout(seconds) as deadline:
                prompt = {"type": "token", "prompt_token_ids": list(draft.prompt)}
                outputs = llm.generate(prompt, params, name, lora_request=self._adapter)
                try:
                    while draft.finish is None:
                        chunk = await _next_chunk(outputs, episode)
                        draft.add(chunk)
                        if draft.finish is None and chunk.ended_by is not None:
                            raise EngineError(
                                f"episode {episode}: vLLM stopped at a token that does not end a sequence"
                            )
                        seconds = self.retry_policy.next_token_timeout_seconds
                        deadline.reschedule(asyncio.get_running_loop().time() + seconds)
                finally:
                    await outputs.aclose()
                    # If cancelled while vLLM accepts it, the request is known to vLLM but not to its generator.
                    await llm.abort(name)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise EngineError(f"episode {episode}: vLLM returned no token for {seconds:g} s") from None

    def _params(self, draft: PartialCompletion, room: int) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        seed = request_seed(draft.sampling.seed, len(draft.prompt))
        sampling = dataclasses.replace(draft.sampling, max_tokens=room, seed=seed)
        body = VLLMServer.body("", (), sampling, sorted(draft.eos_token_ids), None)
        said = {name: body[name] for name in _SAID_OF_SAMPLING}
        return SamplingParams(**said, detokenize=False, output_kind=RequestOutputKind.DELTA)


def _end(loop: BackgroundLoop, llm: AsyncLLM) -> None:
    """Stops vLLM; also called at garbage collection and at the end of the process.

    On vLLM's own loop it does nothing, because a loop cannot wait for itself; vLLM then stops by itself.
    """

    async def end() -> None:
        llm.shutdown(timeout=_TERMINATE_SECONDS)

    with contextlib.suppress(EngineError):
        loop.run(end())
    loop.close()


async def _next_chunk(outputs: AsyncIterator[RequestOutput], episode: int) -> Chunk:
    """Returns the next new tokens. Raises `EngineError` if the request failed."""
    try:
        (completion,) = (await anext(outputs)).outputs
        if completion.finish_reason not in (None, "stop", "length"):
            raise EngineError(f"vLLM ended a request with {completion.finish_reason!r}")
        token_ids = list(completion.token_ids)
        pairs = zip(token_ids, completion.logprobs or [], strict=True)
        logprobs = [each[token_id].logprob for token_id, each in pairs]
    except EngineError as error:
        raise EngineError(f"episode {episode}: {error}") from None
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise EngineError(f"episode {episode}: vLLM failed ({named(cause)})") from error
    return Chunk(token_ids=token_ids, logprobs=logprobs, ended_by=completion.finish_reason)
