"""One forward pass after the other: which prompts join it, what it computes, and what is done with the tokens drawn.

Knows requests, slots and logits; nothing of the event loop but that a request's future is given its completion.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence

import numpy as np
import torch

from midthought.engines.local.kv_cache_manager import KVCacheManager
from midthought.engines.local.prefix_attention import MIN_GROUP_ROWS, MIN_PREFIX_TOKENS, Group, find_groups
from midthought.engines.local.request import EngineStats, Request
from midthought.engines.local.runner import Steps
from midthought.engines.local.sampling import SamplingBatch, draw_tokens
from midthought.engines.local.scheduler import Scheduler
from midthought.engines.local.slots import num_common
from midthought.types import Completion

EVICTION_PATIENCE_SECONDS = 0.25
"""While others run, a waiting episode keeps its slot at least so long: tools are quick, prefilling anew is not."""
NUM_DRAWN_AHEAD = 32
"""ForwardPasses for which uniform numbers are worked out at once."""

_log = logging.getLogger(__name__)


class _Batch:
    """Requests of one pass, or of many that follow each other: what is the same as long as they are."""

    def __init__(self, requests: Sequence[Request], groups: Sequence[Group] = ()) -> None:
        self.requests = list(requests)
        self.groups = groups
        self.steps: Steps | None = None
        """Once each of them brings one token a pass."""
        self.ways = SamplingBatch([request.sampling for request in requests])
        self.histories = [request.token_ids for request in requests]
        """The requests' own lists, which grow."""
        self._lengths = np.array([len(request.token_ids) for request in requests])
        self._uniforms = np.empty((0, len(requests)))
        """`[passes ahead, n]`"""
        self.token_ids = [history[-1] for history in self.histories]
        """The last tokens, which are not computed yet."""
        self.num_roomy_passes = 0
        """For so many more passes of the same requests the cache is long enough."""

    def uniforms(self) -> np.ndarray:
        """`[n]`: a number for the next token of each request. They are worked out for several passes at once."""
        if not len(self._uniforms):
            num_ahead = NUM_DRAWN_AHEAD if self.steps else 1
            self._uniforms = self.ways.streams.at(self._lengths + np.arange(num_ahead)[:, None])
            self._lengths += num_ahead
        uniforms, self._uniforms = self._uniforms[0], self._uniforms[1:]
        return uniforms

    @property
    def brings_one_token_each(self) -> bool:
        return all(len(request.token_ids) - request.num_cached == 1 for request in self.requests)


