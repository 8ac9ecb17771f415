"""A tool: its definition, which the model reads, and the class that users extend.

Does not depend on how a call is written (call formats) or when it runs (executor).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from midthought.errors import SettingsError
from midthought.tools.schemas import NAMES, OF_DATA, OF_NAMES, allowed_types, template_schema

if TYPE_CHECKING:
    from midthought.types import Task


_FORMS: dict[str, tuple[type, ...]] = {
    "type": (str, type, list, tuple),
    "enum": (list, tuple),
    "required": (list, tuple),
    "properties": (Mapping,),
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), (list, tuple)),
}
"""What keywords of a JSON Schema must be, so that it can be described; the tool registry checks everything else."""


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """One parameter of a tool. `type` is a JSON Schema type: string, integer, number, boolean, array or object; or the Python
    type of that.

    `default` is shown to the model and used if an optional argument is missing; None means no default. `schema` is the
    parameter's full JSON Schema if `type` is not enough (`items`, `properties`, `pattern`, …); it replaces `type`.

    Examples:
        >>> words = ToolParameter("words", "array", "What to count.", schema={"type": "array", "items": {"type": "string"}})
        >>> words.json_schema()
        {'type': 'array', 'items': {'type': 'string'}, 'description': 'What to count.'}
    """

    name: str
    type: str
    description: str = ""
    required: bool = True
    enum: Sequence[Any] | None = None
    default: Any = None
    schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.type, type):  # `str` for "string"
            object.__setattr__(self, "type", NAMES.get(self.type, self.type.__name__))

    def json_schema(self) -> dict[str, Any]:
        """Returns this parameter's entry under `properties`."""
        schema: dict[str, Any] = {"type": self.type} if self.schema is None else dict(self.schema)
        schema["description"] = self.description
        if self.enum is not None:
            schema["enum"] = list(self.enum)
        if self.default is not None:
            schema["default"] = self.default
        return schema


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool's name, its purpose, and its parameters, in order. `parameters` may also be the JSON Schema of the arguments object.

    That schema is then in `schema`, also of a copy (`dataclasses.replace`): arguments are checked against it, and `parameters`
    only describes them in prompts.
    """

    name: str
    description: str
    parameters: Sequence[ToolParameter] = ()
    schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        given: Any = self.parameters
        if isinstance(given, Mapping) and isinstance(given.get("properties"), Mapping):
            _require_forms(self.name, given)
            required, properties = given.get("required", ()), template_schema(given)["properties"]
            found = [_from_schema(name, each, name in required) for name, each in properties.items()]
            object.__setattr__(self, "schema", given)
            object.__setattr__(self, "parameters", found)
            return
        for each in given:
            if not isinstance(each, ToolParameter):
                raise SettingsError(
                    f"tool {self.name!r}: a parameter is {each!r:.80}; give ToolParameter(name, type, description), or the "
                    "JSON Schema of all of them: {'type': 'object', 'properties': {…}, 'required': […]}"
                )

    def parameters_schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of the arguments object. Without a `schema`, unlisted arguments are refused."""
        if self.schema is not None:
            return dict(self.schema)
        return {
            "type": "object",
            "properties": {parameter.name: parameter.json_schema() for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.required],
            "additionalProperties": False,
        }

    def json_schema(self) -> dict[str, Any]:
        """Returns the definition in the format of OpenAI's `tools`, which chat templates also use. In its schema, null is
        `nullable`, several types are `anyOf`, and definitions replace references, because templates write `type` as a text."""
        parameters = template_schema(self.parameters_schema())
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def _require_forms(tool: str, schema: Any) -> None:
    """Raises `SettingsError` for a keyword, at any level, whose value is none that a schema can have."""
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, list | tuple):
            parts += part
        for key, value in part.items() if isinstance(part, Mapping) else ():
            if not isinstance(value, _FORMS.get(key, object)) or (key == "type" and not _are_types(value)):
                raise SettingsError(f"tool {tool!r:.80}: {key!r} is {value!r:.60} in the JSON Schema of its parameters")
            if key in OF_NAMES and isinstance(value, Mapping):
                for name, each in value.items():
                    if not isinstance(each, Mapping | bool):
                        words = f"{name!r:.60} in {key!r} is {each!r:.60}; give the JSON Schema of its values"
                        raise SettingsError(f"tool {tool!r:.80}: {words}")
                parts += value.values()
            elif key not in OF_DATA:
                parts.append(value)


