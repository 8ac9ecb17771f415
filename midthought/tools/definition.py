"""What a tool is: its definition, as the model is told of it, and the class that users extend.

Knows nothing of how a call is written (notations) or when it runs (schedule).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """One parameter of a tool. `type` is a JSON Schema type: string, integer, number, boolean, array or object.

    `default` is told to the model and filled in where an optional argument is left out; None means no default.
    """

    name: str
    type: str
    description: str
    required: bool = True
    enum: Sequence[Any] | None = None
    default: Any = None

    def json_schema(self) -> dict[str, Any]:
        """This parameter's entry under `properties`."""
        schema: dict[str, Any] = {"type": self.type, "description": self.description}
        if self.enum is not None:
            schema["enum"] = list(self.enum)
        if self.default is not None:
            schema["default"] = self.default
        return schema


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool's name, what it is for, and its parameters, in order."""

    name: str
    description: str
    parameters: Sequence[ToolParameter] = ()

    def parameters_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments object. Arguments that are not listed are refused."""
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
    """True where equal arguments always give equal results and running it changes nothing."""

    @abstractmethod
    def execute(self, *_: Any, **parameters: Any) -> str | ToolOutput | Awaitable[str | ToolOutput]:
        """Run with validated arguments, always given by name (`*_` only lets type checkers accept any signature).

        May be `async def`. A plain function runs in a thread, several at a time, so it must be safe for threads.
        Raise to fail: the model reads the exception's first words.
        """
