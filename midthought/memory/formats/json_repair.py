"""Parses JSON: one document or several, and what is complete in a document that ends early or is damaged at one place."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

_SIGNS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_MIN_ENTRIES = 1
_MAX_DEPTH = 200
_BETWEEN = re.compile(r"[\s,]*")
_PYTHON = re.compile(r"\s*[\[{][\s\[{]*'")
_MAX_PYTHON_LETTERS = 1 << 20
"""Of a text that is parsed as Python's: it takes 200 to 500 times as much memory."""


def parsed(text: str) -> tuple[Any, tuple[str, ...]]:
    """Returns the document, and doubts if it is damaged."""
    try:
        return json.loads(text), ()
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and (documents := _documents(text))[0]:
            return documents
        if _PYTHON.match(text) and (printed := _python(text)) is not None:
            return printed, ()
        if (document := _repaired(text, error.pos)) is not None:
            where = f"line {error.lineno} column {error.colno}"
            return document, (f"the JSON is damaged at {where}; what is complete before it is read",)
        raise ValueError(f"it is not valid JSON ({error.msg}, line {error.lineno} column {error.colno})") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except ValueError:  # int() refuses numbers of thousands of digits
        raise ValueError("its JSON has a number that is too long") from None


def _python(text: str) -> Any | None:
    """Returns the value of lists and dictionaries that Python has printed; None if JSON has no such value. Raises ValueError if
    the text is too long."""
    if len(text) > _MAX_PYTHON_LETTERS:
        raise ValueError(
            f"it is no JSON but a value printed by Python, of more than {_MAX_PYTHON_LETTERS} characters; write it with json.dump"
        )
    try:
        return json.loads(json.dumps(ast.literal_eval(text.strip())))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _documents(text: str) -> tuple[list[Any], tuple[str, ...]]:
    """Returns the documents of a text that has several, as one per line, and a doubt if some are damaged; none if most are."""
    decoder, found, missing, place = json.JSONDecoder(), [], 0, 0
    while place < len(text):
        try:
            document, place = decoder.raw_decode(text, place)
            found.append(document)
        except (ValueError, RecursionError):
            missing, place = missing + 1, text.find("\n", place) + 1 or len(text)
        place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]  # matches the empty text
    if missing >= len(found):
        return [], ()
    what = f"{missing} of {missing + len(found)} documents are damaged and were left out"
    return found, (what,) if missing else ()


def _repaired(text: str, position: int) -> Any | None:
    """Returns the document up to the last object that is complete before `position`; None if there is none.

    Takes time linear in the text's length.
    """
    open_signs: list[str] = []
    end, closing, num_closed = 0, "", 0
    for match in _SIGNS.finditer(text, 0, position):
        sign = match[0]
        if sign in "[{":
            open_signs.append(sign)
            if len(open_signs) > _MAX_DEPTH:
                return None
        elif sign in "]}":
            if not open_signs or (open_signs.pop() == "[") != (sign == "]"):
                return None
            if sign == "}" and open_signs and open_signs[-1] == "[":
                num_closed += 1
                end = match.end()
                closing = "".join("]" if each == "[" else "}" for each in reversed(open_signs))
    if num_closed < _MIN_ENTRIES:
        return None
    try:
        return json.loads(text[:end] + closing)
    except (ValueError, RecursionError):
        return None
