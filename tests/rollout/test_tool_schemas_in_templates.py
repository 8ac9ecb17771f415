"""Types of tool parameters through the published chat templates: nothing of Python is in the prompt."""

import dataclasses
import datetime
import enum
import re
from typing import Annotated, Any, Literal, Optional

import pytest
import typing_extensions
from published_templates import PUBLISHED
from pydantic import BaseModel, Field

from midthought import tool
from midthought.tokenization import Renderer
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.definition import ToolDefinition, ToolParameter
from midthought.tools.registry import ToolRegistry


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Near(typing_extensions.TypedDict):
    place: str
    radius: typing_extensions.NotRequired[float | None]


class Far(typing_extensions.TypedDict, total=False):
    place: typing_extensions.Required[str]
    near: Near | None


@dataclasses.dataclass
class Span:
    start: int
    end: int | None = None
    far: Far | None = None


class Query(BaseModel):
    words: list[str] | None = None
    color: Color | None = Field(None, description="Which color.")


@tool
def look_up(
    text: str | None,
    far: Far,
    number: int | float | None = 3,
    level: Optional[Literal["low", "high"]] = "low",  # noqa: UP045
    color: Color | None = Color.RED,
    words: list[str | None] | None = None,
    rates: dict[str, float | None] | None = None,
    pair: tuple[int, str | None] | None = None,
    day: Annotated[datetime.date | None, "Which day."] = None,
    near: Near | None = None,
    span: Span | None = None,
    query: Query | None = None,
) -> str:
    """Looks it up."""
    return repr((text, far, color, near, span, query))


BY_HAND = ToolDefinition(
    "look_up",
    "Looks it up.",
    [
        ToolParameter("text", "string", "What.", schema={"type": ["string", "null"]}),
        ToolParameter("level", "string", "How.", schema={"enum": ["low", None]}),
        ToolParameter("place", "object", "Where.", schema={"anyOf": [{"type": "null"}, {"type": "object"}]}),
    ],
)
PLACE = {"title": "Place", "type": "object", "properties": {"city": {"type": "string", "title": "City"}}}
OF_A_SERVER = {
    "$defs": {"Place": PLACE},
    "properties": {
        "place": {"$ref": "#/$defs/Place"},
        "name": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Name"},
    },
    "type": "object",
}
OF_PYTHON = re.compile(r"None|True|False|Undefined|\['|\{'|'null'|NoneType|Optional|\$ref|stringnull")


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: published.name)
def test_parameters_that_may_be_null_are_written_by_every_template_without_python(published):
    """Compared with a tool of one plain parameter, because templates have examples in Python of their own."""
    plain = ToolDefinition("look_up", "Looks it up.", [ToolParameter("text", "string", "What.")])
    chosen = choose_call_format(Renderer(published.tokenizer()), [plain])
    describes_tools = getattr(chosen.call_format, "describes_tools", False)

    def python_in(definition: ToolDefinition) -> list[str]:
        renderer = chosen.renderer.with_tools([definition.json_schema()]) if describes_tools else chosen.renderer
        said = [{"role": "user", "content": "Hi."}]
        return OF_PYTHON.findall(renderer.chat_template.text(said, add_generation_prompt=True))

    server: Any = OF_A_SERVER
    for definition in (look_up.definition, BY_HAND, ToolDefinition("look_up", "Looks it up.", server)):
        assert python_in(definition) == python_in(plain)


def test_null_is_accepted_exactly_if_the_type_has_it() -> None:
    registry = ToolRegistry([look_up])
    far = {"place": "a", "near": {"place": "b", "radius": None}}
    given = {"text": None, "far": far, "span": {"start": 1, "far": far}, "query": {"color": None}}
    is_ok, found = registry.execute_tool("look_up", **given)
    assert is_ok and found == repr((None, far, Color.RED, None, Span(1, None, far), Query(color=None)))
    for name in ("number", "level", "color", "words", "rates", "pair", "day", "near", "span", "query"):
        assert registry.execute_tool("look_up", text="a", far=far, **{name: None})[0]
    for arguments, words in (
        ({"text": 1}, "argument 'text' should be a string or null, got 1"),
        ({"far": None}, "argument 'far' should be an object, got None"),
        ({"color": "green"}, "argument 'color' should be one of 'red', 'blue' or null, got 'green'"),
        ({"near": {"place": "a", "x": 1}}, "has an unknown key 'x'; there is: place, radius"),
        ({"day": "soon"}, "argument 'day': Input should be a valid date"),
    ):
        is_ok, message = registry.execute_tool("look_up", **{"text": "a", "far": far, **arguments})
        assert not is_ok and words in message
