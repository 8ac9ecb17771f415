"""Reads what is complete in a JSON document that ends early or is damaged at one place."""

from __future__ import annotations

import json
import re
from typing import Any

_SIGNS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_MIN_ENTRIES = 1
_MAX_DEPTH = 200


def repaired(text: str, position: int) -> Any | None:
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
