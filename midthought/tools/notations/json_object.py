"""A JSON object found character by character, and read strictly. Knows nothing of what stands around it."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


class BadObjectError(ValueError):
    """Text in balanced braces that is no JSON object; the message is written for the model."""


class ObjectScanner:
    """Finds the brace that closes an object. Braces in strings do not count; brackets are left to the parser.

    >>> scanner = ObjectScanner()
    >>> [scanner.feed(character) for character in '{"}"}']
    [False, False, False, False, True]
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, character: str) -> bool:
        """Take the next character, the opening brace first; True where it closes the object."""
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
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise BadObjectError(f"bad JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise BadObjectError("bad JSON: nested too deeply") from None
    except UnicodeEncodeError:
        raise BadObjectError("bad JSON: half of a surrogate pair") from None
    except ValueError as error:
        raise BadObjectError(f"bad JSON: {str(error)[:100]}") from None
    if not isinstance(value, dict):
        raise BadObjectError(f"bad JSON: should be an object in braces, got {type(value).__name__}")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value