class ForwardPasses:
    """Computes and draws for the requests of `waves`, in the slots of `room`.

    Args:
        max_batched_tokens: most new tokens in one forward pass, but for a single prompt that is longer.
        eos_token_ids: the tokens that end a sequence.
    """

    def __init__(
        self,
        waves: Scheduler,
        room: KVCacheManager,
        stats: EngineStats,
        *,
        max_batched_tokens: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self.policy_version = 0
        self._waves = waves
        self._room = room
        self._stats = stats
        self._max_batched_tokens = max_batched_tokens
        self._eos_token_ids = eos_token_ids
        self._is_prefilling = False
        """The last pass was of prompts alone, and more of them waited."""
        self._settled: _Batch | None = None
        """Those that run, where they sit side by side; none where others have joined."""

    def step(self) -> bool:
        """One forward pass: one token more for every running sequence, and the prompts or results of those that join. True
        where a request has ended.

        Where more prompts wait than one pass takes, all of them go first: sequences then sample side by side, in fewer passes.
        """
        waves, settled = self._waves, self._settled
        if settled and settled.num_roomy_passes and not waves.wave and settled.requests == waves.running:
            settled.num_roomy_passes -= 1
            return self._forward(settled)
        if not self._room.lay_out((*waves.running, *waves.wave)):
            self.start_over()
        joining, more_wait = self._take_prefill()
        if joining:
            waves.running += joining
            self._settled = None
        is_last_of_several, self._is_prefilling = self._is_prefilling and not more_wait, more_wait
        if joining and (more_wait or is_last_of_several):
            return self._forward(_Batch(joining))
        if self._settled is None or self._settled.requests != waves.running:
            self._settled = self._settle()
        return self._forward(self._settled)

    def start_over(self) -> None:
        """What runs is to be computed anew: the cache or the weights are not those that it began with."""
        self._waves.start_over()
        self._settled = None

    def _settle(self) -> _Batch:
        """Sequences have come or gone: move the running ones together, and put them into the order of their slots."""
        running = self._waves.running
        self._room.move_together(running)
        running.sort(key=lambda request: self._room.slots.slot(request.episode))
        batch = _Batch(running, self._find_groups(running))
        longest = max(len(history) for history in batch.histories)
        batch.num_roomy_passes = max(0, self._room.length - longest - 1)
        return batch

    def _find_groups(self, running: Sequence[Request]) -> list[Group]:
        """Running sequences that stand side by side and begin alike: what they share is attended once for all."""
        if not self._room.share_prefixes or len(running) < MIN_GROUP_ROWS:
            return []
        common = [0]
        for one, other in itertools.pairwise(running):
            num_tokens = num_common(one.token_ids, other.token_ids, more_than=MIN_PREFIX_TOKENS - 1)
            common.append(min(num_tokens, one.num_cached, other.num_cached))
        return find_groups(common)

    def _take_prefill(self) -> tuple[list[Request], bool]:
        """The next requests of the wave that get a slot and fit into the pass, slot owners first; whether more of them
        wait, for room or for what these compute."""
        waves, slots = self._waves, self._room.slots
        if not waves.wave:
            return [], False
        now = time.monotonic()
        patience = 0.0 if waves.deterministic or not waves.running else EVICTION_PATIENCE_SECONDS
        busy = {request.episode for request in (*waves.running, *waves.wave) if request.episode in slots}
        taken: list[Request] = []
        is_full = is_waiting = False
        num_left = self._max_batched_tokens - (0 if self._is_prefilling else len(waves.running))
        for request in sorted(waves.wave, key=lambda request: request.episode not in slots):
            if not slots.acquire(request.episode, request.token_ids, busy, unused_since=now - patience):
                break
            busy.add(request.episode)
            if self._room.runner.keeps_cache and not self._room.find_cached(request, taken):
                is_waiting = True
                continue
            num_new = len(request.token_ids) - request.num_cached
            is_full = bool(taken) and num_new > num_left
            if is_full:
                break
            num_left -= num_new
            taken.append(request)
            slots.set_tokens(request.episode, request.token_ids, now=now)
            self._stats.num_prefilled_tokens += num_new
        self._stats.num_evicted = slots.num_evicted
        waves.wave = [request for request in waves.wave if request not in taken]
        taken.sort(key=lambda request: slots.slot(request.episode))  # neighbours may be computed at once
        return taken, is_full or is_waiting

    def _forward(self, batch: _Batch) -> bool:
        """One forward pass and one more token for each request; True where one has ended. Where memory runs out, half of it
        is used anew."""
        try:
            logits = self._logits(batch)
        except torch.OutOfMemoryError:
            if len(batch.requests) == 1 or not self._room.runner.keeps_cache:
                raise
            _log.warning("memory ran out with %d sequences; going on with half of the cache", len(batch.requests))
            self._room.halve()
            self.start_over()
            return False
        batch.token_ids, logprobs = draw_tokens(logits, batch.uniforms(), batch.ways, batch.histories)
        self._stats.num_forward_passes += 1
        self._stats.num_sampled_tokens += len(logprobs)
        return self._append(batch, logprobs)

    def _logits(self, batch: _Batch) -> torch.Tensor:
        """`[n, V]`, after the last token of each request."""
        if batch.steps is None:
            rows = [self._room.row(request) for request in batch.requests]
            if not batch.brings_one_token_each:
                return self._room.runner.forward(rows, room_for=self._room.length, groups=batch.groups)
            batch.steps = self._room.runner.steps(rows, groups=batch.groups)
        return batch.steps(batch.token_ids)

    def _append(self, batch: _Batch, logprobs: Sequence[float]) -> bool:
        """Give every request its token; True where one has ended."""
        has_ended = False
        for request, token_id, logprob in zip(batch.requests, batch.token_ids, logprobs, strict=True):
            request.num_cached = len(request.token_ids)
            request.token_ids.append(token_id)
            request.logprobs.append(logprob)
            if (
                request.stopper is not None
                or token_id in self._eos_token_ids
                or len(request.logprobs) >= request.max_tokens
            ):
                has_ended |= self._end_where_due(request, token_id)
        if has_ended:
            running = self._waves.running
            running[:] = [request for request in running if not request.future.done()]
        return has_ended

    def _end_where_due(self, request: Request, token_id: int) -> bool:
        """Hand the completion over where this token was the last; a stopper that raises fails its own request only."""
        if request.future.done():
            return True
        try:
            finish = request.finish_after(token_id, self._eos_token_ids)
        except Exception as error:
            request.future.set_exception(error)
            return True
        if finish is None:
            return False
        cached = request.token_ids[: request.num_cached]
        self._room.slots.set_tokens(request.episode, cached, now=time.monotonic())
        request.future.set_result(
            Completion(
                token_ids=tuple(request.token_ids[request.num_given :]),
                sampled_logprobs=tuple(request.logprobs),
                finish=finish,
                policy_version=self.policy_version,
            )
        )
        return True
