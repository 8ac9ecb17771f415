"""The embedded engine: continuous batching over waiting episodes, keys and values kept while an episode's tool runs.

Knows token ids, seeds and episodes; nothing of text, tools or rewards. It runs on the caller's event loop: between two
forward passes the loop gets its turn, so that results come in and requests join the batch.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from midthought.errors import EngineError
from midthought.inference.engine import Sampling, Stopper
from midthought.inference.prefix_attention import MIN_GROUP_ROWS, MIN_PREFIX_TOKENS, Group, find_groups
from midthought.inference.request import EngineStats, Request
from midthought.inference.runner import Row, Runner, make_runner, memory_bytes, shares_tensors
from midthought.inference.sampling import Ways, draw_tokens
from midthought.inference.slots import Slots, num_common
from midthought.types import Completion, Finish

EVICTION_PATIENCE_SECONDS = 0.25
"""While others run, a waiting episode keeps its slot at least so long: tools are quick, prefilling anew is not."""
MIN_SHARED_TOKENS = 16
"""It pays to copy what another sequence has computed, or to wait for it, from so many tokens on."""
RETURN_PATIENCE_SECONDS = 0.01
"""So long a pass waits for the next of many episodes to come back; while others run no longer than the pass before took."""
MAX_DEFERRED = 2
"""Passes that a request waits for others at most."""

_log = logging.getLogger(__name__)


class LocalEngine:
    """Samples from a Hugging Face causal LM in this process. Implements `midthought.inference.engine.Engine`.

    The model is shared with whoever trains it: change its weights in place, then call `update_weights`.

    Args:
        model: the policy; its tensors are read where they are, its modules are left alone.
        eos_token_ids: the tokens that end a sequence.
        max_num_seqs: most sequences in one forward pass, and most sequences kept cached.
        max_seq_len: most tokens of a sequence, prompt included.
        max_batched_tokens: most new tokens in one forward pass, but for a single prompt that is longer. By default 1,024 on
            a CPU, whose caches hold what so many compute, and 8,192 elsewhere.
        max_cache_bytes: most memory for keys and values; half of the device's by default. Where it is short, fewer
            sequences run at once.
        share_prefixes: compute what several sequences begin with once, and copy it.
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
        deterministic: bool = False,
    ) -> None:
        if max_num_seqs < 1 or max_seq_len < 2:
            raise EngineError(
                f"max_num_seqs={max_num_seqs}, max_seq_len={max_seq_len}: "
                "an engine needs room for at least one sequence of two tokens"
            )
        self.policy_version = 0
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_seq_len = max_seq_len
        self.deterministic = deterministic
        self.stats = EngineStats()
        self._model = model
        self._max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens or (1024 if model.device.type == "cpu" else 8192)
        self._max_cache_bytes = max_cache_bytes
        self._share_prefixes = share_prefixes
        self._lazy_runner: Runner | None = None
        self._slots = Slots(max_num_seqs)
        self._length = 0
        """Tokens of a sequence that the cache has been laid out for."""
        self._is_settled = False
        self._moved = asyncio.Event()
        """Since the last pass an episode has come, got its tokens, or ended. Every driver has its own."""
        self._pass_seconds = 0.0
        """What the last pass took."""
        self._is_prefilling = False
        """The last pass was of prompts alone, and more of them waited."""
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._wave: list[Request] = []
        self._drawn: list[Request] = []
        """Those that the last pass sampled for, and how."""
        self._ways = Ways([])
        self._groups: Sequence[Group] = ()
        """Of those that run, once they are settled."""
        self._open: set[int] = set()
        self._admitted: set[int] = set()
        self._closed: set[int] = set()
        self._driver: asyncio.Task[None] | None = None

    # -- the contract ------------------------------------------------------------------------------------------

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Continue `token_ids` until the stopper, an end-of-sequence token, `max_tokens` or `max_seq_len` ends it.

        Raises EngineError where `token_ids` is empty, the episode is being sampled already, or the model fails.
        """
        if not token_ids:
            raise EngineError(f"episode {episode}: nothing to continue; give at least one token id")
        if any(request.episode == episode for request in (*self._waiting, *self._wave, *self._running)):
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
        self._waiting.append(request)
        self._moved.set()
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                self._forget(request)

    def open(self, episode: int) -> None:
        """Say that this episode will ask for samples; deterministic waves wait for it."""
        self._open.add(episode)
        if episode in self._closed:  # another one of that number has ended, but no wave since
            self._closed.discard(episode)
            self._slots.release(episode)

    def close(self, episode: int) -> None:
        """The episode has ended; its slot is free again (in deterministic mode: at the end of the wave).

        A sample that is still on its way is cancelled.
        """
        self._open.discard(episode)
        self._moved.set()
        for request in (*self._waiting, *self._wave, *self._running):
            if request.episode == episode:
                self._forget(request)
                request.future.cancel()
        if self.deterministic:
            self._closed.add(episode)
            if self._waiting:
                self._wake(self._waiting[0].future.get_loop())
        else:
            self._slots.release(episode, keep_tokens=self._share_prefixes)

    def update_weights(self) -> None:
        """The model's weights were changed in place: count `policy_version` up, drop what the old weights computed."""
        self.policy_version += 1
        self._slots.forget_tokens()
        self._wave[:0] = self._running
        self._running.clear()
        if self._lazy_runner is None:
            return
        if shares_tensors(self._model, self._lazy_runner.model):
            self._lazy_runner.update_weights()
        else:
            self._lazy_runner = None

    def shutdown(self) -> None:
        """Give back the memory of the cache. A later sample makes it anew."""
        self._slots.clear()
        self._lazy_runner, self._length = None, 0

    # -- the driver --------------------------------------------------------------------------------------------

    @property
    def _runner(self) -> Runner:
        if self._lazy_runner is None:
            self._lazy_runner = make_runner(self._model)
        return self._lazy_runner

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """See that a driver runs on this event loop. Loops come and go over an engine's life, one at a time."""
        if self._driver is not None and not self._driver.done():
            if self._driver.get_loop() is loop:
                return
            if self._driver.get_loop().is_running():
                raise EngineError("the engine is in use on another event loop; give each loop an engine of its own")
        for queue in (self._waiting, self._wave, self._running):
            queue[:] = [request for request in queue if request.future.get_loop() is loop]
        self._is_settled = False
        self._moved = asyncio.Event()
        self._driver = loop.create_task(self._drive())

    async def _drive(self) -> None:
        """Step after step while there is something to run; the event loop has its turn between them."""
        while True:
            await self._let_others_in()
            started = time.perf_counter()
            try:
                if not self._begin_wave():
                    return
                self._step()
            except Exception as error:
                self._fail_all(error)
            self._pass_seconds = time.perf_counter() - started
            self.stats.seconds += self._pass_seconds

    async def _let_others_in(self) -> None:
        """A turn of the event loop. Where episodes come and go, and more are away than sample, it lasts until they stay away:
        what they bring along is then computed together, and they go on side by side."""
        await asyncio.sleep(0)
        while self._moved.is_set() and not self.deterministic:
            num_away = len(self._open) - len(self._running) - len(self._wave) - len(self._waiting)
            if num_away <= len(self._running):
                break
            self._moved.clear()
            patience = min(self._pass_seconds, RETURN_PATIENCE_SECONDS) if self._running else RETURN_PATIENCE_SECONDS
            try:
                await asyncio.wait_for(self._moved.wait(), patience)
            except TimeoutError:
                break
        self._moved.clear()

    def _begin_wave(self) -> bool:
        """Take waiting requests into the wave. False where there is nothing to run now."""
        if not self.deterministic:
            self._wave += self._waiting
            self._waiting.clear()
        elif not self._wave and not self._running:
            for episode in sorted(self._closed):
                self._slots.release(episode)
            self._admitted -= self._closed
            self._closed.clear()
            room = max(0, self._slots.max_num_slots - len(self._admitted))
            self._admitted.update(sorted(self._open - self._admitted)[:room])
            pending = {request.episode for request in self._waiting}
            if self._admitted <= pending:
                self._wave = [
                    request
                    for request in sorted(self._waiting, key=lambda request: request.episode)
                    if request.episode in self._admitted or request.episode not in self._open
                ]
                self._waiting = [request for request in self._waiting if request not in self._wave]
        return bool(self._wave or self._running)

    def _step(self) -> None:
        """One forward pass: one token more for every running sequence, and the prompts or results of those that join.

        Where more prompts wait than one pass takes, all of them go first: sequences then sample side by side, in fewer passes.
        """
        self._lay_out()
        joining, more_wait = self._take_prefill()
        if joining:
            self._running += joining
            self._is_settled = False
        is_last_of_several, self._is_prefilling = self._is_prefilling and not more_wait, more_wait
        if joining and (more_wait or is_last_of_several):
            self._forward(joining)
            return
        if not self._is_settled:
            self._settle()
        self._forward(self._running)

    def _settle(self) -> None:
        """Sequences have come or gone: move the running ones together, and put them into the order of their slots."""
        if self._runner.keeps_cache:
            copies = self._slots.compact({request.episode: request.num_cached for request in self._running})
            for source, target, num_tokens in copies:
                self._runner.copy_slot(source, target, num_tokens)
        self._running.sort(key=lambda request: self._slots.slot(request.episode))
        self._groups = self._find_groups()
        self._is_settled = True

    def _find_groups(self) -> list[Group]:
        """Running sequences that stand side by side and begin alike: what they share is attended once for all."""
        if not self._share_prefixes or len(self._running) < MIN_GROUP_ROWS:
            return []
        common = [0]
        for one, other in itertools.pairwise(self._running):
            num_tokens = num_common(one.token_ids, other.token_ids, more_than=MIN_PREFIX_TOKENS - 1)
            common.append(min(num_tokens, one.num_cached, other.num_cached))
        return find_groups(common)

    def _lay_out(self) -> None:
        """See that the longest sequence has room for its next tokens, and that as many slots as fit may be given.

        Where memory is short for the slots in use at that length, all of them are given up and computed anew, fewer at
        once. That is rare: lengths grow by half as much again each time.
        """
        requests = (*self._running, *self._wave)
        if max(len(request.token_ids) for request in requests) < self._length:
            return
        self._length = max(len(request.token_ids) + request.num_coming for request in requests)
        if self._max_cache_bytes is None:
            self._max_cache_bytes = memory_bytes(self._model.device) // 2
        limit = min(self._max_num_seqs, self._runner.fit(self._length, self._max_cache_bytes))
        if limit < self._slots.max_num_slots:
            _log.warning(
                "the key/value cache has room for %d sequences of %d tokens: so many run at once (max_num_seqs=%d)",
                limit, self._length, self._max_num_seqs,
            )  # fmt: skip
        self._slots.max_num_slots = limit
        if limit < len(self._slots):
            self._give_up_cache()

    def _give_up_cache(self) -> None:
        """Forget all that is cached and give its memory back; what was running waits again."""
        self.stats.num_relaid += 1
        self._slots.clear()
        self._runner.clear()
        self._length = 0
        self._wave[:0] = self._running
        self._running.clear()

    def _take_prefill(self) -> tuple[list[Request], bool]:
        """The next requests of the wave that get a slot and fit into the pass, slot owners first; whether more of them
        wait, for room or for what these compute."""
        if not self._wave:
            return [], False
        now = time.monotonic()
        patience = 0.0 if self.deterministic or not self._running else EVICTION_PATIENCE_SECONDS
        busy = {request.episode for request in (*self._running, *self._wave) if request.episode in self._slots}
        taken: list[Request] = []
        is_full = is_waiting = False
        room = self._max_batched_tokens - len(self._running)
        for request in sorted(self._wave, key=lambda request: request.episode not in self._slots):
            if not self._slots.acquire(request.episode, request.token_ids, busy, unused_since=now - patience):
                break
            busy.add(request.episode)
            if self._runner.keeps_cache and not self._find_cached(request, taken):
                is_waiting = True
                continue
            num_new = len(request.token_ids) - request.num_cached
            is_full = bool(taken) and num_new > room
            if is_full:
                break
            room -= num_new
            taken.append(request)
            self._slots.set_tokens(request.episode, request.token_ids, now=now)
            self.stats.num_prefilled_tokens += num_new
        self.stats.num_evicted = self._slots.num_evicted
        self._wave = [request for request in self._wave if request not in taken]
        return taken, is_full or is_waiting

    def _find_cached(self, request: Request, taken: Sequence[Request]) -> bool:
        """Set `num_cached`, after copying what another slot holds. False where it pays to wait for one that was just taken."""
        own = request.num_cached = self._slots.num_cached(request.episode, request.token_ids)
        if not self._share_prefixes:
            self.stats.num_reused_tokens += own
            return True
        outside = [other.episode for other in taken]
        worth = own + MIN_SHARED_TOKENS - 1
        found = self._slots.find_prefix(request.token_ids, longer_than=worth, outside=[*outside, request.episode])
        worth = (found[1] if found else own) + MIN_SHARED_TOKENS - 1
        if request.num_deferred < MAX_DEFERRED:
            wanted = request.token_ids[:-1]
            if any(num_common(other.token_ids, wanted, more_than=worth) for other in taken):
                request.num_deferred += 1
                return False
        if found:
            self._runner.copy_slot(found[0], self._slots.slot(request.episode), found[1])
            self._slots.set_tokens(request.episode, request.token_ids[: found[1]], now=time.monotonic())
            request.num_cached = found[1]
            self.stats.num_shared_tokens += found[1] - own
        self.stats.num_reused_tokens += own
        return True

    def _forward(self, requests: list[Request]) -> None:
        """One forward pass and one more token for each of the requests. Where memory runs out, half of it is used anew."""
        rows = [Row(request.token_ids, request.num_cached, self._slots.slot(request.episode)) for request in requests]
        groups = self._groups if requests is self._running else ()
        try:
            logits = self._runner.forward(rows, room_for=self._length, groups=groups)
        except torch.OutOfMemoryError:
            if len(requests) == 1 or not self._runner.keeps_cache:
                raise
            self._max_cache_bytes = self._runner.num_bytes // 2
            _log.warning("memory ran out with %d sequences; going on with half of the cache", len(requests))
            self._give_up_cache()
            return
        if requests != self._drawn:
            self._drawn, self._ways = list(requests), Ways([request.sampling for request in requests])
        histories = [request.token_ids for request in requests]
        uniforms = self._ways.streams.at([len(history) for history in histories])
        tokens, logprobs = draw_tokens(logits, uniforms, self._ways, histories)
        self.stats.num_forward_passes += 1
        self.stats.num_sampled_tokens += len(tokens)
        for request, token_id, logprob in zip(requests, tokens, logprobs, strict=True):
            request.num_cached = len(request.token_ids)
            request.token_ids.append(token_id)
            request.logprobs.append(logprob)
            self._end_where_due(request, token_id)
        if any(request.future.done() for request in requests):
            self._running = [request for request in self._running if not request.future.done()]
            self._is_settled = False
            self._moved.set()

    def _end_where_due(self, request: Request, token_id: int) -> None:
        """Hand the completion over where this token was the last; a stopper that raises fails its own request only."""
        if request.future.done():
            return
        try:
            finish = request.finish_after(token_id, self.eos_token_ids)
        except Exception as error:
            request.future.set_exception(error)
            return
        if finish is not None:
            self._slots.set_tokens(request.episode, request.token_ids[: request.num_cached], now=time.monotonic())
            request.future.set_result(
                Completion(
                    token_ids=tuple(request.token_ids[request.num_given :]),
                    sampled_logprobs=tuple(request.logprobs),
                    finish=finish,
                    policy_version=self.policy_version,
                )
            )

    # -- when things go wrong ----------------------------------------------------------------------------------

    def _fail_all(self, error: Exception) -> None:
        """Nobody waits for ever: every request that was asked for fails, and the cache is not trusted any more."""
        requests = [*self._running, *self._wave, *self._waiting]
        for queue in (self._running, self._wave, self._waiting):
            queue.clear()
        self._slots.forget_tokens()
        for request in requests:
            if not request.future.done():
                failure = EngineError(f"episode {request.episode}: the model failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                request.future.set_exception(failure)

    def _forget(self, request: Request) -> None:
        """The caller no longer waits (cancelled)."""
        for queue in (self._waiting, self._wave, self._running):
            if request in queue:
                queue.remove(request)
        self._is_settled = False
