"""The engine over vLLM's `AsyncLLM`: token ids in and out, weight updates through shared memory, sleep.

Imports vllm only when an engine is created. Does not depend on text, tools or rewards.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.running_samples import RunningSamples
from midthought.engines.servers.connection import RetryPolicy, named
from midthought.engines.servers.options import ServerOptions
from midthought.engines.servers.server import request_seed
from midthought.engines.servers.streams import Chunk, PartialCompletion
from midthought.engines.servers.vllm import VLLMServer
from midthought.engines.vllm_in_process.setup import checked_arguments, environment, hidden_script, import_vllm
from midthought.engines.vllm_in_process.worker import WeightReceiver
from midthought.engines.weight_sync.update_lock import UpdateLock
from midthought.engines.weight_sync.weight_check import Publication, Reads
from midthought.errors import EngineError, SettingsError
from midthought.models.gguf import model_folder
from midthought.tools.background_loop import BackgroundLoop
from midthought.types import Completion, Finish

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

News = Chunk | Exception
_CHECK_EPISODE = -1
_TERMINATE_SECONDS = 15.0
"""Time for vLLM's processes to terminate by themselves."""
_SAID_OF_SAMPLING = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "ignore_eos", "stop_token_ids", "skip_special_tokens", "logprobs"),
)
"""Names that `VLLMServer.body` and vLLM's `SamplingParams` share."""


