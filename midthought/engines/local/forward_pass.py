"""Runs forward passes: selects the prompts to prefill, computes logits, samples, and completes requests.

With asynchronous scheduling (vLLM's term), sampled tokens stay on the device: the next decoding pass begins with them, then
the host reads them and ends sequences. A sequence that has ended is thus in one more pass, whose token is dropped.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from midthought.engines.local.kv_cache import num_common
from midthought.engines.local.kv_cache_manager import KVCacheManager
from midthought.engines.local.runner import RecomputingRunner, Steps, TokenIds
from midthought.engines.local.sampling import DrawnTokens, SamplingBatch, draw_tokens
from midthought.engines.local.scheduler import EngineStats, Request, Scheduler
from midthought.engines.local.slot_batch import MIN_GROUP_ROWS, MIN_PREFIX_TOKENS, Group, find_groups
from midthought.models.varlen_attention import no_cudnn_attention
from midthought.types import Completion

EVICTION_WAIT_SECONDS = 0.25
"""While others run, a waiting episode keeps its slot at least this long, because prefilling again is slow."""
MAX_BATCHED_TOKENS = {"cpu": 1024, "cuda": 8192}
"""New tokens in one forward pass, except for a single longer prompt, by device. A CPU's caches fit the activations of that
many."""
NUM_DRAWN_AHEAD = 32
"""Number of forward passes for which uniform numbers are computed at once."""


class _Batch:
    """Requests of one or several consecutive passes, with the data that stays the same between them."""

    def __init__(self, requests: Sequence[Request], device: torch.device, groups: Sequence[Group] = ()) -> None:
        self.requests = list(requests)
        self.groups = groups
        self.steps: Steps | None = None
        """Set when each request has one new token per pass."""
        self.ways = SamplingBatch([request.sampling for request in requests], device)
        self._lengths = np.array([len(request.token_ids) for request in requests])
        self._uniforms: list[Tensor] = []
        """`[n]` for each of the next passes, the last one first."""
        self.token_ids: TokenIds = [request.token_ids[-1] for request in requests]
        """Last token of each request, not computed yet."""
        self.unread: DrawnTokens | None = None
        """Tokens that were sampled and are not appended yet, with asynchronous scheduling."""
        self.num_roomy_passes = 0
        """Number of further passes of these requests for which the cache is long enough."""

    def uniforms(self) -> Tensor:
        """Returns `[n]`: a uniform number for the next token of each request; computed for several passes at once."""
        if not self._uniforms:
            num_ahead = NUM_DRAWN_AHEAD if self.steps else 1
            self._uniforms += self.ways.uniforms(self._lengths + np.arange(num_ahead)[:, None]).unbind()[::-1]
            self._lengths += num_ahead
        return self._uniforms.pop()


class EnginePasses:
    """Computes and samples tokens of the scheduler's requests, in the slots of the cache manager.

    Args:
        eos_token_ids: the tokens that end a sequence.
        async_scheduling: begin a decoding pass before the tokens of the last one are read.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cache_manager: KVCacheManager,
        stats: EngineStats,
        *,
        eos_token_ids: frozenset[int],
        async_scheduling: bool = False,
    ) -> None:
        self.policy_version = 0
        self._scheduler = scheduler
        self._cache_manager = cache_manager
        self._stats = stats
        self._eos_token_ids = eos_token_ids
        self._async_scheduling = async_scheduling
        self._is_prefilling = False
        """The last pass was prefill only, and more prompts were waiting."""
        self._settled: _Batch | None = None
        """The running requests in the order of their slots; None after others have joined."""

    def step(self) -> bool:
        """Runs one forward pass: one more token for each running sequence, and prefill for joining ones.

        Returns True if a request has ended. If more prompts wait than fit into one pass, all of them are prefilled first:
        sequences then decode together, in fewer passes.
        """
        scheduler, settled = self._scheduler, self._settled
        if settled and settled.num_roomy_passes and not scheduler.wave and settled.requests == scheduler.running:
            settled.num_roomy_passes -= 1
            return self._forward(settled)
        has_ended = self._append_unread()
        if not (scheduler.running or scheduler.wave):
            return has_ended
        if not self._cache_manager.lay_out((*scheduler.running, *scheduler.wave)):
            self.start_over()
        joining, more_wait = self._take_prefill()
        if joining:
            scheduler.running += joining
            self._settled = None
        is_last_of_several, self._is_prefilling = self._is_prefilling and not more_wait, more_wait
        if joining and (more_wait or is_last_of_several):
            return self._forward(_Batch(joining, self._cache_manager.device)) or has_ended
        if self._settled is None or self._settled.requests != scheduler.running:
            self._settled = self._settle()
        longest = max(len(request.token_ids) for request in self._settled.requests)
        self._settled.num_roomy_passes = max(0, self._cache_manager.length - longest - 1)
        return self._forward(self._settled) or has_ended

    def start_over(self) -> None:
        """Recomputes running requests, because the cache or the weights have changed."""
        self._scheduler.start_over()
        self._settled = None

    def _settle(self) -> _Batch:
        """Compacts the slots of the running sequences and sorts them by slot, after sequences have joined or ended."""
        running = self._scheduler.running
        self._cache_manager.compact_running(running)
        running.sort(key=lambda request: self._cache_manager.slots.slot(request.episode))
        return _Batch(running, self._cache_manager.device, self._find_groups(running))

    def _find_groups(self, running: Sequence[Request]) -> list[Group]:
        """Finds neighboring running sequences with a common prefix, whose attention is computed once for the group."""
        if not self._cache_manager.share_prefixes or len(running) < MIN_GROUP_ROWS:
            return []
        common = [0]
        for one, other in itertools.pairwise(running):
            num_tokens = num_common(one.token_ids, other.token_ids, more_than=MIN_PREFIX_TOKENS - 1)
            common.append(min(num_tokens, one.num_cached, other.num_cached))
        return find_groups(common)

    def _take_prefill(self) -> tuple[list[Request], bool]:
        """Takes the requests that get a slot and fit into the pass, slot owners first.

        Also returns whether more wait, because the pass is full or because these compute their prefix.
        """
        scheduler, slots = self._scheduler, self._cache_manager.slots
        if not scheduler.wave:
            return [], False
        now = time.monotonic()
        wait_seconds = 0.0 if scheduler.deterministic or not scheduler.running else EVICTION_WAIT_SECONDS
        busy = {request.episode for request in (*scheduler.running, *scheduler.wave) if request.episode in slots}
        taken: list[Request] = []
        is_full = is_waiting = False
        max_batched_tokens = MAX_BATCHED_TOKENS.get(self._cache_manager.device.type, 8192)
        num_left = max_batched_tokens - (0 if self._is_prefilling else len(scheduler.running))
        for request in sorted(scheduler.wave, key=lambda request: request.episode not in slots):
            if not slots.acquire(request.episode, request.token_ids, busy, unused_since=now - wait_seconds):
                break
            busy.add(request.episode)
            if self._cache_manager.runner.keeps_cache and not self._cache_manager.find_cached(request, taken):
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
        scheduler.wave = [request for request in scheduler.wave if request not in taken]
        taken.sort(key=lambda request: slots.slot(request.episode))  # neighboring slots may be computed at once
        return taken, is_full or is_waiting

    def _forward(self, batch: _Batch) -> bool:
        """Samples one more token for each request. Returns True if one has ended."""
        with no_cudnn_attention(self._cache_manager.device):
            logits = self._logits(batch)
        drawn = draw_tokens(logits, batch.uniforms(), batch.ways)
        self._stats.num_forward_passes += 1
        batch.token_ids = drawn.token_ids
        if not (self._async_scheduling and batch is self._settled and batch.steps is not None):
            return self._append(batch.requests, drawn)
        before, batch.unread = batch.unread, drawn  # these stay on the device until the next pass
        return before is not None and self._append(batch.requests, before)

    def _append_unread(self) -> bool:
        """Appends the tokens of the last pass that were not read. Returns True if a request has ended."""
        batch = self._settled
        if batch is None or batch.unread is None:
            return False
        drawn, batch.unread = batch.unread, None
        is_running = set(self._scheduler.running).__contains__
        return any(map(is_running, batch.requests)) and self._append(batch.requests, drawn, is_running)

    def _logits(self, batch: _Batch) -> Tensor:
        """Returns logits `[n, V]` after the last token of each request."""
        if batch.steps is None:
            runner, rows = self._cache_manager.runner, [self._cache_manager.row(each) for each in batch.requests]
            if isinstance(runner, RecomputingRunner) or any(len(row.token_ids) - row.num_cached > 1 for row in rows):
                return runner.forward(rows, room_for=self._cache_manager.length, groups=batch.groups)
            batch.steps = runner.steps(rows, groups=batch.groups)
        return batch.steps(batch.token_ids)

    def _append(
        self, requests: Sequence[Request], drawn: DrawnTokens, is_kept: Callable[[Request], bool] | None = None
    ) -> bool:
        """Appends the token of each request, or of those that are kept. Returns True if a request has ended."""
        has_ended = False
        for request, token_id, logprob in zip(requests, *drawn.read(), strict=True):
            if is_kept is not None and not is_kept(request):
                continue
            self._stats.num_sampled_tokens += 1
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
            running = self._scheduler.running
            running[:] = [request for request in running if not request.future.done()]
        return has_ended

    def _end_where_due(self, request: Request, token_id: int) -> bool:
        """Completes the request if this token is its last one. An exception of the stopper fails only its own request."""
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
        self._cache_manager.slots.set_tokens(request.episode, cached, now=time.monotonic())
        request.future.set_result(
            Completion(
                token_ids=tuple(request.token_ids[request.num_given :]),
                sampled_logprobs=tuple(request.logprobs),
                finish=finish,
                policy_version=self.policy_version,
            )
        )
        return True
