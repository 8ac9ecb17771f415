"""What is said in an episode: turns with speaker, text and times, and the tidying of the words that sources give.

Knows nothing of files and formats (formats, transcripts).
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

UNKNOWN_SPEAKER = "Unknown Speaker"

_CLOCK = r"(?:\d{1,3}:)?\d{1,3}:\d{2}(?:[.,]\d+)?"
CLOCK_PATTERN = rf"(?P<time>{_CLOCK})"
"""`MM:SS` or `HH:MM:SS`, with or without a fraction, as a named group for the regular expressions of the formats."""

_TIME_MARK = "\ue100"
_INLINE_TIME = re.compile(rf"\\?\[\s*({_CLOCK})\s*\\?\](?:\([^()\s]*\))?")
_TIME_RANGE = re.compile(rf"{_TIME_MARK}[\d:]+\s+(?:to|[-–—])\s+({_TIME_MARK})")
_NOTE_WITH_TIME = re.compile(rf"(\\?\[[^\[\]\d]{{1,60}}?)\s+{_CLOCK}\s*(\\?\])")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
# the spans are bounded, so that a stray sign in a long text costs little
_CODE = re.compile(r"(`{1,3})([^`]{1,500})\1", re.DOTALL)
_COMMENT = re.compile(r"<!--.{0,5000}?-->", re.DOTALL)
_TAG = re.compile(
    r"</?(?:a|b|br|cite|code|em|i|kbd|mark|p|s|small|span|strong|sub|sup|u)\b[^<>]{0,500}>", re.IGNORECASE
)
_AUTOLINK = re.compile(r"<(\w+:[^<>\s]+)>")
_IMAGE = re.compile(r"!\[[^\[\]]*\]\((?:[^()]|\([^()]*\))*\)")
_LINK = re.compile(r"\[([^\[\]]*)\](?:\((?:[^()]|\([^()]*\))*\)|\[[^\[\]]*\])")
_STARS = re.compile(r"(\*{1,3})(?=[^\s*])(.{1,500}?)(?<=[^\s*])\1", re.DOTALL)
_UNDERLINES = re.compile(r"(?<!\w)(_{1,3})(?=[^\s_])(.{1,500}?)(?<=[^\s_])\1(?!\w)", re.DOTALL)
_STRUCK = re.compile(r"~~(?=\S)(.{1,500}?)(?<=\S)~~", re.DOTALL)

_PRIVATE = 0xE000  # escaped punctuation waits in the private use area while markup is taken away
_TO_PRIVATE = {code: chr(_PRIVATE + code) for code in range(0x21, 0x7F) if not chr(code).isalnum()}
_FROM_PRIVATE = {_PRIVATE + code: chr(code) for code in _TO_PRIVATE}


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


class TurnCollector:
    """Collects the turns of one episode: keeps the times where they belong, drops turns without words."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._speaker = UNKNOWN_SPEAKER
        self._words: list[str] = []
        self._marks: list[tuple[int, str]] = []

    def begin(self, speaker: str) -> None:
        """Begin a turn; a time after the last word of the turn before is the time of this one."""
        self._end()
        self._speaker = speaker or UNKNOWN_SPEAKER

    def say(self, text: str, time: str | None = None) -> None:
        """Add plain words to the turn, spoken at `time`. Time marks left by `plain_words` count as times."""
        if time is not None:
            self._marks.append((len(self._words), time))
        for word in text.split():
            marked = clock_time(word[1:]) if word.startswith(_TIME_MARK) else None
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


def clock_time(value: str | float | None) -> str | None:
    """`HH:MM:SS` of seconds or of a written time (`75:10`, `1:02:03.5`), fractions cut off; None where it is none."""
    if isinstance(value, str):
        if not re.fullmatch(_CLOCK, value.strip()):
            return None
        seconds = 0
        for part in re.split("[.,]", value.strip())[0].split(":"):
            seconds = seconds * 60 + int(part)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 3_600_000:
        seconds = int(value)
    else:
        return None
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def mark_times(text: str) -> str:
    r"""Replace `[00:04:01.06]` and `\[04:01\]` by marks that `TurnCollector.say` understands; a range gives its end.

    A note such as `[unintelligible 00:04:01]` keeps its words and loses its time, which often comes from another cut.
    """
    text = _INLINE_TIME.sub(lambda match: f" {_TIME_MARK}{clock_time(match[1])} ", text)
    return _NOTE_WITH_TIME.sub(r"\1\2", _TIME_RANGE.sub(r"\1", text))


def plain_words(markdown: str) -> str:
    """The words of Markdown text without links, emphasis, code marks, tags and escapes; inline times become marks."""
    text = _CODE.sub(lambda match: match[2].translate(_TO_PRIVATE), mark_times(markdown))
    text = _ESCAPED.sub(lambda match: match[1].translate(_TO_PRIVATE), text)
    text = _AUTOLINK.sub(r"\1", _COMMENT.sub(" ", text))
    text = _TAG.sub(" ", text)
    text = _LINK.sub(r"\1", _IMAGE.sub(" ", text))
    for markup in (_STARS, _UNDERLINES):
        for _ in range(2):  # emphasis within emphasis
            text = markup.sub(r"\2", text)
    text = html.unescape(_STRUCK.sub(r"\1", text))
    return " ".join(text.translate(_FROM_PRIVATE).split())
