"""The embedded engine: continuous batching over waiting episodes, keys and values kept while an episode's tool runs.

Knows token ids, seeds and episodes; nothing of text, tools or rewards. It runs on the caller's event loop: between forward
passes the loop gets its turn, so that results come in and requests join the batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from transformers import PreTrainedModel

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.local.forward_pass import ForwardPasses
from midthought.engines.local.kv_cache_manager import KVCacheManager
from midthought.engines.local.request import EngineStats, Request
from midthought.engines.local.scheduler import Scheduler
from midthought.errors import EngineError
from midthought.types import Completion, Finish

RETURN_PATIENCE_SECONDS = 0.01
"""So long a pass waits for the next of many episodes to come back; while others run no longer than the pass before took."""
TURN_SECONDS = 0.02
"""The event loop has its turn after so long at the latest, where no episode is away whose result could come in."""


class LocalEngine:
    """Samples from a Hugging Face causal LM in this process. Implements `midthought.engines.engine.Engine`.

    The model is shared with whoever trains it: change its weights in place, then call `update_weights`.

    Args:
        model: the policy, with or without PEFT adapters; its tensors are read in place, its modules are not changed. Adapters
            that are added, removed, switched or merged take effect when the engine next starts to sample, and at
            `update_weights`.
        eos_token_ids: the tokens that end a sequence.
        max_num_seqs: most sequences in one forward pass, and most sequences kept cached.
        max_seq_len: most tokens of a sequence, prompt included.
        max_batched_tokens: most new tokens in one forward pass, but for a single prompt that is longer. By default 1,024 on
            a CPU, whose caches hold what so many compute, and 8,192 elsewhere.
        max_cache_bytes: most memory for keys and values; half of the device's by default. Where it is short, fewer
            sequences run at once.
        share_prefixes: compute what several sequences begin with once, and copy it.
        cuda_graphs: on a GPU, record passes of decoding as CUDA graphs and replay them; not in deterministic mode.
        merge_adapters: sample from merged copies of layers with LoRA adapters, if these take at most a quarter of the
            device's free memory; otherwise the adapters are computed beside the weights, which is slower.
        deterministic: work in waves. A wave takes the requests of all admitted episodes at once and ends when all of
            them have ended; up to `max_num_seqs` open episodes are admitted, lowest numbers first, each until it is
            closed. What is batched with what then follows from the episodes alone, and two runs agree bit by bit.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_token_ids: Sequence[int] | frozenset[int],
        max_num_seqs: int = 128,
        max_seq_len: int = 1024,
        max_batched_tokens: int | None = None,
        max_cache_bytes: int | None = None,
        share_prefixes: bool = True,
        cuda_graphs: bool = True,
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
        self._waves = Scheduler(deterministic=deterministic)
        self._room = KVCacheManager(
            model,
            self.stats,
            max_num_seqs=max_num_seqs,
            max_cache_bytes=max_cache_bytes,
            share_prefixes=share_prefixes,
            records_steps=cuda_graphs and not deterministic,
            merge_adapters=merge_adapters,
        )
        self._passes = ForwardPasses(
            self._waves,
            self._room,
            self.stats,
            max_batched_tokens=max_batched_tokens or (1024 if model.device.type == "cpu" else 8192),
            eos_token_ids=self.eos_token_ids,
        )
        self._moved = asyncio.Event()
        """Since the last pass an episode has come, got its tokens, or ended. Every driver has its own."""
        self._pass_seconds = 0.0
        """What the last pass took."""
        self._driver: asyncio.Task[None] | None = None

    @property
    def policy_version(self) -> int:
        """Counts the weights that it has sampled from; set it where a run goes on."""
        return self._passes.policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._passes.policy_version = version

    # -- the contract ------------------------------------------------------------------------------------------

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Continue `token_ids` until the stopper, an end-of-sequence token, `max_tokens` or `max_seq_len` ends it.

        Raises EngineError where `token_ids` is empty, the episode is being sampled already, or the model fails.
        """
        if not token_ids:
            raise EngineError(f"episode {episode}: nothing to continue; give at least one token id")
        if self._waves.of(episode):
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
        self._waves.waiting.append(request)
        self._moved.set()
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                self._waves.keep(lambda other: other is not request)

    def open(self, episode: int) -> None:
        """Say that this episode will ask for samples; deterministic waves wait for it."""
        self._waves.open.add(episode)
        if episode in self._waves.closed:  # another one of that number has ended, but no wave since
            self._waves.closed.discard(episode)
            self._room.slots.release(episode)

    def close(self, episode: int) -> None:
        """The episode has ended; its slot is free again (in deterministic mode: at the end of the wave).

        A sample that is still on its way is cancelled.
        """
        waves = self._waves
        waves.open.discard(episode)
        self._moved.set()
        if requests := waves.of(episode):
            waves.keep(lambda request: request.episode != episode)
            for request in requests:
                request.future.cancel()
        if self.deterministic:
            waves.closed.add(episode)
            if waves.waiting:
                self._wake(waves.waiting[0].future.get_loop())
        else:
            self._room.slots.release(episode, keep_tokens=self._room.share_prefixes)

    def update_weights(self) -> None:
        """The model's weights were changed in place: count `policy_version` up, drop what the old weights computed."""
        self.policy_version += 1
        self._passes.start_over()
        self._room.update_weights()

    def shutdown(self) -> None:
        """Give back the memory of the cache. A later sample makes it anew."""
        self._passes.start_over()
        self._room.clear()

    # -- the driver --------------------------------------------------------------------------------------------

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """See that a driver runs on this event loop. Loops come and go over an engine's life, one at a time."""
        if self._driver is not None and not self._driver.done():
            if self._driver.get_loop() is loop:
                return
            if self._driver.get_loop().is_running():
                raise EngineError("the engine is in use on another event loop; give each loop an engine of its own")
        self._waves.keep(lambda request: request.future.get_loop() is loop)
        self._moved = asyncio.Event()
        self._driver = loop.create_task(self._drive())

    async def _drive(self) -> None:
        """Step after step while there is something to run; the event loop has its turn between them."""
        next_turn = 0.0
        self._room.follow_adapters()
        while True:
            started = time.perf_counter()
            if started >= next_turn or self._moved.is_set() or self._waves.num_away:
                await self._let_others_in()
                started = time.perf_counter()
                next_turn = started + TURN_SECONDS
            try:
                if not self._waves.begin(self._room.slots.max_num_slots, self._room.slots.release):
                    return
                if self._passes.step():
                    self._moved.set()
            except Exception as error:
                self._fail_all(error)
            self._pass_seconds = time.perf_counter() - started
            self.stats.seconds += self._pass_seconds

    async def _let_others_in(self) -> None:
        """A turn of the event loop. Where episodes come and go, and more are away than sample, it lasts until they stay away:
        what they bring along is then computed together, and they go on side by side."""
        await asyncio.sleep(0)
        while self._moved.is_set() and not self.deterministic:
            is_running = bool(self._waves.running)
            if self._waves.num_away <= len(self._waves.running):
                break
            self._moved.clear()
            patience = min(self._pass_seconds, RETURN_PATIENCE_SECONDS) if is_running else RETURN_PATIENCE_SECONDS
            try:
                await asyncio.wait_for(self._moved.wait(), patience)
            except TimeoutError:
                break
        self._moved.clear()

    def _fail_all(self, error: Exception) -> None:
        """Nobody waits for ever: every request that was asked for fails, and the cache is not trusted any more."""
        requests = list(self._waves)
        self._waves.keep(lambda request: False)
        self._room.slots.forget_tokens()
        for request in requests:
            if not request.future.done():
                failure = EngineError(f"episode {request.episode}: the model failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                request.future.set_exception(failure)
