"""The embedded engine: continuous batching over waiting episodes, keys and values kept while an episode's tool runs.

Knows token ids, seeds and episodes; nothing of text, tools or rewards. It runs on the caller's event loop: between two
forward passes the loop gets its turn, so that results come in and requests join the batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedModel

from midthought.errors import EngineError
from midthought.inference.engine import Sampling, Stopper
from midthought.inference.runner import Row, Runner, make_runner, shares_tensors
from midthought.inference.sampling import counter_uniforms, draw_tokens
from midthought.inference.slots import Slots
from midthought.types import Completion, Finish

EVICTION_PATIENCE_SECONDS = 0.25
"""While others run, a waiting episode keeps its slot at least so long: tools are quick, prefilling anew is not."""


@dataclass(slots=True)
class EngineStats:
    """What the engine has done since it was made."""

    num_prefilled_tokens: int = 0
    """Tokens of prompts, results and replies that were computed (again, where a cache was lost)."""
    num_reused_tokens: int = 0
    """Tokens that a request brought along and that stood in the cache already."""
    num_sampled_tokens: int = 0
    num_forward_passes: int = 0
    num_evicted: int = 0
    """Waiting episodes whose cached tokens were given up because slots were short."""
    seconds: float = 0.0
    """Spent in forward passes, sampling and scheduling; waiting for tools does not count."""


@dataclass(slots=True, eq=False)
class _Request:
    """One call of `sample` on its way."""

    episode: int
    token_ids: list[int]
    num_given: int
    max_tokens: int
    sampling: Sampling
    stopper: Stopper | None
    future: asyncio.Future[Completion]
    num_cached: int = 0
    """How many of `token_ids` stand in the cache; counts while the request is running."""
    logprobs: list[float] = field(default_factory=list)

    def finish_after(self, token_id: int, eos_token_ids: frozenset[int]) -> Finish | None:
        """Why sampling ends with this token, the last of `token_ids`; None where it goes on."""
        if token_id in eos_token_ids:
            return Finish.END
        if self.stopper is not None and self.stopper.feed(token_id):
            return Finish.CALL
        return Finish.LENGTH if len(self.logprobs) >= self.max_tokens else None


class LocalEngine:
    """Samples from a Hugging Face causal LM in this process. Implements `midthought.inference.engine.Engine`.

    The model is shared with whoever trains it: change its weights in place, then call `update_weights`.

    Args:
        model: the policy; its tensors are read where they are, its modules are left alone.
        eos_token_ids: the tokens that end a sequence.
        max_num_seqs: most sequences in one forward pass, and most sequences kept cached.
        max_seq_len: most tokens of a sequence, prompt included.
        max_batched_tokens: most new tokens (padding included) in one prefill.
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
        max_batched_tokens: int = 2048,
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
        self._max_batched_tokens = max_batched_tokens
        self._lazy_runner: Runner | None = None
        self._slots = Slots(max_num_seqs)
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._wave: list[_Request] = []
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
        request = _Request(episode, list(token_ids), len(token_ids), max_tokens, sampling, stopper, future)
        self._wake(loop)
        self._waiting.append(request)
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                self._forget(request)

    def open(self, episode: int) -> None:
        """Say that this episode will ask for samples; deterministic waves wait for it."""
        self._open.add(episode)
        self._closed.discard(episode)

    def close(self, episode: int) -> None:
        """The episode has ended; its slot is free again (in deterministic mode: at the end of the wave).

        A sample that is still on its way is cancelled.
        """
        self._open.discard(episode)
        for request in (*self._waiting, *self._wave, *self._running):
            if request.episode == episode:
                self._forget(request)
                request.future.cancel()
        if self.deterministic:
            self._closed.add(episode)
            if self._waiting:
                self._wake(self._waiting[0].future.get_loop())
        else:
            self._slots.release(episode)

    def update_weights(self) -> None:
        """The model's weights were changed in place: count `policy_version` up, drop what the old weights computed."""
        self.policy_version += 1
        self._slots.forget_tokens()
        self._wave[:0] = self._running
        self._running.clear()
        if self._lazy_runner is not None and not shares_tensors(self._model, self._lazy_runner.model):
            self._lazy_runner = None

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
        self._driver = loop.create_task(self._drive())

    async def _drive(self) -> None:
        """Step after step while there is something to run; the event loop has its turn between them."""
        while True:
            await asyncio.sleep(0)
            started = time.perf_counter()
            try:
                if not self._begin_wave():
                    return
                self._step()
            except Exception as error:
                self._fail_all(error)
            self.stats.seconds += time.perf_counter() - started

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
        """One prefill where requests wait and slots allow; otherwise one token for every running sequence."""
        joining = self._take_prefill()
        self._running += joining
        if any(len(request.token_ids) - request.num_cached > 1 for request in joining):
            self._forward(joining)
            return
        if self._runner.keeps_cache:
            copies = self._slots.compact({request.episode: request.num_cached for request in self._running})
            for source, target, num_tokens in copies:
                self._runner.copy_slot(source, target, num_tokens)
        self._running.sort(key=lambda request: self._slots.slot(request.episode))
        self._forward(self._running)

    def _take_prefill(self) -> list[_Request]:
        """The next requests of the wave that get a slot and fit, padded, into one forward pass; slot owners first."""
        now = time.monotonic()
        patience = 0.0 if self.deterministic or not self._running else EVICTION_PATIENCE_SECONDS
        busy = {request.episode for request in (*self._running, *self._wave) if request.episode in self._slots}
        taken: list[_Request] = []
        longest = 0
        for request in sorted(self._wave, key=lambda request: request.episode not in self._slots):
            if not self._slots.acquire(request.episode, busy, unused_since=now - patience):
                break
            busy.add(request.episode)
            request.num_cached = self._slots.num_common(request.episode, request.token_ids)
            if not self._runner.keeps_cache:
                request.num_cached = 0
            num_new = len(request.token_ids) - request.num_cached
            longest = max(longest, num_new)
            if taken and longest * (len(taken) + 1) > self._max_batched_tokens:
                break
            taken.append(request)
            self._slots.set_tokens(request.episode, request.token_ids, now=now)
            self.stats.num_prefilled_tokens += num_new
            self.stats.num_reused_tokens += request.num_cached
        self.stats.num_evicted = self._slots.num_evicted
        self._wave = [request for request in self._wave if request not in taken]
        return taken

    def _forward(self, requests: list[_Request]) -> None:
        """One forward pass and one more token for each of the requests."""
        logits = self._runner.forward(
            [Row(request.token_ids, request.num_cached, self._slots.slot(request.episode)) for request in requests]
        )
        tokens, logprobs = draw_tokens(
            logits,
            counter_uniforms(
                [request.sampling.seed for request in requests], [len(request.token_ids) for request in requests]
            ),
            [request.sampling.temperature for request in requests],
            [request.sampling.top_p for request in requests],
        )
        self.stats.num_forward_passes += 1
        self.stats.num_sampled_tokens += len(tokens)
        for request, token_id, logprob in zip(requests, tokens, logprobs, strict=True):
            request.num_cached = len(request.token_ids)
            request.token_ids.append(token_id)
            request.logprobs.append(logprob)
            self._end_where_due(request, token_id)
        self._running = [request for request in self._running if not request.future.done()]

    def _end_where_due(self, request: _Request, token_id: int) -> None:
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

    def _forget(self, request: _Request) -> None:
        """The caller no longer waits (cancelled)."""
        for queue in (self._waiting, self._wave, self._running):
            if request in queue:
                queue.remove(request)
