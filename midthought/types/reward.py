"""The reward of an episode: its parts, and rewards of turns and calls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """An episode's reward: `total` is the sum of `parts` (already weighted), `turns` and `calls`.

    The parts are credited to the episode's last policy token, `turns[i]` to the last policy token of turn i, `calls[i]` (for
    `trajectory.tool_events[i]`) to the last policy token before the result of call i.
    """

    parts: Mapping[str, float] = field(default_factory=dict)
    turns: tuple[float, ...] = ()
    calls: tuple[float, ...] = ()

    @property
    def total(self) -> float:
        return math.fsum((*self.parts.values(), *self.turns, *self.calls))
