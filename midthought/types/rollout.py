"""Episodes of one iteration, and which of them are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field

from midthought.types.trajectory import Trajectory


@dataclass(slots=True)
class RolloutData:
    """Trajectories of one iteration and their duration."""

    trajectories: list[Trajectory] = field(default_factory=list)
    _: KW_ONLY
    seconds: float = 0.0
    policy_version: int = 0

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.trajectories)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)


@dataclass(kw_only=True, slots=True)
class Selection:
    """The episodes of one iteration, and which of them to train on."""

    data: RolloutData = field(default_factory=RolloutData)
    """All episodes."""
    usable: list[Trajectory] = field(default_factory=list)
    """The episodes to train on, group by group."""
    is_recorded: bool = False
    """Whether the episodes are not from the last rollout, so another policy may have sampled or written them."""
    metrics: dict[str, float] = field(default_factory=dict)