class VLLMInProcessEngine:
    """Samples from one model with vLLM's `AsyncLLM`. Implements `midthought.engines.weight_sync.synced_engine.ReloadableEngine`.

    May be used from several event loops: vLLM runs on its own loop. It computes in child processes, which `shutdown` ends.
    Log-probabilities refer to the sampling distribution. The seed of each `sample` call depends only on (seed, position
    of its first token).

    Args:
        model_path: a folder or Hugging Face name; safetensors only, code that comes with a model is never run.
        eos_token_ids: the tokens that end a sequence; the model's own settings are ignored.
        max_seq_len: maximum tokens of a sequence, including the prompt; the model's limit by default.
        max_num_seqs: maximum concurrent sequences; further ones wait.
        dtype: type of the weights.
        follows_policy: whether the weights come from `publish` only; the folder then needs no weights.
        engine_args: further fields of vLLM's `AsyncEngineArgs`. `enable_sleep_mode` makes `sleep` release GPU memory.

    Raises `VLLMNotInstalledError` without vLLM, `SettingsError` for an argument that is unknown to vLLM or fixed here.
    """

    policy_version = 0
    reads: Reads = "shared memory"

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
        if max_num_seqs < 1 or (max_seq_len is not None and max_seq_len < 2):
            raise SettingsError(
                f"max_num_seqs={max_num_seqs}, max_seq_len={max_seq_len}: "
                "an engine needs room for at least one sequence of two tokens"
            )
        self.eos_token_ids = frozenset(eos_token_ids)
        self.retry_policy = retry_policy or RetryPolicy()
        self.max_seq_len = 0
        model_path = model_folder(model_path)
        words, self._environment = VLLMServer.command(str(model_path), ServerOptions())
        self._arguments = checked_arguments(engine_args or {}) | {
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
        self._arguments = {
            "enforce_eager": "--enforce-eager" in words,
            "enable_chunked_prefill": False if "--no-enable-chunked-prefill" in words else None,
            "disable_log_stats": True,
        } | self._arguments
        # Spawn: forking would copy this process's threads. Loopback: nothing needs the network.
        self._environment |= {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_HOST_IP": "127.0.0.1"}
        if Path(model_path).is_dir():
            self._environment["HF_HUB_OFFLINE"] = "1"
        self._can_sleep = bool(self._arguments.get("enable_sleep_mode"))
        self.is_asleep = False
        self._released: list[str] = []
        """Parts of vLLM's memory that `sleep` released, by vLLM's names."""
        self._update_lock = UpdateLock()
        self._adapter: LoRARequest | None = None
        self._num_adapters = 0
        self._places = asyncio.Semaphore(max_num_seqs)
        self._numbers = itertools.count()
        self._running = RunningSamples()
        self._loop = BackgroundLoop("midthought-vllm")
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

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Samples after `token_ids` until the stopper, an end-of-sequence token, `max_tokens` or `max_seq_len` ends it.

        Then, or if the caller is cancelled, vLLM's request is aborted; later tokens that have arrived are cut and counted.

        Raises `EngineError` if `token_ids` is empty or contains an invalid id, the episode is being sampled already, or
        vLLM fails or stalls.
        """
        llm = self._running_llm()
        self._running.require_free(episode, token_ids)
        vocab_size = llm.model_config.get_vocab_size()
        if wrong := [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]:
            raise EngineError(
                f"episode {episode}: {wrong[0]} is not a token of the model, whose vocabulary has {vocab_size}"
            )
        draft = PartialCompletion(list(token_ids), sampling, self.eos_token_ids, stopper)
        return await self._running.run(episode, self._complete_unchanged(llm, episode, draft))

    def open(self, episode: int) -> None:
        """Does nothing: vLLM's prefix cache works without it."""

    def close(self, episode: int) -> None:
        """Ends the episode and cancels its running sample."""
        self._running.cancel(episode)

    async def check(self) -> None:
        """Raises `EngineError` if vLLM is not running."""
        self._running_llm()

    async def publish(self, publication: Publication, policy_version: int) -> None:
        """Loads the weights and checks that vLLM computes with them. Completions then carry `policy_version`.

        Running samples are awaited first and new ones wait, so no completion mixes weights. After `sleep` vLLM first takes the
        memory of its weights again, then loads them, then takes the memory of its cache.

        Raises `EngineError` if vLLM does not load the weights or computes something else.
        """
        llm = self._running_llm()
        async with self._update_lock.changing(self.retry_policy.total_timeout_seconds):
            try:
                await asyncio.wrap_future(self._loop.start(self._load(llm, publication)))
            except Exception as error:
                raise EngineError(f"vLLM does not take new weights ({named(error)}); its log says more") from error
            lengths = [length for length in publication.proof.lengths if length < self.max_seq_len]
            prefixes = [publication.proof.token_ids[:length] for length in lengths]
            sampled = await asyncio.gather(*(self._next_token(llm, *each) for each in enumerate(prefixes)))
            publication.proof.check("vLLM", sampled, publication.likely_cause)
            self.policy_version, self.is_asleep = policy_version, False

    async def sleep(self) -> None:
        """Releases vLLM's GPU memory until the next `publish`. Does nothing without `enable_sleep_mode`.

        Waits for running samples. The weights are dropped, because `publish` sends new ones; a base model under an adapter,
        which is sent only once, is kept in the memory of the CPU.
        """
        llm = self._running_llm()
        if self._can_sleep and not self.is_asleep:
            async with self._update_lock.changing(self.retry_policy.total_timeout_seconds):
                level = 2 if self._adapter is None else 1
                await asyncio.wrap_future(self._loop.start(llm.sleep(level=level)))
                self._released, self.is_asleep = ["weights", "kv_cache"], True

    def shutdown(self) -> None:
        """Stops vLLM and its processes; running samples fail. May be called twice."""
        self._llm = None
        if self._end is not None:
            self._end()

    def _running_llm(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineError(f"this {type(self).__name__} is not running: it was never started, or was shut down")
        if self._llm.errored:
            raise EngineError("vLLM's process has ended, and its log says why; make another engine")
        return self._llm

    async def _next_token(self, llm: AsyncLLM, seed: int, token_ids: Sequence[int]) -> tuple[int, float]:
        """Returns a sampled token and its log-probability, while the weights are being changed."""
        draft = PartialCompletion(list(token_ids), Sampling(max_tokens=1, seed=seed), frozenset())
        await self._complete(llm, _CHECK_EPISODE, draft)
        return draft.token_ids[0], draft.logprobs[0]

    async def _load(self, llm: AsyncLLM, new: Publication) -> None:
        """Loads the weights on vLLM's event loop, and drops what it computed with older ones."""
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

    async def _complete_unchanged(self, llm: AsyncLLM, episode: int, draft: PartialCompletion) -> Completion:
        """Completes the draft with one version of the weights."""
        async with self._update_lock.sampling():
            version = self.policy_version
            await self._complete(llm, episode, draft)
        return draft.completion(version)

    async def _complete(self, llm: AsyncLLM, episode: int, draft: PartialCompletion) -> None:
        """Starts one request on vLLM's event loop, and adds its tokens here as they arrive."""
        room = min(draft.sampling.max_tokens, self.max_seq_len - len(draft.prompt))
        if room <= 0:
            draft.finish = Finish.LENGTH
            return
        here = asyncio.get_running_loop()
        arrived: asyncio.Queue[News] = asyncio.Queue()  # at most `room` tokens

        def hand_over(news: News) -> None:
            with contextlib.suppress(RuntimeError):  # the caller's loop may have been closed meanwhile
                here.call_soon_threadsafe(arrived.put_nowait, news)

        seconds = self.retry_policy.total_timeout_seconds
        request = self._loop.start(self._request(llm, list(draft.prompt), self._params(draft, room), hand_over))
        try:
            async with asyncio.timeout(seconds) as deadline:
                while draft.finish is None:
                    _take(await arrived.get(), draft, episode)
        except TimeoutError:
            if not deadline.expired():
                raise
            came = f"{len(draft.token_ids)} tokens received"
            raise EngineError(f"episode {episode}: not complete after {seconds:g} s; {came}") from None
        finally:
            request.cancel()
        while not arrived.empty():
            if isinstance(news := arrived.get_nowait(), Chunk):
                draft.add(news)

    async def _request(
        self, llm: AsyncLLM, token_ids: list[int], params: SamplingParams, hand_over: Callable[[News], None]
    ) -> None:
        """Runs one request on vLLM's event loop; cancelling aborts it."""
        name = f"midthought-{next(self._numbers)}"
        seconds = self.retry_policy.first_token_timeout_seconds
        try:
            async with self._places, asyncio.timeout(seconds) as deadline:
                prompt = {"type": "token", "prompt_token_ids": token_ids}
                outputs = llm.generate(prompt, params, name, lora_request=self._adapter)
                try:
                    async for output in outputs:
                        hand_over(_chunk(output))
                        seconds = self.retry_policy.next_token_timeout_seconds
                        deadline.reschedule(asyncio.get_running_loop().time() + seconds)
                finally:
                    await outputs.aclose()
                    # If cancelled while vLLM accepts it, the request is known to vLLM but not to its generator.
                    await llm.abort(name)
        except Exception as error:
            stalled = isinstance(error, TimeoutError) and deadline.expired()
            hand_over(EngineError(f"vLLM returned no token for {seconds:g} s") if stalled else error)
        except asyncio.CancelledError:
            hand_over(EngineError("the engine was shut down"))
            raise

    def _params(self, draft: PartialCompletion, room: int) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        seed = request_seed(draft.sampling.seed, len(draft.prompt))
        sampling = dataclasses.replace(draft.sampling, max_tokens=room, seed=seed)
        body = VLLMServer.body("", (), sampling, sorted(draft.eos_token_ids))
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


def _chunk(output: RequestOutput) -> Chunk:
    """Converts one output, which contains only new tokens. Raises `EngineError` if the request failed."""
    (completion,) = output.outputs
    if completion.finish_reason not in (None, "stop", "length"):
        raise EngineError(f"vLLM ended a request with {completion.finish_reason!r}")
    token_ids = list(completion.token_ids)
    logprobs = [each[token_id].logprob for token_id, each in zip(token_ids, completion.logprobs or [], strict=True)]
    return Chunk(token_ids=token_ids, logprobs=logprobs, ended_by=completion.finish_reason)


def _take(news: News, draft: PartialCompletion, episode: int) -> None:
    """Adds the message to the draft. Raises `EngineError` if it is an error or ended without finishing the draft."""
    if isinstance(news, EngineError):
        raise EngineError(f"episode {episode}: {news}")
    if isinstance(news, Exception):
        cause = news.__cause__ if isinstance(news.__cause__, Exception) else news
        raise EngineError(f"episode {episode}: vLLM failed ({named(cause)})") from news
    draft.add(news)
    if draft.finish is None and news.ended_by is not None:
        raise EngineError(f"episode {episode}: vLLM stopped at a token that does not end a sequence")
