"""Times spelled in words beside a clock time, as pages of video services show them: `1:05`, `1 minute, 5 seconds`."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SPELLED = (
    r"(?:\d{1,2} (?:hours?|heures?|Stunden?|horas?|ora),? (?:et |and |und |y |e )?)?"
    r"(?:\d{1,3} (?:minutes?|Minuten?|minutos?|minuti|minuten),? (?:et |and |und |y |e )?)?"
    r"\d{1,2} (?:seconden|secondes?|seconds?|Sekunden?|segundos?|secondi)"
)
_COLONS = r"\d{1,2}(?::\d{2}){1,2}"
_SPELLED_FIRST = re.compile(rf"(?P<before>{_COLONS})\s?{_SPELLED}|{_SPELLED}(?P<after>{_COLONS})")
_GLUED = re.compile(rf"^({_COLONS})(?=[^\W\d_])")
_SPELLED_LAST = re.compile(r"(?<=\S )(?:(\d{1,2}) hours? )?(\d{1,3}) minutes? (\d{1,2}) seconds?$")
_CLOCK_ALONE = re.compile(_COLONS)
_NUMBER = re.compile(r"\d+")
_MAX_LETTERS = 60


def repeats_time(before: str, line: str) -> bool:
    """Whether the line spells the time in the line before it, as `1 Minute, 5 Sekunden` does after `1:05`."""
    if not line[0].isdigit() or len(line) > _MAX_LETTERS or not _CLOCK_ALONE.fullmatch(before):
        return False
    shown, spelled = ([int(number) for number in _NUMBER.findall(text) if int(number)] for text in (before, line))
    return shown == spelled and ":" not in line


def without_spelled_times(lines: Sequence[str]) -> list[str]:
    """Returns the lines without blanks at their ends, and with times as clocks show them, if some spell these, too."""
    lines = [line.strip() for line in lines]
    are_spelled = sum(bool(_SPELLED_FIRST.match(line)) for line in lines) > 2
    return list(map(_without_spelled_time, lines)) if are_spelled else lines


def _without_spelled_time(line: str) -> str:
    """Returns the line with `0:14` instead of `0 minutes 14 seconds0:14`, `0:1414 secondes` and `Ann 0 minutes 14 seconds`,
    as pages of video services show times."""
    if match := _SPELLED_FIRST.match(line):
        return f"{match['before'] or match['after']} {line[match.end() :]}".strip()
    line = _GLUED.sub(r"\1 ", line)
    return _SPELLED_LAST.sub(lambda match: f"{int(match[1] or 0) * 60 + int(match[2])}:{int(match[3]):02d}", line)
