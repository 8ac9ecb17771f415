"""Turns the sampled text of one answer into pieces of text as they arrive: thoughts, calls, results, the answer.

Does not depend on HTTP, engines or tools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.json_calls import TaggedCallFormat
from midthought.tools.call_formats.native import NativeCallFormat


class PieceKind(StrEnum):
    """What a piece of an answer is."""

    THOUGHT = "thought"
    """Text between the tags of a thought, with the calls in it."""
    ANSWER = "answer"
    """Text outside of thoughts."""
    CALL = "call"
    """Calls outside of thoughts, as the policy wrote them."""
    RESULT = "result"
    """The result of a call, as the policy reads it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer's text."""

    kind: PieceKind
    text: str
    is_new: bool
    """Whether a part of the answer begins with it; otherwise it continues the last piece."""


OnPiece = Callable[[Piece], None]


class TextFields:
    """The two texts of one answer, its thoughts and what it says, piece by piece; each part begins on a line of its own."""

    def __init__(self) -> None:
        self._has_text = {True: False, False: False}

    def add(self, piece: Piece) -> tuple[bool, str]:
        """Returns whether the piece belongs to the thoughts, as calls and results do, and its text."""
        is_thought = piece.kind is not PieceKind.ANSWER
        before = "\n" if piece.is_new and self._has_text[is_thought] else ""
        self._has_text[is_thought] = True
        return is_thought, before + piece.text


class AnswerStream:
    """Reads the text of one answer, from `begin_turn` on, and passes pieces of its text to `on_piece`; `pieces` keeps them.

    - Tags of thoughts are left out, and so are blanks at both ends of a thought or an answer.
    - In formats whose calls are chat turns, text that is a call or may become one waits for the end of the turn (`end_turn`).
    - `stop`: texts that end the answer before them (`stop_text`); thoughts and calls are not searched for them.
    """

    def __init__(self, call_format: ToolCallFormat, on_piece: OnPiece, *, stop: Sequence[str] = ()) -> None:
        self.stop_text: str | None = None
        """The stop text that ended the answer, if one did."""
        self.pieces: list[Piece] = []
        self._format, self._on_piece, self._stop = call_format, on_piece, tuple(stop)
        self._tags = call_format.think_tags
        self._markers = _call_markers(call_format)
        self._answer_marks = (*self._tags, *self._stop, *(self._markers or ()))
        self._first_letters = frozenset(mark[0] for mark in self._answer_marks)

    def begin_turn(self, *, in_thought: bool) -> None:
        """Starts a new turn; `in_thought` if its prompt opened the thought."""
        self._turn = ""
        self._begin_part(in_thought=in_thought)

    def _begin_part(self, *, in_thought: bool) -> None:
        self.in_thought = in_thought
        """Whether a thought is open."""
        self._kind = PieceKind.THOUGHT if in_thought else PieceKind.ANSWER
        self._held = ""
        """Text that was not passed on: blanks, what may be the beginning of a mark, or what waits for the end of the turn."""
        self._waits = not in_thought and self._markers is None
        self._has_begun = False
        self._num_undecided = 0
        """Length of the longest end of the held text with which a mark may begin."""

    def feed(self, text: str) -> bool:
        """Reads the text of the next sampled token, without the one that ends the turn. Returns True if a stop text ended the
        answer."""
        if text and self.stop_text is None:
            self._turn += text
            self._held += text
            if self._waits or self._num_undecided or not self._first_letters.isdisjoint(text):
                self._find_marks()
            if not self._waits:
                self._write(num_kept=self._num_undecided)
        return self.stop_text is not None

    def resume(self, results: str) -> None:
        """Results were inserted into the running turn."""
        self._write()
        self._begin_part(in_thought=self.in_thought)
        self.add(PieceKind.RESULT, results)

    def end_turn(self, *, has_calls: bool) -> None:
        """Passes on what was held: calls, or text that only looked like one."""
        kind = self._kind
        if self._waits and has_calls:
            kind = PieceKind.CALL
        elif self._waits and isinstance(self._format, NativeCallFormat):
            answer = self._format.syntax.answer(self._turn)
            self._held = self._held if answer is None else answer
        if kind is PieceKind.ANSWER and (
            places := [(self._held.find(stop), stop) for stop in self._stop if stop in self._held]
        ):
            place, self.stop_text = min(places)
            self._held = self._held[:place]
        self._write(kind)

    def add(self, kind: PieceKind, text: str) -> None:
        """Passes on a text that is a part of its own, such as the result of a call."""
        if text.strip():
            self._emit(Piece(kind, text.strip("\n"), True))

    def _emit(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self._on_piece(piece)

    # -- parts of a turn ---------------------------------------------------------------------------------------

    @property
    def _marks(self) -> tuple[str, ...]:
        """Texts that end the present part."""
        return self._tags if self.in_thought or self._waits else self._answer_marks

    def _find_marks(self) -> None:
        """Passes the marks in the held text, and looks for the beginning of one at its end."""
        while places := [(place, mark) for mark in self._marks if (place := self._held.find(mark)) >= 0]:
            self._pass_mark(*min(places, key=lambda found: found[0]))
        held, marks = self._held, self._marks
        first = {mark[0] for mark in marks}
        starts = range(max(0, len(held) - max(map(len, marks)) + 1), len(held))
        ends = (held[n:] for n in starts if held[n] in first)
        self._num_undecided = next((len(end) for end in ends if any(mark.startswith(end) for mark in marks)), 0)

    def _pass_mark(self, place: int, mark: str) -> None:
        rest = self._held[place + len(mark) :]
        self._held = self._held[:place]
        self.stop_text = mark if mark not in self._tags and mark in self._stop else None
        self._write()
        if mark in self._tags:
            self._begin_part(in_thought=mark == self._tags[0])
            self._held = rest
        elif self.stop_text is None:
            self._held, self._waits, self._has_begun = mark + rest, True, False

    def _write(self, kind: PieceKind | None = None, *, num_kept: int = 0) -> None:
        """Passes on the held text, except its last `num_kept` characters and the blanks before them."""
        decided = self._held[: len(self._held) - num_kept].rstrip()
        self._held = self._held[len(decided) :]
        text = decided if self._has_begun else decided.lstrip()
        if text:
            self._emit(Piece(kind or self._kind, text, not self._has_begun))
            self._has_begun = True


def _call_markers(call_format: ToolCallFormat) -> tuple[str, ...] | None:
    """Returns the texts with which calls outside of thoughts begin. None: every text may become a call."""
    if call_format.stops_at_call:  # a call is known at once, and its result follows it
        return ()
    if isinstance(call_format, TaggedCallFormat):
        return call_format.tags[:1]
    if isinstance(call_format, NativeCallFormat) and not call_format.syntax.around_answer[0]:
        return tuple(call_format.syntax.markers) or None
    return None
