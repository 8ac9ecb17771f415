"""The description of tools in the system prompt of every call format."""

from __future__ import annotations

from midthought.tools.call_formats import describe_tools, example_parameters
from midthought.tools.definition import ToolDefinition, ToolParameter

WORDS = {"type": "array", "items": {"type": "string"}}
LOOK = ToolDefinition(
    "look",
    "Looks something up.",
    [
        ToolParameter("query", "string", "What to look for."),
        ToolParameter("k", "integer", "How many.", required=False, default=3),
        ToolParameter("kind", "string", "Wo überall.", enum=["Bücher", "Filme"]),
        ToolParameter("words", "array", "What to count.", schema=WORDS),
        ToolParameter("mode", "string", "How.", schema={"enum": ["deep", None]}),
    ],
)


def test_a_tool_is_described_in_lines() -> None:
    assert describe_tools([LOOK, ToolDefinition("rooms", "Names all rooms.")]).splitlines() == [
        "Tools:",
        "- look: Looks something up.",
        "  - query (string): What to look for.",
        "  - k (integer, optional, default 3): How many.",
        '  - kind (string, one of "Bücher", "Filme"): Wo überall.',
        '  - words ({"type": "array", "items": {"type": "string"}}): What to count.',
        '  - mode (string, one of "deep", null): How.',
        "- rooms: Names all rooms.",
    ]


def test_an_example_holds_what_is_required_each_with_a_value_of_its_kind() -> None:
    assert example_parameters(LOOK) == {"query": "...", "kind": "Bücher", "words": [], "mode": "deep"}
    kinds = ["string", "integer", "number", "boolean", "array", "object"]
    values = example_parameters(ToolDefinition("x", "", [ToolParameter(kind, kind, "") for kind in kinds]))
    assert list(values.values()) == ["...", 1, 1.5, True, [], {}]
