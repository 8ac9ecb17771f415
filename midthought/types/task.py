"""What is asked: one question, or the start of an episode, with the data needed to judge it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


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
        return {**asdict(self), "labels": dict(self.labels)}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Task:
        return cls(**{**row, **{name: tuple(row.get(name, ())) for name in ("aliases", "evidence", "before")}})


def with_system(messages: Sequence[Mapping[str, Any]], *system: str) -> list[Mapping[str, Any]]:
    """Returns the conversation with these texts before its own system message, without blank ones."""
    rest = list(messages)
    own = [rest.pop(0)["content"]] if rest and rest[0]["role"] == "system" else []
    words = "\n\n".join(filter(None, [*system, *own]))
    return [*([{"role": "system", "content": words}] if words else []), *rest]


def number_of(parts: tuple[object, ...], num_bytes: int) -> int:
    """Returns a number below 256 ** num_bytes that depends only on the `repr` of these values."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=num_bytes).digest())
