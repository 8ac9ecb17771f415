"""Call formats: how a model writes tool calls and how results are written back. One file per format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent


class Scanner(Protocol):
    """Finds the calls in one episode's sampled text, which comes in pieces of any size."""

    def feed(self, piece: str) -> bool:
        """Reads the next piece. True if generation should stop after it: a call ended and the call format `stops_at_call`."""
        ...

    def take(self) -> list[ParsedAction]:
        """Returns the calls that ended since the last `take`, malformed ones (`success` False) included."""
        ...

    def resume(self) -> None:
        """Discards an unfinished call: text of another origin (a result, a reply) now follows it in the context."""
        ...


class ToolCallFormat(Protocol):
    """One way of writing calls and results.

    A format with a scanner extends `StreamingCallFormat` (`streaming.py`), which implements the rest.
    """

    name: str
    think_tags: tuple[str, str]
    """What opens and closes a thought."""
    fence_may_hold_call: bool
    """Whether text inside a Markdown code fence can be a call."""
    stops_at_call: bool
    """True: sampling stops at the end of a call, and the result is written into the running text. False: the policy
    finishes its turn, all calls of the turn are run, and every result is a chat message with the role `tool`."""

    def scanner(self, *, in_thought: bool) -> Scanner:
        """Returns a new scanner; `in_thought` if the prompt already opened the thought."""
        ...

    def parse_all(self, text: str, *, in_thought: bool = ...) -> list[ParsedAction]:
        """Returns every finished call of a whole turn's text, in order, malformed ones included. `in_thought`: whether the
        prompt already opened the thought; the default is the usual case for the format (True if calls are in thoughts)."""
        ...

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it."""
        ...

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """Returns the text that follows the calls if the format `stops_at_call`; otherwise the content of the chat message
        for one event (then it is called once per event)."""
        ...

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Returns the system prompt's description of the tools and of the syntax of a call; empty without tools."""
        ...
