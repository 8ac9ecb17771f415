"""A running `sample` call of the local engine, and the engine's statistics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from midthought.engines.engine import Sampling, Stopper
from midthought.types import Completion, Finish

MAX_COMING = 256
"""The cache reserves space for this many tokens in advance."""


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was created."""

    num_prefilled_tokens: int = 0
    """Computed tokens of prompts, results and replies, including those recomputed after a cache was lost."""
    num_reused_tokens: int = 0
    """Tokens of requests that were already in their slots."""
    num_shared_tokens: int = 0
    """Tokens copied from the slot of another sequence with the same prefix."""
    num_sampled_tokens: int = 0
    num_forward_passes: int = 0
    num_evicted: int = 0
    """Waiting episodes whose cache was evicted because there were too few slots."""
    num_relaid: int = 0
    """Times that the cache was rebuilt with fewer, longer slots because memory was short, `num_halved` included."""
    num_halved: int = 0
    """Times that memory ran out in a forward pass, after which the cache got half its size."""
    seconds: float = 0.0
    """Time in forward passes, sampling and scheduling, without waiting for tools."""


@dataclass(slots=True, eq=False)
class Request:
    """A running call of `sample`."""

    episode: int
    token_ids: list[int]
    num_given: int
    max_tokens: int
    sampling: Sampling
    stopper: Stopper | None
    future: asyncio.Future[Completion]
    num_cached: int = 0
    """Number of `token_ids` in the cache; valid while the request is running."""
    num_deferred: int = 0
    """How often it has waited for another request to compute their common prefix."""
    logprobs: list[float] = field(default_factory=list)

    @property
    def num_coming(self) -> int:
        """Tokens that it may still sample, up to `MAX_COMING`."""
        return min(self.max_tokens - len(self.logprobs), MAX_COMING)

    def finish_after(self, token_id: int, eos_token_ids: frozenset[int]) -> Finish | None:
        """Returns the finish reason if sampling ends with this token, the last of `token_ids`, else None."""
        if token_id in eos_token_ids:
            return Finish.END
        if self.stopper is not None and self.stopper.feed(token_id):
            return Finish.CALL
        return Finish.LENGTH if len(self.logprobs) >= self.max_tokens else None
