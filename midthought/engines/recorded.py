"""Engine of a run that replays recorded completions: it counts policy versions and never samples."""

from __future__ import annotations

from collections.abc import Sequence

from midthought.engines.engine import Sampling, Stopper
from midthought.errors import EngineError
from midthought.types import Completion


class RecordedEngine:
    """Implements `midthought.engines.engine.TrainedEngine` without weights and servers. The rollout loop takes the completions
    from the cassette."""

    def __init__(self, eos_token_ids: frozenset[int], max_seq_len: int) -> None:
        self.eos_token_ids = eos_token_ids
        self.max_seq_len = max_seq_len
        self.policy_version = 0

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        """Raises `EngineError`."""
        raise EngineError(
            "this run replays recorded completions and cannot sample; leave cassette.replay out to sample"
        )

    def open(self, episode: int) -> None:
        """Does nothing."""

    def close(self, episode: int) -> None:
        """Does nothing."""

    def update_weights(self) -> None:
        """Increments `policy_version`."""
        self.policy_version += 1

    def sleep(self) -> None:
        """Does nothing."""

    def shutdown(self) -> None:
        """Does nothing."""
