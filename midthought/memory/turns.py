"""What is said in an episode: turns with speaker, text and times, made of the segments that sources give.

Knows nothing of files and formats (formats, transcripts) and nothing of markup (markup).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

UNKNOWN_SPEAKER = "Unknown Speaker"
"""Who speaks where a source does not say: in all of a transcript without speakers, and before the first that is named."""

CLOCK = r"(?:\d{1,3}:)?\d{1,3}:\d{2}(?:[.,]\d{1,9})?"
CLOCK_PATTERN = rf"(?P<time>{CLOCK})"
"""`MM:SS` or `HH:MM:SS`, with or without a fraction, as a named group for the regular expressions of the formats."""

TIME_MARK = "\ue100"
"""Stands before a time among the words of a segment (`markup.mark_times`)."""

_MAX_SECONDS = 3_600_000
_UNUSABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ue000-\uf8ff\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Turn:
    """What one speaker says until somebody else speaks."""

    speaker: str
    text: str
    """Plain words with single blanks between them; never empty."""
    time: str | None = None
    """`HH:MM:SS` of the first word, None where the source does not say."""
    marks: tuple[tuple[int, str], ...] = ()
    """Times within the turn: (number of the turn's words before it, `HH:MM:SS`), in order, each number > 0."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech as a source gives it: a cue, a line, a paragraph, a turn."""

    speaker: str | None
    """None: whoever spoke last."""
    text: str
    """Plain words, with time marks among them or not."""
    time: str | None = None
    """`HH:MM:SS` of the first word."""
    begins_turn: bool = False
    """True for a turn of its own, though the same speaker may have spoken before."""


def turns_of(segments: Iterable[Segment]) -> list[Turn]:
    """Segments of one speaker after the other form one turn; turns without words vanish."""
    collector = _TurnCollector()
    speaker: str | None = None
    for segment in segments:
        if segment.begins_turn or (segment.speaker is not None and segment.speaker != speaker):
            speaker = segment.speaker
            collector.begin(speaker or UNKNOWN_SPEAKER)
        collector.say(segment.text, segment.time)
    return collector.finish()


class _TurnCollector:
    """Collects the turns of one episode: keeps the times where they belong, drops turns without words."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._speaker = UNKNOWN_SPEAKER
        self._words: list[str] = []
        self._marks: list[tuple[int, str]] = []

    def begin(self, speaker: str) -> None:
        """Begin a turn; a time after the last word of the turn before is the time of this one."""
        self._end()
        self._speaker = speaker

    def say(self, text: str, time: str | None = None) -> None:
        """Add plain words to the turn, spoken at `time`."""
        if time is not None:
            self._marks.append((len(self._words), time))
        for word in text.split():
            marked = clock_time(word[1:]) if word.startswith(TIME_MARK) else None
            if marked:
                self._marks.append((len(self._words), marked))
            else:
                self._words.append(word)

    def finish(self) -> list[Turn]:
        """End the last turn; all turns that have words, in order."""
        self._end()
        return self.turns

    def _end(self) -> None:
        num_words = len(self._words)
        times = dict(self._marks)  # the last of several times at one place
        trailing = times.pop(num_words, None) if num_words else times.get(0)
        if num_words:
            start = times.pop(0, None)
            self.turns.append(Turn(self._speaker, " ".join(self._words), start, tuple(sorted(times.items()))))
        self._words = []
        self._marks = [] if trailing is None else [(0, trailing)]


def clock_time(value: object) -> str | None:
    """`HH:MM:SS` of seconds or of a written time (`75:10`, `1:02:03.5`, `12.5`), fractions cut off; None where it is none."""
    if isinstance(value, str):
        value = value.strip()
        if re.fullmatch(CLOCK, value):
            seconds = 0
            for part in re.split("[.,]", value)[0].split(":"):
                seconds = seconds * 60 + int(part)
        elif re.fullmatch(r"\d{1,7}(?:\.\d{1,20})?", value):
            seconds = int(value.partition(".")[0])
        else:
            return None
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MAX_SECONDS:
        seconds = int(value)
    else:
        return None
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}" if seconds < _MAX_SECONDS else None


def without_unusable_characters(text: str) -> str:
    """The text with blanks for what no words are made of: control characters, halves of surrogates, private signs.

    They could not be stored as UTF-8, or would be taken for marks of ours.
    """
    return _UNUSABLE.sub(" ", text)
