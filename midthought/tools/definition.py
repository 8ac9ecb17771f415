"""What a tool is: its definition, as the model is told of it, and the class that users extend.

Knows nothing of how a call is written (call formats) or when it runs (schedule).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midthought.types import Task


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """One parameter of a tool. `type` is a JSON Schema type: string, integer, number, boolean, array or object.

    `default` is told to the model and filled in where an optional argument is left out; None means no default.
    `schema` is the parameter's own JSON Schema where `type` cannot say it all (`items`, `properties`, `pattern`, …); it
    then stands in place of `type`.

    >>> words = ToolParameter("words", "array", "What to count.", schema={"type": "array", "items": {"type": "string"}})
    >>> words.json_schema()
    {'type': 'array', 'items': {'type': 'string'}, 'description': 'What to count.'}
    """

    name: str
    type: str
    description: str
    required: bool = True
    enum: Sequence[Any] | None = None
    default: Any = None
    schema: Mapping[str, Any] | None = None

    def json_schema(self) -> dict[str, Any]:
        """This parameter's entry under `properties`."""
        schema: dict[str, Any] = {"type": self.type} if self.schema is None else dict(self.schema)
        schema["description"] = self.description
        if self.enum is not None:
            schema["enum"] = list(self.enum)
        if self.default is not None:
            schema["default"] = self.default
        return schema


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool's name, what it is for, and its parameters, in order.

    `schema` is the JSON Schema of the whole arguments object where somebody else wrote it (an MCP server); it is then
    what arguments are checked against, and `parameters` says the same for readers.
    """

    name: str
    description: str
    parameters: Sequence[ToolParameter] = ()
    schema: Mapping[str, Any] | None = None

    def parameters_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments object. Without a `schema`, arguments that are not listed are refused."""
        if self.schema is not None:
            return dict(self.schema)
        return {
            "type": "object",
            "properties": {parameter.name: parameter.json_schema() for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.required],
            "additionalProperties": False,
        }

    def json_schema(self) -> dict[str, Any]:
        """The definition in the shape that OpenAI's `tools` and chat templates take."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters_schema()}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool gives back: the words that the model reads, and JSON values beside them for rewards and metrics."""

    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolEpisode:
    """The episode that a stateful tool is opened for."""

    task: Task
    seed: int = 0
    """The episode's own seed: draws made from it are the same when the run is repeated."""
    environment: Any = None
    """The `BaseEnvironment` that the episode plays; None if it has none."""


class Tool(ABC):
    """Something that the model can call. Extend it: set `definition`, write `execute`.

    >>> class Shout(Tool):
    ...     definition = ToolDefinition("shout", "Says it louder.", [ToolParameter("text", "string", "What to say.")])
    ...     pure = True
    ...     def execute(self, text: str) -> str:
    ...         return text.upper()
    >>> Shout().execute(text="hello")
    'HELLO'
    """

    definition: ToolDefinition
    """A class attribute, or set in `__init__`."""
    pure: bool = False
    """True where, as long as a rollout goes on, equal arguments give equal results and running it changes nothing. Equal
    calls are then run once for all episodes that ask."""
    timeout_seconds: float | None = None
    """How long one call may take, retries included; None: as long as the tool executor says."""
    max_concurrency: int | None = None
    """How many calls of this tool a tool executor runs at once; None: as many as of all tools. Set it where
    calls compute rather than wait: more at once than there are processors only brings each nearer to its deadline."""
    retries: int | None = None
    """How often a call that raised is run again; setting it says that this does no harm. None: a pure tool as often as
    the tool executor says, any other not at all."""

    def for_task(self, task: Task) -> Tool:
        """The instance that answers the calls of this task's episodes; by default the tool itself.

        A tool that depends on the task (feedback on its problem, say) is not `pure`.
        """
        return self

    def open(self, episode: ToolEpisode) -> Tool | Awaitable[Tool]:
        """Returns the tool that answers the calls of this episode; by default itself, for tools without state.

        A stateful tool overrides this: it returns a new object with the state of one episode. It is called once per
        episode, before the first call of the tool and within that call's deadline, plain (in a thread) or `async`. The calls
        of the opened tool run one after the other, in order. What is registered is shared by all episodes: keep no state in
        it. A stateful tool is not `pure`.
        """
        return self

    def close(self) -> Awaitable[None] | None:
        """Releases what `open` acquired, plain or `async`; called once on the opened tool when its episode has ended.

        The episode has its reward then, or has failed, or was cancelled. A plain `execute` that missed its deadline may still
        be running.
        """
        return None

    @property
    def is_stateful(self) -> bool:
        """Whether every episode has an object of its own: the class overrides `open`."""
        return type(self).open is not Tool.open

    @abstractmethod
    def execute(self, *_: Any, **parameters: Any) -> str | ToolOutput | Awaitable[str | ToolOutput]:
        """Run with validated arguments, always given by name (`*_` only lets type checkers accept any signature).

        A plain function runs in a thread, several at a time, so it must be safe for threads; past its deadline nobody
        waits for it, but nothing can stop it. An `async def` runs on an event loop of the tool's own and must not block it,
        or the tool's other calls wait; past its deadline it is cancelled. Raise to fail: the model reads the exception's
        first words. ConnectionError or TimeoutError says that whatever the tool asks is gone: after several in a row the
        tool executor leaves the tool alone for a while.
        """
