"""Answers from what the user gives: a function, a mapping of names to texts, or texts. No network, no files."""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from midthought.errors import SettingsError
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter

NOTHING_FOUND = "Nothing found."
_WORD = re.compile(r"\w+")


class QueryTool(Tool):
    """`query(query)`: what a source says to a query.

    `source` is a function of the query, plain or `async`; or texts, in a mapping by name or in a list. A query that is
    a name gets that text alone; otherwise texts are found by the words that they share with the query, rare words
    counting more. At most `max_results` are given, and `metadata["found"]` holds their names or numbers, best first.

    SettingsError where there is no text, or `max_results` is less than 1.

    >>> tool = QueryTool({"Ada": "Ada Lovelace wrote a program.", "Alan": "Alan Turing broke a cipher."})
    >>> tool.execute(query="Who broke the cipher?")
    ToolOutput(text='[1] Alan: Alan Turing broke a cipher.', metadata={'found': ['Alan']})
    """

    def __init__(
        self,
        source: Callable[[str], Any] | Mapping[str, str] | Iterable[str],
        *,
        name: str = "query",
        description: str = "Looks up what is known about a question, a name or a subject.",
        max_results: int = 3,
    ) -> None:
        self.definition = ToolDefinition(name, description, [ToolParameter("query", "string", "What to look up.")])
        self.pure = not callable(source)
        self._answer: Callable[[str], Any] = source if callable(source) else _Texts(source, max_results).find

    def execute(self, *, query: str) -> str | ToolOutput | Awaitable[str | ToolOutput]:
        """Ask the source. Raises ValueError, which the model reads, where the query is empty."""
        if not query.strip():
            raise ValueError("query is empty")
        return self._answer(query)


class _Texts:
    """Texts, and which of them holds a word."""

    def __init__(self, source: Mapping[str, str] | Iterable[str], max_results: int) -> None:
        if isinstance(source, str):
            raise SettingsError("QueryTool takes a function, a mapping or a list of texts, not one text")
        if max_results < 1:
            raise SettingsError(f"max_results must be 1 or more, not {max_results}")
        self._max_results = max_results
        self._names = [str(name) for name in source] if isinstance(source, Mapping) else None
        self._texts = [str(text) for text in (source.values() if isinstance(source, Mapping) else source)]
        if not self._texts:
            raise SettingsError("QueryTool got no text; give it at least one")
        self._by_name = {_alike(name): number for number, name in enumerate(self._names or [])}
        self._holders: dict[str, list[int]] = {}
        for number in range(len(self._texts)):
            for word in _words(self._told(number)):
                self._holders.setdefault(word, []).append(number)

    def find(self, query: str) -> ToolOutput:
        named = self._by_name.get(_alike(query))
        numbers = self._best(query) if named is None else [named]
        lines = [f"[{place}] {self._told(number)}" for place, number in enumerate(numbers, 1)]
        found = [self._names[number] if self._names else number for number in numbers]
        return ToolOutput("\n".join(lines) or NOTHING_FOUND, {"found": found})

    def _told(self, number: int) -> str:
        return f"{self._names[number]}: {self._texts[number]}" if self._names else self._texts[number]

    def _best(self, query: str) -> list[int]:
        scores: dict[int, float] = defaultdict(float)
        for word in sorted(_words(query)):
            holders = self._holders.get(word, ())
            for number in holders:
                scores[number] += math.log1p(len(self._texts) / len(holders))
        return heapq.nsmallest(self._max_results, scores, key=lambda number: (-scores[number], number))


def _alike(name: str) -> str:
    return " ".join(name.casefold().split())


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
