"""The streaming scanner of call formats that write their calls between two tags.

Knows neither what the tags are called nor how the text between them is read.
"""

from __future__ import annotations

from collections.abc import Callable

from midthought.tools.call_formats.thought_tags import TagTracker, ThoughtTracker
from midthought.types import ParsedAction


class TagScanner:
    """Follows one turn's text; amortised constant time per character.

    - A block runs from the opening tag to the next closing tag, wherever these stand, in strings too. One that never
      closes is no call.
    - An opening tag inside a block begins another. What stood before it counts where every call in it can be read (the
      closing tag was forgotten), else it was a false start.
    - A thought is not an act: nothing within one is a call. A think tag inside a block makes it void.

    `read_block` takes the text between the tags and the block with its tags.
    """

    def __init__(
        self,
        tags: tuple[str, str],
        think_tags: tuple[str, str],
        read_block: Callable[[str, str], list[ParsedAction]],
        *,
        in_thought: bool,
    ) -> None:
        self._opening, self._closing = tags
        self._tags = TagTracker(tags)
        self._thought = ThoughtTracker(think_tags, in_thought=in_thought)
        self._read_block = read_block
        self._finished: list[ParsedAction] = []
        self._block: list[str] | None = None
        """What has been read since the opening tag; None outside of a block."""

    def feed(self, piece: str) -> bool:
        """Take the next piece; never a reason to stop."""
        if self._thought.may_skip(piece) and (self._thought.in_thought or self._tags.may_skip(piece)):
            if self._block is not None:
                self._block.append(piece)
            return False
        for character in piece:
            self._step(character)
        return False

    def take(self) -> list[ParsedAction]:
        """The calls that ended since the last `take`."""
        taken, self._finished = self._finished, []
        return taken

    def resume(self) -> None:
        """A result or reply now stands in the context: a block left open before it is void; the thought goes on."""
        self._thought.forget()
        self._void()

    def _step(self, character: str) -> None:
        if self._thought.feed(character):
            self._void()
        elif not self._thought.in_thought:
            self._outside_thoughts(character)

    def _void(self) -> None:
        self._block = None
        self._tags.forget()

    def _outside_thoughts(self, character: str) -> None:
        if self._block is not None:
            self._block.append(character)
        tag = self._tags.feed(character)
        if tag is None:
            return
        if self._block is not None:
            self._end_block("".join(self._block)[: -len(tag)], tag)
        self._block = [] if tag == self._opening else None

    def _end_block(self, text: str, tag: str) -> None:
        calls = self._read_block(text, f"{self._opening}{text}{tag if tag == self._closing else ''}")
        if tag == self._closing or all(call.success for call in calls):
            self._finished += calls
