"""A tool that answers queries from a source of the user: a function, named texts, or a list of texts."""

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
    """`query(query)`: the answer of a source to a query.

    `source` is a function of the query, plain or `async`; or texts, as a mapping by name or a list. A query that equals a
    name returns only that text; otherwise texts are ranked by the words that they share with the query, weighted by rarity.
    Returns at most `max_results` texts; `metadata["found"]` contains their names or numbers, best first.

    Raises `SettingsError` if there is no text, or `max_results` is less than 1.

    Examples:
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
        """Queries the source. Raises ValueError, which the model reads, if the query is empty."""
        if not query.strip():
            raise ValueError("query is empty")
        return self._answer(query)


class _Texts:
    """Texts with an inverted index of their words."""

    def __init__(self, source: Mapping[str, str] | Iterable[str], max_results: int) -> None:
        if not isinstance(source, Iterable):
            raise SettingsError(
                f"QueryTool takes a function, a mapping or a list of texts, not a {type(source).__name__}; for an "
                "environment use EnvironmentStepTool(env)"
            )
        if isinstance(source, str):
            raise SettingsError("QueryTool takes a function, a mapping or a list of texts, not one text")
        if max_results < 1:
            raise SettingsError(f"max_results must be 1 or more, not {max_results}")
        self._max_results = max_results
        self._names = [str(name) for name in source] if isinstance(source, Mapping) else None
        self._texts = [str(text) for text in (source.values() if isinstance(source, Mapping) else source)]
        if not self._texts:
            raise SettingsError("QueryTool has no text; give it at least one")
        self._by_name = {_normalized(name): number for number, name in enumerate(self._names or [])}
        self._texts_with: dict[str, list[int]] = {}
        for number in range(len(self._texts)):
            for word in _words(self._entry(number)):
                self._texts_with.setdefault(word, []).append(number)

    def find(self, query: str) -> ToolOutput:
        named = self._by_name.get(_normalized(query))
        numbers = self._best(query) if named is None else [named]
        lines = [f"[{place}] {self._entry(number)}" for place, number in enumerate(numbers, 1)]
        found = [self._names[number] if self._names else number for number in numbers]
        return ToolOutput("\n".join(lines) or NOTHING_FOUND, {"found": found})

    def _entry(self, number: int) -> str:
        return f"{self._names[number]}: {self._texts[number]}" if self._names else self._texts[number]

    def _best(self, query: str) -> list[int]:
        scores: dict[int, float] = defaultdict(float)
        for word in sorted(_words(query)):
            numbers = self._texts_with.get(word, ())
            for number in numbers:
                scores[number] += math.log1p(len(self._texts) / len(numbers))
        return heapq.nsmallest(self._max_results, scores, key=lambda number: (-scores[number], number))


def _normalized(name: str) -> str:
    return " ".join(name.casefold().split())


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
