"""Answers from a function."""

from __future__ import annotations

import pytest

from midthought.errors import SettingsError
from midthought.tools.builtin.own_objects import QueryTool
from midthought.tools.registry import ToolRegistry


def test_a_function_answers_plain_or_async_and_an_empty_query_is_an_error_that_the_model_reads() -> None:
    async def later(query: str) -> str:
        return f"later: {query}"

    registry = ToolRegistry([QueryTool(str.upper), QueryTool(later, name="later", description="Later.")])
    assert registry.execute_tool("query", query="tide") == (True, "TIDE")
    assert registry.execute_tool("later", query="tide") == (True, "later: tide")
    assert registry.execute_tool("query", query=" \n") == (False, "Tool execution error: query is empty")


@pytest.mark.parametrize("source", [["a text"], {"a": "text"}, "text"])
def test_what_is_no_function_is_refused(source: object) -> None:
    with pytest.raises(SettingsError, match=f"a function of the query, not a {type(source).__name__}"):
        QueryTool(source)  # type: ignore[arg-type]
