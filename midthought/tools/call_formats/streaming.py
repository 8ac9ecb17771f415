"""Calls in sampled text, while it is sampled: a scanner that stops at calls and skips thoughts, for formats whose results are
written into the running text; and what gives a scanner an episode's tokens.

Does not depend on how a particular format marks its calls.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.json_object import BadObjectError, ObjectScanner, load_object
from midthought.types import ParsedAction

if TYPE_CHECKING:
    from midthought.tokenization import Renderer


class StoppingScanner(ABC):
    """Follows one turn's text and asks to stop after each call, which ends with the closing brace of its JSON object.

    A piece is read to its end even if a call ends inside it, so the way the text is split changes nothing.
    """

    def __init__(self, think_tags: tuple[str, str], *, in_thought: bool) -> None:
        self._in_thought = in_thought
        self._think_open = think_tags[0]
        self._tags = re.compile("|".join(map(re.escape, think_tags)))
        self._longest_tag = max(map(len, think_tags))
        self._tag_starts = {tag[0] for tag in think_tags}
        self._last = self._unread = ""
        """The last characters, which may be the beginning of a tag; text whose meaning is not certain yet."""
        self._finished: list[ParsedAction] = []
        self.resume()

    def feed(self, piece: str) -> bool:
        """Reads the next piece; True if a call ended inside it. A think tag discards an unfinished call."""
        num_finished = len(self._finished)
        if self._last or not self._tag_starts.isdisjoint(piece):
            while tag := self._tags.search(self._last + piece):
                end = tag.end() - len(self._last)
                self._read(self._unread + piece[: end - 1])
                self._in_thought = tag[0] == self._think_open
                self.resume()
                piece = piece[end:]
            last = (self._last + piece)[-self._longest_tag :]
            self._last = "" if self._tag_starts.isdisjoint(last) else last
        self._unread = self._read(self._unread + piece)
        return len(self._finished) > num_finished

    def take(self) -> list[ParsedAction]:
        """Returns the calls that ended since the last `take`."""
        taken, self._finished = self._finished, []
        return taken

    def resume(self) -> None:
        """Discards an unfinished call: other text now follows it in the context. An open thought stays open."""
        self._last = self._unread = ""
        self._clear_call()

    def _clear_call(self) -> None:
        self._name: str | None = None
        self._raw: list[str] = []
        """The text of the call so far."""
        self._object: list[str] = []
        self._object_scanner = ObjectScanner()

    @abstractmethod
    def _read(self, text: str) -> str:
        """Reads a text as far as its meaning is certain; returns the rest, which is given again with the text that follows."""

    def _in_object(self, text: str) -> str:
        """Reads up to the brace that closes the object; returns the text after it."""
        length = self._object_scanner.feed(text)
        read = text[:length] if length else text
        self._raw.append(read)
        self._object.append(read)
        if not length:
            return ""
        try:
            self._end_call(load_object("".join(self._object)), None)
        except BadObjectError as bad:
            self._end_call({}, str(bad))
        return text[length:]

    def _end_call(self, parameters: Mapping[str, Any], error: str | None) -> None:
        """Records the call whose object just ended."""
        parameters, raw_text = {} if error else parameters, "".join(self._raw)
        self._finished.append(ParsedAction(tool_name=self._name, parameters=parameters, raw_text=raw_text, error=error))
        self._clear_call()


def as_one_result(text: str, marker: re.Pattern[str]) -> str:
    """Returns the text without empty lines, so that the first empty line after it marks its end.

    A line that begins with `marker` would look like a call or like another result: `> ` is written in front of it.
    """
    lines = (line.rstrip() for line in text.splitlines() if line.strip())
    return "\n".join(f"> {line}" if marker.match(line) else line for line in lines)


class TokenWatch:
    """Stopper of one episode: decodes its sampled tokens, one by one, for the call format's scanner. `text`: of the latest."""

    def __init__(self, renderer: Renderer, call_format: ToolCallFormat, *, in_thought: bool) -> None:
        self._renderer = renderer
        self._scanner = call_format.scanner(in_thought=in_thought)
        self._stream = renderer.decode_stream()
        self.text = ""

    def feed(self, token_id: int) -> bool:
        """Processes the next sampled token. Returns True if a call ended inside it."""
        self.text = self._stream.step(token_id)
        return bool(self.text) and self._scanner.feed(self.text)

    def take(self) -> list[ParsedAction]:
        """Returns the calls that ended since the last `take`."""
        return self._scanner.take()

    def resume(self) -> None:
        """Call it after other text was inserted into the context. Discards an unfinished call or character before that text."""
        self._scanner.resume()
        self._stream = self._renderer.decode_stream()
