"""The contract between the rollout loop and whatever samples tokens. Engines know nothing of text, tools or rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from midthought.types import Completion


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    max_tokens: int
    """Most tokens to sample in this call."""
    temperature: float = 1.0
    """0 takes the most probable token; its recorded log-probability is then that at temperature 1."""
    top_p: float = 1.0
    """Only 1.0 keeps the recorded log-probabilities those of the model; smaller values renormalise over the nucleus. So
    do `top_k`, `min_p` and `repetition_penalty`: what is recorded is the distribution that was sampled from."""
    top_k: int = 0
    """Draw from so many of the most probable tokens; 0: from all."""
    min_p: float = 0.0
    """Draw from tokens that are at least this share as probable as the most probable one; 0: from all."""
    repetition_penalty: float = 1.0
    """Divides the positive logits of tokens that stand in the sequence already, and multiplies the negative ones (CTRL,
    arXiv 1909.05858, section 4.1); 1: leaves them."""
    seed: int = 0
    """The token at position n of the sequence is drawn from (seed, n), whatever else is in the batch."""


class Stopper(Protocol):
    """Watches one episode's sampled tokens."""

    def feed(self, token_id: int) -> bool:
        """Take the next sampled token; True where generation is to stop after it."""
        ...


class Engine(Protocol):
    """Samples from one policy; the model's weights may change between calls, never within a batch."""

    @property
    def policy_version(self) -> int:
        """Counts the weights that it has sampled from."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end a sequence."""
        ...

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Continue `token_ids`. `episode` names the sequence: what is kept of an earlier call's prefix is not redone."""
        ...

    def open(self, episode: int) -> None:
        """Say that this episode will ask for samples; deterministic scheduling waits for every open episode."""
        ...

    def close(self, episode: int) -> None:
        """The episode has ended; give its room back."""
        ...


class TrainedEngine(Engine, Protocol):
    """An engine whose weights follow a learner."""

    max_seq_len: int
    """Most tokens of a sequence, prompt included."""

    @property
    def policy_version(self) -> int:
        """Counts the weights that it has sampled from; set it where a run goes on."""
        ...

    @policy_version.setter
    def policy_version(self, version: int) -> None: ...

    def update_weights(self) -> None:
        """The learner has changed the policy: sample from the new one from now on, and count `policy_version` up."""
        ...

    def shutdown(self) -> None:
        """Give back what it holds, and end what it started. Doing so twice is fine."""
        ...
