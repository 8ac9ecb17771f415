"""Manages the KV cache: the model's runner, the cache's slots, and their memory.

Resizes slots as sequences grow, and finds cached prefixes of requests. Does not depend on sampling or scheduling.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from midthought.engines.local.cuda_graphs import cuda_graphs
from midthought.engines.local.device import memory_bytes
from midthought.engines.local.kv_cache import MIN_SHARED_TOKENS, Slots, num_common
from midthought.engines.local.runner import Row, Runner, shares_tensors
from midthought.engines.local.runner_selection import make_runner
from midthought.engines.local.scheduler import EngineStats, Request
from midthought.models.peft_weights import adapter_state

MAX_COMING = 256
"""The cache reserves space for at most this many coming tokens of a sequence."""
MAX_DEFERRED = 2
"""Maximum number of forward passes that a request waits for others."""

_log = logging.getLogger(__name__)


class KVCacheManager:
    """Slots for up to `max_num_seqs` episodes, fewer if memory is short.

    Args:
        share_prefixes: copy a sequence's prefix from another slot.
        records_steps: on a GPU, record passes of few tokens and replay them.
        merge_adapters: sample from merged copies of layers with adapters, if memory allows.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stats: EngineStats,
        *,
        max_num_seqs: int,
        share_prefixes: bool,
        records_steps: bool,
        merge_adapters: bool,
    ) -> None:
        self.slots = Slots(max_num_seqs)
        self.length = 0
        """Current length of the slots, in tokens."""
        self.share_prefixes = share_prefixes
        self._model = model
        self._stats = stats
        self._max_num_seqs = max_num_seqs
        self._max_cache_bytes: int | None = None
        """Maximum memory for keys and values: half of what the device has before the first pass."""
        self._records_steps = records_steps and model.device.type == "cuda"
        self._merge_adapters = merge_adapters
        self._runner: Runner | None = None
        self._adapter_state: tuple[Any, ...] = ()
        """The model's adapters when the runner was created."""

    @property
    def runner(self) -> Runner:
        if self._runner is None:
            self._adapter_state = adapter_state(self._model)
            new_record = cuda_graphs if self._records_steps else None
            self._runner = make_runner(self._model, new_record=new_record, merge_adapters=self._merge_adapters)
        return self._runner

    def follow_adapters(self) -> None:
        """Discards the runner if adapters were added, removed, switched or merged since it was chosen."""
        if self._runner is not None and adapter_state(self._model) != self._adapter_state:
            self.slots.forget_tokens()
            self._runner = None

    def row(self, request: Request) -> Row:
        """Returns the request's row in a forward pass."""
        return Row(request.token_ids, request.num_cached, self.slots.slot(request.episode))

    def lay_out(self, requests: Sequence[Request]) -> bool:
        """Makes the slots long enough for the longest sequence, and sets the number of slots that fit into memory.

        Returns False if the slots in use do not fit at that length: then the whole cache is dropped, and fewer sequences are
        computed at once. That is rare, because slots grow by 50 % each time.
        """
        if max(len(request.token_ids) for request in requests) < self.length:
            return True
        self.length = max(
            len(each.token_ids) + min(each.max_tokens - len(each.logprobs), MAX_COMING) for each in requests
        )
        if self._max_cache_bytes is None:
            self._max_cache_bytes = memory_bytes(self._model.device) // 2
        limit = min(self._max_num_seqs, self.runner.cache.fit(self.length, self._max_cache_bytes))
        if limit < self.slots.max_num_slots:
            _log.warning(
                "the key/value cache fits only %d sequences of %d tokens: at most that many run at once (max_num_seqs=%d)",
                limit, self.length, self._max_num_seqs,
            )  # fmt: skip
        self.slots.max_num_slots = limit
        if limit < len(self.slots):
            self._stats.num_relaid += 1
            self.release_cache()
            return False
        self.runner.cache.make_room(limit, self.length)
        return True

    def find_cached(self, request: Request, taken: Sequence[Request]) -> bool:
        """Sets `num_cached`, copying a prefix from another slot if that helps. Returns False if the request should wait for one
        that computes the same prefix in this pass."""
        own = request.num_cached = self.slots.num_cached(request.episode, request.token_ids)
        if not self.share_prefixes:
            self._stats.num_reused_tokens += own
            return True
        outside = [other.episode for other in taken]
        worth = own + MIN_SHARED_TOKENS - 1
        found = self.slots.find_prefix(request.token_ids, longer_than=worth, outside=[*outside, request.episode])
        worth = (found[1] if found else own) + MIN_SHARED_TOKENS - 1
        if request.num_deferred < MAX_DEFERRED:
            wanted = request.token_ids[:-1]
            if any(num_common(other.token_ids, wanted, more_than=worth) for other in taken):
                request.num_deferred += 1
                return False
        if found:
            self.runner.cache.copy(found[0], self.slots.slot(request.episode), found[1])
            self.slots.set_tokens(request.episode, request.token_ids[: found[1]], now=time.monotonic())
            request.num_cached = found[1]
            self._stats.num_shared_tokens += found[1] - own
        self._stats.num_reused_tokens += own
        return True

    def compact_running(self, running: Sequence[Request]) -> None:
        """Moves running sequences to lower slots if too many idle slots are between them."""
        if self.runner.keeps_cache:
            for source, target, num_tokens in self.slots.compact({each.episode: each.num_cached for each in running}):
                self.runner.cache.copy(source, target, num_tokens)

    def update_weights(self) -> None:
        """Invalidates the cache, after the model's weights were changed in place."""
        self.slots.forget_tokens()
        self.follow_adapters()
        if self._runner is None:
            return
        if shares_tensors(self._model, self._runner.model):
            self._runner.update_weights()
        else:
            self._runner = None

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self._model.device

    @property
    def num_bytes(self) -> int:
        """Current memory of keys and values, in bytes."""
        return 0 if self._runner is None else self._runner.cache.num_bytes

    @property
    def is_on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def release_cache(self) -> None:
        """Releases the memory of keys and values; it is allocated again when needed."""
        self.slots.clear()
        if self._runner is not None:
            self._runner.clear()
        self.length = 0

    def clear(self) -> None:
        """Releases all memory; it is allocated again when needed."""
        self.release_cache()
        self._runner = None
