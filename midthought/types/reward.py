"""The reward of an episode: its parts, and rewards of turns and calls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


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

    def to_dict(self) -> dict[str, Any]:
        return {"parts": dict(self.parts), "turns": self.turns, "calls": self.calls}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Self:
        """Returns the reward that `to_dict` gave, also after it was written as JSON, where NaN is null."""
        turns, calls = (tuple(map(_number, row.get(name, ()))) for name in ("turns", "calls"))
        return cls(parts={name: _number(value) for name, value in row["parts"].items()}, turns=turns, calls=calls)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