def _are_types(value: Any) -> bool:
    return isinstance(value, str | type) or all(isinstance(each, str | type) for each in value)


def _from_schema(name: str, schema: Mapping[str, Any], is_required: bool) -> ToolParameter:
    """Returns the parameter of a property of a JSON Schema."""
    rest = {key: value for key, value in schema.items() if key not in ("description", "default")}
    kind: Any = rest.get("type")
    if is_other := not isinstance(kind, str | type) or kind == "null":
        names = [each for each in allowed_types(rest) if each != "null"]
        kind = names[0] if names else "object" if "properties" in rest else "string"
    is_plain = not is_other and rest.keys() <= {"type", "enum"}
    return ToolParameter(
        name,
        kind,
        str(schema.get("description", "")),
        required=is_required,
        enum=rest.get("enum") if is_plain else None,
        default=schema.get("default"),
        schema=None if is_plain else rest,
    )


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """Result of a tool: the text for the model, and JSON values for rewards and metrics."""

    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolEpisode:
    """Passed to a stateful tool's `open`: the episode that it is opened for."""

    task: Task
    seed: int = 0
    """The episode's seed: random numbers drawn from it are the same when the run is repeated."""
    environment: Any = None
    """The episode's `BaseEnvironment`, or None."""


class Tool(ABC):
    """A tool that the model can call. Extend it: set `definition`, write `execute`.

    Examples:
        >>> class Shout(Tool):
        ...     definition = ToolDefinition("shout", "Says it louder.", [ToolParameter("text", "string", "What to say.")])
        ...     def execute(self, text: str) -> str:
        ...         return text.upper()
        >>> Shout().execute(text="hello")
        'HELLO'
    """

    definition: ToolDefinition
    """Class attribute, or set in `__init__`, or given to `super().__init__(definition)`."""
    timeout_seconds: float | None = None
    """Deadline of one call; None: that of the tool executor."""
    max_concurrency: int | None = None
    """Limit on simultaneous calls of this tool in a tool executor; None: only the limit of all tools. Set it if calls
    compute rather than wait: more calls than processors only bring each call closer to its deadline."""

    def __init__(self, definition: ToolDefinition | None = None) -> None:
        """Sets the definition; None: it is a class attribute. A subclass with its own `__init__` need not call this."""
        if definition is not None:
            self.definition = definition

    def for_task(self, task: Task) -> Tool:
        """Returns the tool for the calls of this task's episodes; by default itself. Of a tool without `open`, one without it."""
        return self

    def open(self, episode: ToolEpisode) -> Tool | Awaitable[Tool]:
        """Returns the tool for the calls of this episode; by default itself, for tools without state.

        A stateful tool overrides this and returns a new object with the state of one episode. `open` is called once per
        episode, before the first call of the tool and within that call's deadline, plain (in a thread) or `async`. The calls
        of the opened tool run one after the other, in order. The registered object is shared by all episodes: keep no state
        in it.
        """
        return self

    def close(self) -> Awaitable[None] | None:
        """Releases the resources of `open`, plain or `async`. Called once on the opened tool after its episode.

        The episode has its reward, has failed or was cancelled. A plain `execute` that missed its deadline may still run.
        """
        return None

    @property
    def is_stateful(self) -> bool:
        """Whether every episode has its own object, that is, the class overrides `open`."""
        return type(self).open is not Tool.open

    @abstractmethod
    def execute(self, *_: Any, **parameters: Any) -> str | ToolOutput | Awaitable[str | ToolOutput]:
        """Runs the tool with validated keyword arguments (`*_` only lets type checkers accept any signature).

        A plain function runs in a thread, several at once, so it must be thread-safe; it cannot be stopped at its deadline,
        but the caller stops waiting. An `async def` runs on the event loop of all async tools and must not block it, because
        their calls would wait; at its deadline it is cancelled. Raise to fail: the model reads the first 100
        characters of the message.
        """
