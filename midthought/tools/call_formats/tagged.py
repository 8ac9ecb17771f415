"""Call formats that write calls as JSON objects between two tags. Does not depend on the tags or the object's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midthought.tools.call_formats.call_object import CallObject
from midthought.tools.call_formats.streaming import StreamingCallFormat, StreamingScanner
from midthought.tools.call_formats.thought_tags import TagTracker
from midthought.types import ParsedAction


class TaggedCallFormat(StreamingCallFormat):
    """A subclass sets the tags, the keys of the object, and what separates tag and object when a call is written."""

    tags: tuple[str, str]
    call_object: CallObject
    separator = ""

    def scanner(self, *, in_thought: bool) -> TagScanner:
        """Returns a new scanner; `in_thought` if the prompt already opened the thought."""
        return TagScanner(self.tags, self.think_tags, self.call_object, in_thought=in_thought)

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it. Tags of calls and thoughts inside an argument are escaped."""
        written = self.call_object.write(tool_name, parameters, (*self.tags, *self.think_tags))
        return self.separator.join((self.tags[0], written, self.tags[1]))


class TagScanner(StreamingScanner):
    """Finds the blocks between two tags.

    - A block extends from the opening tag to the next closing tag, even if a tag is inside a string. A block that is never
      closed is no call.
    - An opening tag inside a block starts a new block. The text before it counts if every call in it can be read (the
      closing tag was forgotten); otherwise it is discarded.
    - Nothing inside a thought is a call. A think tag inside a block discards the block.
    """

    def __init__(
        self, tags: tuple[str, str], think_tags: tuple[str, str], call_object: CallObject, *, in_thought: bool
    ) -> None:
        super().__init__(think_tags, in_thought=in_thought)
        self._opening, self._closing = tags
        self._tags = TagTracker(tags)
        self._call_object = call_object
        self._block: list[str] | None = None
        """The text since the opening tag; None outside of a block."""

    def _skip(self, piece: str) -> str:
        if not (self._thought.in_thought or self._tags.may_skip(piece)):
            return piece
        if self._block is not None:
            self._block.append(piece)
        return ""

    def _step(self, character: str) -> None:
        if self._thought.feed(character):
            self._end_text()
        elif not self._thought.in_thought:
            self._outside_thoughts(character)

    def _end_text(self) -> None:
        self._block = None
        self._tags.forget()

    def _outside_thoughts(self, character: str) -> None:
        if self._block is not None:
            self._block.append(character)
        tag = self._tags.feed(character)
        if tag is None:
            return
        if self._block is not None:
            self._finished += self._calls_in("".join(self._block)[: -len(tag)], is_closed=tag == self._closing)
        self._block = [] if tag == self._opening else None

    def _calls_in(self, text: str, *, is_closed: bool) -> list[ParsedAction]:
        calls = self._call_object.read_block(text, f"{self._opening}{text}{self._closing if is_closed else ''}")
        return calls if is_closed or all(call.success for call in calls) else []
