"""Finds the end of a JSON object in a stream of characters, reads it strictly, and writes one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

_BETWEEN_VALUES = " \t\r\n,"
_IN_OBJECT, _IN_STRING = re.compile(r'["{}]'), re.compile(r'["\\]')


class BadObjectError(ValueError):
    """Text in balanced braces that is not a JSON object; the message is written for the model."""


class ObjectScanner:
    """Finds the closing brace of an object. Braces in strings do not count; brackets are checked by the JSON reader.

    >>> scanner = ObjectScanner()
    >>> [scanner.feed(text) for text in ('{"a', '}": ', '1} and so on')]
    [0, 0, 2]
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def feed(self, text: str) -> int:
        """Reads the next text; the first text starts with the opening brace. Returns the number of characters up to and
        including the closing brace, or 0 if the object does not end here. The rest is not read."""
        place = 0
        if self._is_escaped and text:
            place, self._is_escaped = 1, False
        while found := (_IN_STRING if self._in_string else _IN_OBJECT).search(text, place):
            place = found.end()
            if found[0] == "\\":
                self._is_escaped = place == len(text)
                place += 1
            elif found[0] == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if found[0] == "{" else -1
                if not self._depth:
                    return place
        return 0


def load_object(text: str) -> dict[str, Any]:
    """Reads a JSON object. Raises `BadObjectError` for anything else, and for values that UTF-8 files or other JSON readers
    cannot represent: NaN, infinities, lone surrogates."""
    with _explained():
        value = _DECODER.decode(text)
        _require_encodable(value, text)
    if not isinstance(value, dict):
        raise BadObjectError(f"bad JSON: should be an object in braces, got {type(value).__name__}")
    return value


def load_values(text: str) -> list[Any]:
    """Reads several JSON values, separated by spaces, line ends or commas, as strictly as `load_object`."""
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
    """Returns JSON on one line, with Unicode unescaped. `tags` do not occur in it: their first character is escaped."""
    written = json.dumps(value, ensure_ascii=False)
    for tag in tags:
        written = written.replace(tag, f"\\u{ord(tag[0]):04x}{tag[1:]}")
    return written


@contextmanager
def _explained() -> Iterator[None]:
    """Turns every reading error into a `BadObjectError` with a message for the model."""
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
