"""How calls are written: one file per call format, with its streaming scanner, parser and rendering of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent


class Scanner(Protocol):
    """Follows one episode's sampled text, piece by piece, however it was split."""

    def feed(self, piece: str) -> bool:
        """Take the next piece; True where generation is to stop after it: a call of a call format that `stops_at_call`."""
        ...

    def take(self) -> list[ParsedAction]:
        """The calls that ended since the last `take`, malformed ones included (`success` False)."""
        ...

    def resume(self) -> None:
        """Foreign text (a result, a reply) now stands in the context: an unfinished call before it is void."""
        ...


class ToolCallFormat(Protocol):
    """One way of writing calls and results."""

    name: str
    fence_may_hold_call: bool
    """Whether a call inside a Markdown code fence is one."""
    stops_at_call: bool
    """True: sampling stops where a call ends, and the result is written into the running text. False: the policy writes
    to the end of its turn, all calls of the turn are run, and every result is a chat message of the role `tool`."""

    def scanner(self, *, in_thought: bool) -> Scanner:
        """A fresh scanner; `in_thought` where the prompt already opened the thought."""
        ...

    def parse_all(self, text: str, *, in_thought: bool = ...) -> list[ParsedAction]:
        """Every finished call of a whole turn's text, in order, malformed ones included. `in_thought`: the prompt had
        already opened the thought; left out, as is usual for the call format (True where calls stand in thoughts)."""
        ...

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """A call as the policy should write it."""
        ...

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """Where it `stops_at_call`, the text that follows the calls in the running text; otherwise the content of the
        chat message that answers one event (it is then asked for one event at a time)."""
        ...

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """What a system prompt says of these tools and of how to call them; empty without tools."""
        ...
