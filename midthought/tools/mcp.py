"""Tools of an MCP server, by the official SDK (extra `mcp`): a server that is started here, or one behind a URL.

Knows neither the transport nor any event loop (`mcp_connection`), no registry and no schedule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from midthought.errors import MissingExtraError, SettingsError
from midthought.tools.arguments import TYPES, ArgumentsChecker
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter
from midthought.tools.mcp_connection import Connection, McpServerError, Remote, Started

_MAX_RESULT_CHARS = 100_000
"""More of one result is cut here; what a model reads is cut in tokens by the rollout loop."""
_MAX_DEPTH = 64
"""Of lists and objects in arguments. Servers' JSON readers give up at some 200, and would never answer."""
_MAX_REFERENCES = 2
"""How often one reference inside another is written out for readers."""
_NOT_IN_A_NAME = re.compile(r"[^\w.-]")


def mcp_tools(
    *,
    command: Sequence[str] | None = None,
    url: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    headers: Mapping[str, str] | None = None,
    prefix: str = "",
    timeout_seconds: float = 30.0,
    start_seconds: float = 60.0,
) -> McpTools:
    """Connect to an MCP server and list its tools: `with mcp_tools(command=["uvx", "some-server"]) as tools: ...`.

    `command` starts a server (stdio) in `folder`; of our environment variables it sees only HOME, PATH and the like, and
    those in `environment`. `url` names a running one (streamable HTTP), `headers` are sent with every request.
    `prefix` is put before the tools' names, of which characters that a call cannot hold become `_`. One call may
    take `timeout_seconds`, connecting `start_seconds`.

    SettingsError where not one of `command` and `url` is given; McpServerError where the server cannot be reached, or
    the schema of a tool is none or refers to what is not in it; MissingExtraError without the SDK.
    """
    if (command is None) == (url is None):
        raise SettingsError("mcp_tools takes either command=[...] (starts a server) or url=... (a running one)")
    if isinstance(command, str) or (command is not None and not command):
        raise SettingsError(f"mcp_tools: command must be a list like ['python', 'server.py'], not {command!r}")
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise MissingExtraError("mcp", "mcp") from None
    server = Started(command, environment, folder) if command is not None else Remote(str(url), headers)
    connection = Connection(server, timeout_seconds, start_seconds)
    try:
        return McpTools(connection, prefix)
    except BaseException:  # a list of tools that makes no sense
        connection.close()
        raise


class McpTools(Sequence[Tool]):
    """The tools of one server, which ends with the `with` block or `close()`."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._tools = [McpTool(connection, listed, prefix) for listed in connection.listed]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, and the server where it was started here. Calls that are running fail."""
        self._connection.close()

    def __len__(self) -> int:
        return len(self._tools)

    def __getitem__(self, index: Any) -> Any:
        return self._tools[index]

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools)


class McpTool(Tool):
    """One tool of a server. Texts of the result are its words, everything else in it is named in brackets.

    `metadata["structured"]` is the result's structured content, where there is some and it is not too large. Raises
    RuntimeError where the server says that the call failed, ConnectionError where it is gone, ValueError where arguments
    cannot be sent.
    """

    def __init__(self, connection: Connection, listed: Any, prefix: str) -> None:
        schema = listed.input_schema
        try:
            ArgumentsChecker(schema)
        except SettingsError as error:
            raise McpServerError(f"MCP tool {listed.name!r}: {error}") from None
        required = schema.get("required", ())
        self.definition = ToolDefinition(
            prefix + _NOT_IN_A_NAME.sub("_", listed.name),
            listed.description or listed.title or listed.name,
            [parameter_of(name, part, schema, name in required) for name, part in schema.get("properties", {}).items()],
            schema=schema,
        )
        self.timeout_seconds = connection.timeout_seconds
        self._name = listed.name
        self._connection = connection

    async def execute(self, /, **parameters: Any) -> ToolOutput:
        _require_sendable(parameters)
        result = await self._connection.call(self._name, parameters)
        words = "\n".join(map(_told, result.content))
        structured = None if result.structured_content is None else json.dumps(result.structured_content)
        if not result.content and structured is not None:
            words = structured
        if len(words) > _MAX_RESULT_CHARS:
            words = words[:_MAX_RESULT_CHARS] + "…"
        if result.is_error:
            raise RuntimeError(words or "the tool failed and did not say why")
        if structured is None or len(structured) > _MAX_RESULT_CHARS:
            return ToolOutput(words)
        return ToolOutput(words, {"structured": result.structured_content})


def parameter_of(name: str, schema: Any, whole: Mapping[str, Any], is_required: bool) -> ToolParameter:
    """A property of the arguments' schema for readers: references are written out, some levels deep, titles left out.
    What arguments are checked against is the server's `whole` schema."""
    told = _without_references(schema, whole, _MAX_REFERENCES)
    told = told if isinstance(told, dict) else {}  # `true` is a schema, too
    description, default = told.pop("description", ""), told.pop("default", None)
    is_plain = told.get("type") in [*TYPES] and told.keys() <= {"type", "enum"}
    return ToolParameter(
        name,
        _type_word(told),
        str(description),
        required=is_required,
        enum=told.get("enum") if is_plain else None,
        default=default,
        schema=None if is_plain else told,
    )


def _without_references(schema: Any, whole: Mapping[str, Any], num_left: int) -> Any:
    if isinstance(schema, list):
        return [_without_references(part, whole, num_left) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    told = dict(schema)
    if isinstance(reference := told.pop("$ref", None), str):
        meant = _looked_up(reference, whole) if num_left else {}
        return {**_without_references(meant, whole, num_left - 1), **_without_references(told, whole, num_left)}
    if isinstance(told.get("title"), str):
        del told["title"]
    return {key: _without_references(part, whole, num_left) for key, part in told.items()}


def _looked_up(reference: str, whole: Any) -> Mapping[str, Any]:
    """`#/$defs/name`: the definition of that name; an empty schema for what is not inside."""
    steps = reference.removeprefix("#/").split("/")
    for step in steps:
        whole = whole.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(whole, Mapping) else None
    return whole if isinstance(whole, Mapping) else {}


def _type_word(schema: Mapping[str, Any]) -> str:
    alternatives = [part for key in ("anyOf", "oneOf") for part in schema.get(key, ()) if isinstance(part, Mapping)]
    words = [word for part in (schema, *alternatives) for word in _as_list(part.get("type"))]
    return next((word for word in words if word in TYPES), "object" if "properties" in schema else "string")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _require_sendable(parameters: Mapping[str, Any]) -> None:
    """What the SDK cannot write, or the server not read, would break the connection for all."""
    try:
        json.dumps(parameters, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the arguments cannot be sent: {type(error).__name__}") from None
    level, depth = list(parameters.values()), 0
    while level := [part for part in level if isinstance(part, list | dict)]:
        level = [inner for part in level for inner in (part.values() if isinstance(part, dict) else part)]
        depth += 1
        if depth > _MAX_DEPTH:
            raise ValueError(f"the arguments are nested too deeply, at most {_MAX_DEPTH} levels")


def _told(block: Any) -> str:
    """A piece of a result as the model reads it."""
    if block.type == "text":
        return block.text
    if block.type in ("image", "audio"):
        return f"[{block.type}: {block.mime_type}]"
    if block.type == "resource_link":
        return f"[link: {block.uri}]"
    text = getattr(block.resource, "text", None)
    return f"[resource: {block.resource.uri}]" if text is None else text
