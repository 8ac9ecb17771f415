"""A JSON object found character by character, read strictly, and written. Knows nothing of what stands around it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

_BETWEEN_VALUES = " \t\r\n,"


class BadObjectError(ValueError):
    """Text in balanced braces that is no JSON object; the message is written for the model."""


class ObjectScanner:
    """Finds the brace that closes an object. Braces in strings do not count; brackets are left to the parser.

    >>> scanner = ObjectScanner()
    >>> [scanner.feed(text) for text in ('{"a', '}": ', '1} and so on')]
    [0, 0, 2]
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int:
        """Take the next text, the opening brace first: how many of its characters reach to the brace that closes the
        object, 0 where none does. What stands behind that brace is not taken."""
        if self._changes_nothing(text):
            return 0
        return next((position for position, character in enumerate(text, 1) if self._closes(character)), 0)

    def _changes_nothing(self, text: str) -> bool:
        if self._in_string:
            return not self._escaped and '"' not in text and "\\" not in text
        return '"' not in text and "{" not in text and "}" not in text

    def _closes(self, character: str) -> bool:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character == "{":
            self._depth += 1
        elif character == "}":
            self._depth -= 1
            return self._depth == 0
        return False


def load_object(text: str) -> dict[str, Any]:
    """Read a JSON object. BadObjectError for anything else, and for what no UTF-8 file or other JSON reader could hold:
    NaN, infinities, lone surrogates."""
    with _explained():
        value = _DECODER.decode(text)
        _require_encodable(value, text)
    if not isinstance(value, dict):
        raise BadObjectError(f"bad JSON: should be an object in braces, got {type(value).__name__}")
    return value


def load_values(text: str) -> list[Any]:
    """Read JSON values that stand one after the other, blanks, line ends or commas between them; as strict."""
    values, position = [], 0
    with _explained():
        while position < len(text):
            value, position = _DECODER.raw_decode(text, position)
            values.append(value)
            while position < len(text) and text[position] in _BETWEEN_VALUES:
                position += 1
        _require_encodable(values, text)
    return values


def write_json(value: Any, tags: Sequence[str] = ()) -> str:
    """JSON on one line, Unicode as it is. `tags` do not appear in it: their first character is escaped."""
    written = json.dumps(value, ensure_ascii=False)
    for tag in tags:
        written = written.replace(tag, f"\\u{ord(tag[0]):04x}{tag[1:]}")
    return written


@contextmanager
def _explained() -> Iterator[None]:
    """Whatever goes wrong in reading, in words for the model."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise BadObjectError(f"bad JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}") from None
    except RecursionError:
        raise BadObjectError("bad JSON: nested too deeply") from None
    except UnicodeEncodeError:
        raise BadObjectError("bad JSON: half of a surrogate pair") from None
    except ValueError as error:
        raise BadObjectError(f"bad JSON: {str(error)[:100]}") from None


def _require_encodable(value: Any, text: str) -> None:
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
