"""What the embedded engine keeps of a call of `sample` on its way, and what it counts over its life."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from midthought.engines.engine import Sampling, Stopper
from midthought.types import Completion, Finish

MAX_COMING = 256
"""KVCacheManager in the cache is made for so many tokens ahead."""


@dataclass(slots=True)
class EngineStats:
    """What the engine has done since it was made."""

    num_prefilled_tokens: int = 0
    """Tokens of prompts, results and replies that were computed (again, where a cache was lost)."""
    num_reused_tokens: int = 0
    """Tokens that a request brought along and that stood in its slot already."""
    num_shared_tokens: int = 0
    """Tokens that were copied from the slot of another sequence that begins alike."""
    num_sampled_tokens: int = 0
    num_forward_passes: int = 0
    num_evicted: int = 0
    """Waiting episodes whose cached tokens were given up because slots were short."""
    num_relaid: int = 0
    """Times that the cache was laid out anew, for fewer but longer sequences, because memory was short."""
    seconds: float = 0.0
    """Spent in forward passes, sampling and scheduling; waiting for tools does not count."""


@dataclass(slots=True, eq=False)
class Request:
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
    num_deferred: int = 0
    """How often it has waited for another one to compute the tokens that both begin with."""
    logprobs: list[float] = field(default_factory=list)

    @property
    def num_coming(self) -> int:
        """Tokens that it may still sample, as far as room is made for them ahead."""
        return min(self.max_tokens - len(self.logprobs), MAX_COMING)

    def finish_after(self, token_id: int, eos_token_ids: frozenset[int]) -> Finish | None:
        """Why sampling ends with this token, the last of `token_ids`; None where it goes on."""
        if token_id in eos_token_ids:
            return Finish.END
        if self.stopper is not None and self.stopper.feed(token_id):
            return Finish.CALL
        return Finish.LENGTH if len(self.logprobs) >= self.max_tokens else None
