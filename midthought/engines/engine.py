"""Interface between the rollout loop and engines. Engines do not depend on text, tools or rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from midthought.types import Completion


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Options of one sampling call."""

    max_tokens: int
    """Maximum tokens to sample in this call."""
    temperature: float = 1.0
    """0 takes the most probable token and records its log-probability at temperature 1."""
    top_p: float = 1.0
    """Nucleus sampling. With values below 1.0, or with `top_k` or `min_p`, the recorded log-probabilities refer to the
    resulting sampling distribution, not to the model's."""
    top_k: int = 0
    """Number of most probable tokens to sample from; 0: all."""
    min_p: float = 0.0
    """Minimum probability relative to the most probable token; 0: none."""
    seed: int = 0
    """The token at position n depends on (seed, n), not on the rest of the batch."""


class Stopper(Protocol):
    """Decides after each sampled token of an episode whether to stop. Engines may call it in a thread of their own."""

    def feed(self, token_id: int) -> bool:
        """Processes the next sampled token. Returns True to stop after it."""
        ...


class Engine(Protocol):
    """Samples from one policy. The weights may change between calls, never within a batch."""

    @property
    def policy_version(self) -> int:
        """Version of the weights; each update increments it."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end a sequence."""
        ...

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Samples after `token_ids`. `episode` identifies the sequence, whose cached prefix is reused."""
        ...

    def open(self, episode: int) -> None:
        """Announces that this episode will request samples; deterministic scheduling waits for every open episode."""
        ...

    def close(self, episode: int) -> None:
        """Ends the episode and releases its cache."""
        ...


class TrainedEngine(Engine, Protocol):
    """An engine with the weights of a policy in training."""

    max_seq_len: int
    """Maximum tokens of a sequence, including the prompt."""

    @property
    def policy_version(self) -> int:
        """Version of the weights; each update increments it. Set it when a run resumes."""
        ...

    @policy_version.setter
    def policy_version(self, version: int) -> None: ...

    @property
    def progress(self) -> object:
        """Differs from an earlier value if the engine has worked since, has no request, or has time limits of its own."""
        ...

    def update_weights(self) -> None:
        """Samples from the updated policy from now on, and increments `policy_version`."""
        ...

    def sleep(self) -> None:
        """Releases memory that the learner can use, while nothing is sampled. The next sample or update takes it again."""
        ...

    def shutdown(self) -> None:
        """Releases its memory and stops its processes. May be called twice."""
        ...
