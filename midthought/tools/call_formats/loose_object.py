"""Objects as Gemma writes them: `{key:<|"|>text<|"|>,size:3,words:[<|"|>a<|"|>]}`. Keys are bare, texts stand between quotes that
are tokens of their own and are not escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_WORDS = {"true": True, "false": False, "null": None}
_KEY = re.compile(r"\s*([^:{}\[\],]+?)\s*:")
_SCALAR = re.compile(r"\s*([^,{}\[\]]+)")
_MAX_DEPTH = 50


def write_loose(value: Any, quote: str) -> str:
    """Returns a JSON value in this form; keys are sorted, as the templates sort them."""
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{write_loose(value[key], quote)}" for key in sorted(value, key=str.lower)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(write_loose(each, quote) for each in value) + "]"
    return json.dumps(value)


def read_loose(text: str, quote: str) -> tuple[dict[str, Any], int]:
    """Returns the object at the start of the text, and the position after it. Raises ValueError if there is none."""
    reader = _Reader(text, quote)
    found = reader.value(_MAX_DEPTH)
    if not isinstance(found, dict):
        raise ValueError("the arguments are no object")
    return found, reader.place


class _Reader:
    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote, self.place = text, quote, 0

    def value(self, depth: int) -> Any:
        self._skip_blanks()
        if not depth:
            raise ValueError("the arguments are nested too deeply")
        if self._takes("{"):
            return dict(self._items("}", lambda: (self._match(_KEY), self.value(depth - 1))))
        if self._takes("["):
            return self._items("]", lambda: self.value(depth - 1))
        if self._takes(self._quote):
            end = self._text.find(self._quote, self.place)
            if end < 0:
                raise ValueError("a text is not closed")
            start, self.place = self.place, end + len(self._quote)
            return self._text[start:end]
        word = self._match(_SCALAR).strip()
        return _WORDS[word] if word in _WORDS else json.loads(word)

    def _items(self, closing: str, read: Any) -> list[Any]:
        items: list[Any] = []
        while True:
            self._skip_blanks()
            if self._takes(closing):
                return items
            if items and not self._takes(","):
                raise ValueError(f"a comma or {closing} is missing")
            items.append(read())

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self.place)
        if found is None:
            raise ValueError(f"a key or a value is missing at {self._text[self.place : self.place + 20]!r}")
        self.place = found.end()
        return found[1]

    def _takes(self, text: str) -> bool:
        is_next = self._text.startswith(text, self.place)
        self.place += len(text) * is_next
        return is_next

    def _skip_blanks(self) -> None:
        while self.place < len(self._text) and self._text[self.place].isspace():
            self.place += 1
