"""The parsers of the call formats, and one that a user writes with a single method."""

from __future__ import annotations

import re

import pytest
from calling import event
from test_call_formats import WRITINGS, Q

from midthought.tools.call_formats import ActionParser, ParsedTurnFormat
from midthought.tools.definition import ToolDefinition
from midthought.tools.parsers import (
    FunctionCallingParser,
    HermesParser,
    InThoughtParser,
    JSONActionParser,
    ReActActionParser,
    find_call_format,
)
from midthought.types import ParsedAction, ToolOutcome

PARSERS = [InThoughtParser, JSONActionParser, ReActActionParser, FunctionCallingParser, HermesParser]


class Angles(ActionParser):
    """What a user writes: one method."""

    def parse_all(self, text: str) -> list[ParsedAction]:
        return [
            ParsedAction(tool_name=name[1], parameters={}, raw_text=name[0], success=True)
            for name in re.finditer(r"<<(\w+)>>", text)
        ]


class FirstLine(ActionParser):
    """The other method alone."""

    def parse(self, text: str) -> ParsedAction:
        line = text.partition("\n")[0]
        name = line.removeprefix("run ") if line.startswith("run ") else None
        error = None if name in ("look", "see") else "nothing to run"
        return ParsedAction(tool_name=name, parameters={}, raw_text=line, success=error is None, error=error)


@pytest.mark.parametrize(("parser_class", "name"), [*zip(PARSERS, WRITINGS, strict=True)])
def test_a_built_in_parser_finds_calls_and_has_the_methods_of_its_call_format(
    parser_class: type[ActionParser], name: str
) -> None:
    parser, text = parser_class(), WRITINGS[name].call("look", Q)
    first = parser.parse(f"So:\n{text}\n")
    assert (first.tool_name, first.parameters, first.success, first.error) == ("look", {"q": 1}, True, None)
    assert parser.parse_all(f"So:\n{text}\n\n{text}") == [first, first]
    nothing = parser.parse("It was Ada.")
    assert (nothing.tool_name, nothing.raw_text, nothing.error) == (None, "It was Ada.", "no call found")
    assert parser.call_format.parse_all(parser.render_call("look", {"q": 1}))[0].parameters == {"q": 1}
    definitions = [ToolDefinition("look", "Looks.")]
    assert parser.instructions(definitions) == parser.call_format.instructions(definitions)
    assert type(parser.call_format) is type(find_call_format(name)) and parser.call_format.name == name


def test_one_method_is_enough_and_the_other_follows() -> None:
    assert Angles().parse("a <<see>>").tool_name == "see"
    assert Angles().parse("nothing").error == "no call found"
    assert [action.tool_name for action in FirstLine().parse_all("run look\nrun see")] == ["look"]
    assert FirstLine().parse_all("hello") == []
    (action,) = FirstLine().parse_all("run away")
    assert (action.tool_name, action.success) == ("away", False)
    with pytest.raises(TypeError, match="ActionParser defines neither parse nor parse_all"):
        ActionParser()


def test_a_users_parser_is_asked_when_the_turn_has_ended_and_says_what_it_can() -> None:
    call_format = Angles().call_format
    assert isinstance(call_format, ParsedTurnFormat) and not call_format.stops_at_call
    scanner = call_format.scanner(in_thought=True)
    assert [scanner.feed(piece) for piece in ("<", "<lo", "ok>> and <", "<see>>")] == [False] * 4
    assert [action.tool_name for action in scanner.take()] == ["look", "see"]
    scanner.feed("<<lo")
    scanner.resume()
    scanner.feed("ok>> <<see>>")
    assert [action.tool_name for action in scanner.take()] == ["see"]
    assert call_format.render_results([event("no luck", ToolOutcome.RAISED)]) == "no luck"
    assert call_format.instructions([ToolDefinition("look", "Looks.")]) == "Tools:\n- look: Looks."
    with pytest.raises(NotImplementedError, match="Angles only reads calls; define its render_call"):
        call_format.render_call("look", {})
