"""Finds quoted text in a stream of characters: fenced code, code spans, copied tool results.

Fences follow CommonMark: up to three spaces of indent, at least three ` or ~, closed by a run that is at least as long and
has nothing after it. A code span ends at the end of its line: a scanner that stops at calls cannot look ahead.
"""

from __future__ import annotations

import enum
import re

_RESULT_HEAD = re.compile(r"#[A-Za-z_][\w.-]*_(?:result|error)")
_MAX_INDENT = 3
_MIN_FENCE = 3


class _Stage(enum.Enum):
    """Position of the next character in its line."""

    INDENT = enum.auto()
    MARKER = enum.auto()
    """In the run of ` or ~ at the beginning of the line."""
    HEAD = enum.auto()
    """In the `#name` at the beginning of the line."""
    INFO = enum.auto()
    """After three or more markers: a fence's info string, unless a backtick follows."""
    REST = enum.auto()


class QuotingTracker:
    """`feed` returns whether the last character is in quoted text (the markers themselves excluded)."""

    def __init__(self) -> None:
        self._fence = ""
        """The markers that opened the fence; empty outside of fences."""
        self._in_result = False
        self._begin_line()

    def _begin_line(self) -> None:
        self._stage = _Stage.INDENT
        self._indent = 0
        self._marker = ""
        self._num_markers = 0
        self._head: list[str] = []
        self.line_is_blank = True
        """Whether the line so far has no text."""
        self._tail_is_blank = True
        self._run = 0
        self._span = 0

    @property
    def in_fence(self) -> bool:
        """Whether the next character is in fenced code."""
        return bool(self._fence)

    def feed(self, character: str) -> bool:
        """Reads the next character in amortized constant time."""
        if character == "\n":
            self._end_line()
            return bool(self._fence) or self._in_result
        if not character.isspace():
            self.line_is_blank = False
        self._advance(character)
        return bool(self._fence) or self._in_result or self._stage is _Stage.INFO or self._span > 0

    def skip(self, text: str) -> bool:
        """Reads a text without line ends and backticks at once if only these can change the state at this position in the
        line; otherwise returns False and reads nothing."""
        if self._stage is _Stage.INDENT and text and text[0] not in " ~#":
            self._stage = _Stage.REST
        if self._stage is not _Stage.REST or self._run:
            return False
        if self.line_is_blank:
            self.line_is_blank = not text or text.isspace()
        return True

    def _advance(self, character: str) -> None:
        if self._stage is _Stage.INDENT:
            self._leave_indent(character)
        elif self._stage is _Stage.MARKER:
            if character == self._marker:
                self._num_markers += 1
            else:
                self._leave_marker(character)
        elif self._stage is _Stage.HEAD:
            if character.isalnum() or character in "_.-":
                self._head.append(character)
            else:
                self._stage = _Stage.REST
                if character == ":" and not self._fence and _RESULT_HEAD.fullmatch("".join(self._head)):
                    self._in_result = True
                self._in_rest(character)
        elif self._stage is _Stage.INFO:
            self._tail_is_blank = self._tail_is_blank and character.isspace()
            if character == "`" and self._marker == "`":
                self._stage, self._span, self._run = _Stage.REST, self._num_markers, 1
        else:
            self._in_rest(character)

    def _leave_indent(self, character: str) -> None:
        if character == " " and self._indent < _MAX_INDENT:
            self._indent += 1
        elif character in "`~":
            self._stage, self._marker, self._num_markers = _Stage.MARKER, character, 1
        elif character == "#":
            self._stage = _Stage.HEAD
            self._head.append(character)
        else:
            self._stage = _Stage.REST

    def _leave_marker(self, character: str) -> None:
        if self._num_markers >= _MIN_FENCE:
            self._stage = _Stage.INFO
            self._tail_is_blank = character.isspace()
            return
        self._stage = _Stage.REST
        self._span = self._num_markers if self._marker == "`" else 0
        self._in_rest(character)

    def _in_rest(self, character: str) -> None:
        if character == "`":
            self._run += 1
        elif self._run:
            if self._span == 0:
                self._span = self._run
            elif self._span == self._run:
                self._span = 0
            self._run = 0

    def _end_line(self) -> None:
        is_fence = self._num_markers >= _MIN_FENCE and self._stage in (_Stage.MARKER, _Stage.INFO)
        if self._in_result:
            self._in_result = not self.line_is_blank
        elif self._fence:
            closes = self._marker == self._fence[0] and self._num_markers >= len(self._fence) and self._tail_is_blank
            if is_fence and closes:
                self._fence = ""
        elif is_fence:
            self._fence = self._marker * self._num_markers
        self._begin_line()
