"""What is asked, with the data needed to judge it, and what an episode earned."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One question (or start of an episode) with the data needed to judge it.

    `labels` are only for metrics and demonstrations (`needs_memory`, `kind`, …). No reward may read them, except `dataset`,
    which determines how answers are checked.
    """

    task_id: str
    prompt: str
    """The user's message. It is foreign text: it is encoded without control tokens."""
    answer: str
    """The ground truth."""
    aliases: tuple[str, ...] = ()
    """Other correct answers."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    """Ids of the memory's chunks that prove the answer."""
    before: tuple[Mapping[str, str], ...] = ()
    """Messages before the prompt, with `role` and `content`, a system message first; also foreign text."""

    def messages(self, *system: str) -> list[Mapping[str, str]]:
        """Returns the messages before the policy's first answer; they start with `system`, without blank ones.

        Examples:
            >>> Task(task_id="t", prompt="1 + 1?", answer="2").messages("Be short.")
            [{'role': 'system', 'content': 'Be short.'}, {'role': 'user', 'content': '1 + 1?'}]
        """
        return with_system([*self.before, {"role": "user", "content": self.prompt}], *system)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(replace(self, labels={})), "labels": dict(self.labels)}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Task:
        return cls(**{**row, **{name: tuple(row.get(name, ())) for name in ("aliases", "evidence", "before")}})


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


def with_system(messages: Sequence[Mapping[str, Any]], *system: str) -> list[Mapping[str, Any]]:
    """Returns the conversation with these texts before its own system message, without blank ones."""
    rest = list(messages)
    own = [rest.pop(0)["content"]] if rest and rest[0]["role"] == "system" else []
    words = "\n\n".join(filter(None, [*system, *own]))
    return [*([{"role": "system", "content": words}] if words else []), *rest]


def number_of(parts: tuple[object, ...], num_bytes: int) -> int:
    """Returns a number below 256 ** num_bytes that depends only on the `repr` of these values."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=num_bytes).digest())
