"""Answers from a function, a mapping or a list."""

from __future__ import annotations

import pytest

from midthought.errors import SettingsError
from midthought.tools.builtin.query import QueryTool
from midthought.tools.definition import ToolOutput
from midthought.tools.registry import ToolRegistry

PEOPLE = {
    "Ada Lovelace": "She wrote a program for the engine of Charles Babbage.",
    "Charles Babbage": "He designed an engine that calculates.",
    "Ünal": "Wrote songs about the sea.",
}


def test_a_function_answers_plain_or_async() -> None:
    async def later(query: str) -> str:
        return f"later: {query}"

    registry = ToolRegistry([QueryTool(str.upper), QueryTool(later, name="later", description="Later.")])
    assert registry.execute_tool("query", query="tide") == (True, "TIDE")
    assert registry.execute_tool("later", query="tide") == (True, "later: tide")
    assert registry.get("query").pure is False  # type: ignore[union-attr]


def test_a_name_gets_its_text_alone_however_it_is_written() -> None:
    tool = QueryTool(PEOPLE)
    assert tool.execute(query="  charles   BABBAGE ") == ToolOutput(
        "[1] Charles Babbage: He designed an engine that calculates.", {"found": ["Charles Babbage"]}
    )
    assert tool.execute(query="ünal") == ToolOutput("[1] Ünal: Wrote songs about the sea.", {"found": ["Ünal"]})
    assert tool.pure


def test_rare_words_count_more_and_the_best_come_first() -> None:
    texts = ["the sea the sea", "the tide", "a tide clock", "the clock of the sea", "nothing"]
    tool = QueryTool(texts, max_results=2)
    # "the" occurs in 3 texts, "tide" in 2, "clock" in 2
    assert tool.execute(query="the tide clock?").metadata == {"found": [2, 1]}  # type: ignore[union-attr]
    assert tool.execute(query="Tide").text == "[1] the tide\n[2] a tide clock"  # type: ignore[union-attr]
    assert tool.execute(query="whale!") == ToolOutput("Nothing found.", {"found": []})


def test_an_empty_query_is_an_error_that_the_model_reads() -> None:
    registry = ToolRegistry([QueryTool(PEOPLE)])
    assert registry.execute_tool("query", query=" \n") == (False, "Tool execution error: query is empty")


@pytest.mark.parametrize(
    ("source", "max_results", "words"),
    [([], 3, "has no text"), ("one text", 3, "not one text"), (["a"], 0, "max_results must be 1")],
)
def test_a_source_without_texts_is_refused(source: object, max_results: int, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        QueryTool(source, max_results=max_results)  # type: ignore[arg-type]
