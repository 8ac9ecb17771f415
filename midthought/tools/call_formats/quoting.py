"""Finds quoted text in a stream of characters: fenced code, code spans, copied tool results.

Fences follow CommonMark: up to three spaces of indent, at least three ` or ~, closed by a run that is at least as long and
has nothing after it. A code span ends at the end of its line: a scanner that stops at calls cannot look ahead.
"""

from __future__ import annotations

import re

_RESULT_HEAD = re.compile(r" {0,3}#[A-Za-z_][\w.-]*_(?:result|error):")
_FENCE_BEGINS = re.compile(r" {0,3}(?:```|~~~)")
_MAY_BEGIN = re.compile(r" {0,3}(?:`{0,2}|~{0,2}|#[\w.-]*)")
"""The beginning of a line that may still become a fence or a result's head."""
_FENCE = re.compile(r" *(`+|~+)(.*)", re.DOTALL)
_MAX_HEAD = 256


class QuotingTracker:
    """`feed` reads the next character; then `is_quoted` says whether it is in quoted text."""

    def __init__(self) -> None:
        self._fence = ""
        """The markers that opened the fence; empty outside of fences."""
        self._in_result = False
        self._begin_line()

    def _begin_line(self) -> None:
        self._line: list[str] = []
        """The line so far, as long as it may be a fence or a result's head."""
        self._is_rest = False
        """Whether it is neither."""
        self._is_fence, self._marker = False, ""
        self.line_is_blank = True
        """Whether the line so far has no text."""
        self._run = 0
        self._span = 0
        """Backticks that have opened the present code span."""

    @property
    def in_fence(self) -> bool:
        """Whether the next character is in fenced code."""
        return bool(self._fence)

    @property
    def is_quoted(self) -> bool:
        """Whether the last character, which is no marker, is in quoted text."""
        return bool(self._fence) or self._in_result or self._is_fence or self._span > 0

    def feed(self, character: str) -> None:
        """Reads the next character in amortized constant time."""
        if character == "\n":
            self._end_line()
            return
        if not character.isspace():
            self.line_is_blank = False
        if not self._is_rest:
            self._begin(character)
        if character == "`":
            self._run += 1
        elif self._run:
            if not self._span or self._span == self._run:
                self._span = 0 if self._span else self._run
            self._run = 0

    def skip(self, text: str) -> bool:
        """Reads a text without line ends and backticks at once if only these can change the state at this position in the
        line; otherwise returns False and reads nothing."""
        if not self._line and text and text[0] not in " ~#":
            self._is_rest = True
        if not self._is_rest or self._run:
            return False
        if self.line_is_blank:
            self.line_is_blank = not text or text.isspace()
        return True

    def _begin(self, character: str) -> None:
        if self._is_fence and character == "`" and not self._run and "`" in self._marker:  # it was a code span
            self._is_fence, self._is_rest = False, True
            return
        self._line.append(character)
        if self._is_fence:
            return
        line = "".join(self._line)
        if _FENCE_BEGINS.fullmatch(line):
            self._is_fence, self._marker = True, line
        elif _RESULT_HEAD.fullmatch(line):
            self._is_rest, self._in_result = True, self._in_result or not self._fence
        elif not _MAY_BEGIN.fullmatch(line) or len(line) > _MAX_HEAD:
            self._is_rest = True

    def _end_line(self) -> None:
        found = _FENCE.fullmatch("".join(self._line)) if self._is_fence else None
        if self._in_result:
            self._in_result = not self.line_is_blank
        elif self._fence and found:
            if found[1][0] == self._fence[0] and len(found[1]) >= len(self._fence) and not found[2].strip():
                self._fence = ""
        elif found:
            self._fence = found[1]
        self._begin_line()
