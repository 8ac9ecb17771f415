"""A tool that answers queries with a function of the user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from midthought.errors import SettingsError
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter


class QueryTool(Tool):
    """`query(query)`: the answer of a function, plain or `async`, to a query. Raises `SettingsError` for other sources.

    Examples:
        >>> QueryTool({"Ada": "Ada Lovelace wrote a program."}.__getitem__).execute(query="Ada")
        'Ada Lovelace wrote a program.'
    """

    def __init__(
        self,
        source: Callable[[str], Any],
        *,
        name: str = "query",
        description: str = "Looks up what is known about a question, a name or a subject.",
    ) -> None:
        if not callable(source):
            raise SettingsError(
                f"QueryTool takes a function of the query, not a {type(source).__name__}; for an environment use "
                "EnvironmentStepTool(env)"
            )
        self.definition = ToolDefinition(name, description, [ToolParameter("query", "string", "What to look up.")])
        self._answer = source

    def execute(self, *, query: str) -> str | ToolOutput | Awaitable[str | ToolOutput]:
        """Calls the function. Raises ValueError, which the model reads, if the query is empty."""
        if not query.strip():
            raise ValueError("query is empty")
        return self._answer(query)
