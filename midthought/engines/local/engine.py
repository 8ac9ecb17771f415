"""Local engine: continuous batching; an episode's KV cache is kept while its tool runs.

Runs on the caller's event loop and yields to it between forward passes, so that results arrive and requests join the batch.
Does not depend on text, tools or rewards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.local.forward_pass import EnginePasses
from midthought.engines.local.kv_cache_manager import KVCacheManager
from midthought.engines.local.scheduler import EngineStats, Request, Scheduler
from midthought.errors import EngineError
from midthought.types import Completion, Finish

RETURN_WAIT_SECONDS = 0.01
"""Maximum wait before a forward pass for the next returning episode; at most the last pass's time while others run."""
YIELD_SECONDS = 0.02
"""Maximum time between two yields to the event loop if no open episode is without a request."""


class LocalEngine:
    """Samples from a Hugging Face causal LM in this process. Implements `midthought.engines.engine.Engine`.

    The model is shared with its trainer: change its weights in place, then call `update_weights`.

    Args:
        model: the policy, with or without PEFT adapters; its tensors are read in place, its modules are not changed. Added,
            removed, switched or merged adapters take effect when the engine next starts to sample, and at `update_weights`.
        eos_token_ids: the tokens that end a sequence.
        max_num_seqs: maximum sequences in one forward pass, and in the cache; fewer if their keys and values would take more than
            half of the device's memory.
        max_seq_len: maximum tokens of a sequence, including the prompt.
        share_prefixes: compute a common prefix of several sequences once, and copy it.
        cuda_graphs: on a GPU, record passes of few tokens as CUDA graphs and replay them; not in deterministic mode.
        async_scheduling: begin a decoding step before the host has read the tokens of the last one. None: on a GPU, not in
            deterministic mode.
        merge_adapters: sample from merged copies of layers with LoRA adapters, if these take at most a quarter of the
            device's free memory; otherwise the adapters are computed beside the weights, which is slower.
        deterministic: work in waves. A wave takes the requests of all admitted episodes and ends when all have ended. Up
            to `max_num_seqs` open episodes are admitted, lowest numbers first, until they are closed. The composition of
            batches then depends only on the episodes, and two runs are bit-identical.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_token_ids: Sequence[int] | frozenset[int],
        max_num_seqs: int = 128,
        max_seq_len: int = 1024,
        share_prefixes: bool = True,
        cuda_graphs: bool = True,
        async_scheduling: bool | None = None,
        merge_adapters: bool = True,
        deterministic: bool = False,
    ) -> None:
        if max_num_seqs < 1 or max_seq_len < 2:
            raise EngineError(
                f"max_num_seqs={max_num_seqs}, max_seq_len={max_seq_len}: "
                "an engine needs room for at least one sequence of two tokens"
            )
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_seq_len = max_seq_len
        self.deterministic = deterministic
        self.stats = EngineStats()
        self._scheduler = Scheduler(deterministic=deterministic)
        self._cache_manager = KVCacheManager(
            model,
            self.stats,
            max_num_seqs=max_num_seqs,
            share_prefixes=share_prefixes,
            records_steps=cuda_graphs and not deterministic,
            merge_adapters=merge_adapters,
        )
        self._forward_passes = EnginePasses(
            self._scheduler,
            self._cache_manager,
            self.stats,
            eos_token_ids=self.eos_token_ids,
            async_scheduling=(
                model.device.type == "cuda" and not deterministic if async_scheduling is None else async_scheduling
            ),
        )
        self._changed = asyncio.Event()
        """Set if an episode has requested, received its tokens, or ended since the last pass. Each driver has its own."""
        self._pass_seconds = 0.0
        """Duration of the last forward pass."""
        self._driver: asyncio.Task[None] | None = None

    @property
    def policy_version(self) -> int:
        """Version of the weights; each update increments it. Set it when a run resumes."""
        return self._forward_passes.policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._forward_passes.policy_version = version

    @property
    def progress(self) -> object:
        """Changes with every forward pass, and always if no request waits for one."""
        scheduler = self._scheduler
        waits_for_tools = self.deterministic and scheduler.num_away > 0
        return object() if waits_for_tools or not any(scheduler) else self.stats.num_forward_passes

    @property
    def num_cache_bytes(self) -> int:
        """Current memory of keys and values, in bytes."""
        return self._cache_manager.num_bytes

    # -- the contract ------------------------------------------------------------------------------------------

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Samples after `token_ids` until the stopper, an end-of-sequence token, `max_tokens` or `max_seq_len` ends it.

        Raises `EngineError` if `token_ids` is empty, the episode is being sampled already, or the model fails.
        """
        if not token_ids:
            raise EngineError(f"episode {episode}: nothing to continue; give at least one token id")
        if self._scheduler.of(episode):
            raise EngineError(f"episode {episode} is being sampled already; await its completion first")
        max_tokens = min(sampling.max_tokens, self.max_seq_len - len(token_ids))
        if max_tokens <= 0:
            return Completion(
                token_ids=(), sampled_logprobs=(), finish=Finish.LENGTH, policy_version=self.policy_version
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        request = Request(episode, list(token_ids), len(token_ids), max_tokens, sampling, stopper, future)
        self._wake(loop)
        self._scheduler.waiting.append(request)
        self._changed.set()
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                self._scheduler.keep(lambda other: other is not request)

    def open(self, episode: int) -> None:
        """Announces that this episode will request samples; deterministic waves wait for it."""
        self._scheduler.open.add(episode)
        if episode in self._scheduler.closed:  # an earlier episode of that number ended in the current wave
            self._scheduler.closed.discard(episode)
            self._cache_manager.slots.release(episode)

    def close(self, episode: int) -> None:
        """Ends the episode, frees its slot (in deterministic mode at the end of the wave), and cancels its running sample."""
        scheduler = self._scheduler
        scheduler.open.discard(episode)
        self._changed.set()
        if requests := scheduler.of(episode):
            scheduler.keep(lambda request: request.episode != episode)
            for request in requests:
                request.future.cancel()
        if self.deterministic:
            scheduler.closed.add(episode)
            if scheduler.waiting:
                self._wake(scheduler.waiting[0].future.get_loop())
        else:
            self._cache_manager.slots.release(episode, keep_tokens=self._cache_manager.share_prefixes)

    def update_weights(self) -> None:
        """Increments `policy_version` and drops the cache, after the model's weights were changed in place."""
        self.policy_version += 1
        self._forward_passes.start_over()
        self._cache_manager.update_weights()

    def sleep(self) -> None:
        """Releases the cache's memory on a GPU for the learner; the next sample allocates it again, and running requests are
        computed again."""
        if self._cache_manager.is_on_gpu:
            self._forward_passes.start_over()
            self._cache_manager.release_cache()

    def shutdown(self) -> None:
        """Releases the cache's memory. A later sample allocates it again."""
        self._forward_passes.start_over()
        self._cache_manager.clear()

    # -- the driver --------------------------------------------------------------------------------------------

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the driver on this event loop if needed. An engine may be used on several loops, one after another."""
        if self._driver is not None and not self._driver.done():
            if self._driver.get_loop() is loop:
                return
            if self._driver.get_loop().is_running():
                raise EngineError("the engine is in use on another event loop; use one engine per loop")
        self._scheduler.keep(lambda request: request.future.get_loop() is loop)
        self._changed = asyncio.Event()
        self._driver = loop.create_task(self._drive())

    async def _drive(self) -> None:
        """Runs forward passes while there are requests, and yields to the event loop between them."""
        next_yield = 0.0
        self._cache_manager.follow_adapters()
        while True:
            started = time.perf_counter()
            if started >= next_yield or self._changed.is_set() or self._scheduler.num_away:
                await self._yield_to_event_loop()
                started = time.perf_counter()
                next_yield = started + YIELD_SECONDS
            try:
                if not self._scheduler.begin(
                    self._cache_manager.slots.max_num_slots, self._cache_manager.slots.release
                ):
                    return
                if self._forward_passes.step():
                    self._changed.set()
            except Exception as error:
                self._fail_all(error)
            self._pass_seconds = time.perf_counter() - started

    async def _yield_to_event_loop(self) -> None:
        """Yields to the event loop. If more episodes are away than running, waits until no further one returns, so that the
        returning ones are computed in the same forward pass."""
        await asyncio.sleep(0)
        while self._changed.is_set() and not self.deterministic:
            is_running = bool(self._scheduler.running)
            if self._scheduler.num_away <= len(self._scheduler.running):
                break
            self._changed.clear()
            wait_seconds = min(self._pass_seconds, RETURN_WAIT_SECONDS) if is_running else RETURN_WAIT_SECONDS
            try:
                await asyncio.wait_for(self._changed.wait(), wait_seconds)
            except TimeoutError:
                break
        self._changed.clear()

    def _fail_all(self, error: Exception) -> None:
        """Fails all requests, so that no caller waits forever, and discards the cache."""
        requests = list(self._scheduler)
        self._scheduler.keep(lambda request: False)
        self._cache_manager.slots.forget_tokens()
        remedy = "; lower max_num_seqs" if isinstance(error, torch.OutOfMemoryError) else ""
        reason = f"the model failed: {type(error).__name__}: {error}{remedy}"
        for request in requests:
            if not request.future.done():
                failure = EngineError(f"episode {request.episode}: {reason}")
                failure.__cause__ = error
                request.future.set_exception(failure)
