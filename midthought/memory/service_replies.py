"""What a memory service replies, checked: hits, chunks and counts from JSON. Anything else raises ValueError, or what Python
raises for a value of another type. Does not depend on how replies arrive.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from typing import Any

from midthought.memory.chunks import Chunk
from midthought.memory.search import Hit
from midthought.memory.turns import without_unusable_characters

_MAX_TEXT_CHARS = 1_000_000
_HIT_TEXTS = ("chunk_id", "episode", "speaker", "transcript", "time")
_CHUNK_TEXTS = (*_HIT_TEXTS, "stem", "embedded")
_IDENTIFIERS = frozenset({"chunk_id", "stem"})
_LINE_BREAK = re.compile("[\t\n\r\x85\u2028\u2029]")


def from_json(reply: bytes) -> Any:
    """Returns the JSON value."""
    return json.loads(reply, parse_constant=_no_number)


def read_count(value: Any) -> int:
    """Returns a count of a service. Raises ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= sys.maxsize:
        raise ValueError("no count")
    return value


def _texts(row: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns these texts, the turns and the times of a row, each text on one line; identifiers as they are stored, which is
    UTF-8. Raises ValueError for values of other types."""
    texts = {name: row[name] for name in names}
    if not all(isinstance(text, str) and len(text) <= _MAX_TEXT_CHARS for text in texts.values()):
        raise ValueError("no text")
    texts = {name: _utf8(text) if name in _IDENTIFIERS else _plain_line(text) for name, text in texts.items()}
    num_words = len(texts["transcript"].split())
    return texts | {name: _places(row.get(name) or (), num_words) for name in ("turns", "times")}


def _places(rows: Any, num_words: int) -> list[tuple[int, str]]:
    starts = [read_count(start) for start, _ in rows]
    if starts != sorted(starts) or starts[-1:] > [num_words]:
        raise ValueError("no turns")
    return [(start, _plain_line(str(text))) for start, text in rows]


def _rows(rows: Any, most: int) -> list[Any]:
    if not isinstance(rows, list) or len(rows) > most:
        raise ValueError("no list, or too long")
    return rows


def read_hits(rows: Any, k: int) -> list[Hit]:
    """Returns at most `k` hits."""
    return [Hit(**_texts(row, _HIT_TEXTS), score=_score(row["score"])) for row in _rows(rows, k)]


def _score(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("no score")
    return float(value)


def read_chunks(most: int, reply: Any) -> list[Chunk]:
    """Returns at most `most` chunks."""
    rows = _rows(reply["chunks"], most)
    return [Chunk(**_texts({"embedded": "", **row}, _CHUNK_TEXTS), number=read_count(row["number"])) for row in rows]


def read_names(reply: Any) -> set[str]:
    """Returns the names of a reply with numbers of chunks by name, as they are stored, which is UTF-8."""
    counts = {_utf8(name): read_count(count) for name, count in reply.items()}
    return set(counts)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _plain_line(text: str) -> str:
    """Replaces what chunks of a memory never have: control characters, lone surrogates and line breaks."""
    return _LINE_BREAK.sub(" ", without_unusable_characters(text))


def _utf8(text: str) -> str:
    """Replaces lone surrogates."""
    return text.encode(errors="replace").decode()
