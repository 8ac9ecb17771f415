"""How calls are written: one file per notation, with its streaming scanner, parser and rendering of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from midthought.types import ParsedAction, ToolEvent


class Scanner(Protocol):
    """Follows one episode's sampled text, piece by piece, however it was split."""

    def feed(self, piece: str) -> bool:
        """Take the next piece; True where a call ended inside it, so that generation is to stop after it."""
        ...

    def take(self) -> list[ParsedAction]:
        """The calls that ended since the last `take`, malformed ones included (`success` False)."""
        ...

    def resume(self) -> None:
        """Foreign text (a result, a reply) now stands in the context: an unfinished call before it is void."""
        ...


class Notation(Protocol):
    """One way of writing calls and results."""

    name: str
    fence_may_hold_call: bool

    def scanner(self, *, in_thought: bool) -> Scanner:
        """A fresh scanner; `in_thought` where the prompt already opened the thought."""
        ...

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """The text that is put into the context for these events."""
        ...
