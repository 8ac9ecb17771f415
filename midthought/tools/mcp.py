"""Tools of an MCP server, with the official SDK (extra `mcp`): a server that is started here, or one at a URL.

Transport and event loop are in `mcp_connection`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from midthought.config.references import optional
from midthought.errors import McpServerError, SettingsError, near_names
from midthought.http.network import keep_keys
from midthought.tools.arguments import ArgumentsChecker
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput
from midthought.tools.mcp_connection import Connection, Remote, Started
from midthought.tools.schemas import OF_DATA

_MAX_STRUCTURED_CHARS = 100_000
_log = logging.getLogger(__name__)
_NOT_IN_A_NAME = re.compile(r"[^\w.-]")


def mcp_tools(
    *,
    command: Sequence[str] | None = None,
    url: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    headers: Mapping[str, str] | None = None,
    prefix: str = "",
    allowed_tools: Sequence[str] | None = None,
    timeout_seconds: float = 30.0,
    start_seconds: float = 60.0,
) -> McpTools:
    """Connects to an MCP server and lists its tools: `with mcp_tools(command=["uvx", "some-server"]) as tools: ...`.

    `command` starts a server (stdio) in `folder`; of our environment variables it gets only HOME, PATH and similar ones,
    and those in `environment`. `url` is the address of a running server (streamable HTTP); `headers` are sent with every
    request. `prefix` is added to the tools' names; characters that a call cannot contain become `_`. `allowed_tools` are the
    server's names of the tools to use; None: all. `timeout_seconds` is the limit of one call, `start_seconds` that of
    connecting. A server that ends is started again by the next call.
    The tools are listed once: if the server changes its list, a call of a tool that is gone fails with the server's message. A
    tool whose schema is invalid or has a reference to a location outside of it is left out, with a warning.

    Raises `SettingsError` unless exactly one of `command` and `url` is given, for values of `environment` and `headers` that are
    no texts, keys that would go unencrypted to another machine, and names in `allowed_tools` that the server does not list;
    `McpServerError` if the server cannot be reached or none of its tools can be used; `MissingExtraError` without the SDK.
    """
    if (command is None) == (url is None):
        raise SettingsError("mcp_tools takes either command=[...] (starts a server) or url=... (a running one)")
    if isinstance(allowed_tools, str):
        raise SettingsError(f"mcp_tools: allowed_tools must be a list like [{allowed_tools!r}]")
    if isinstance(command, str) or (command is not None and not command):
        raise SettingsError(f"mcp_tools: command must be a list like ['python', 'server.py'], not {command!r}")
    for what, given in (("environment", environment or {}), ("headers", headers or {})):
        for name, value in given.items():
            if not isinstance(value, str):  # not shown: it may be a key
                kind = type(value).__name__
                raise SettingsError(f"mcp_tools: the value of {name!r} in {what} must be a str, not {kind}")
    optional("mcp", "mcp")
    keep_keys(environment or {})
    keep_keys(headers or {}, str(url))
    server = Started(command, environment, folder) if command is not None else Remote(str(url), headers)
    connection = Connection(server, timeout_seconds, start_seconds)
    try:
        return McpTools(connection, prefix, allowed_tools)
    except BaseException:  # an invalid list of tools
        connection.close()
        raise


class McpTools(list[Tool]):
    """The tools of one server. The connection ends with the `with` block or `close()`."""

    def __init__(self, connection: Connection, prefix: str, allowed_tools: Sequence[str] | None) -> None:
        super().__init__()
        self._connection = connection
        listed = {each.name: each for each in reversed(connection.listed or ())}  # the first of each name
        for name in allowed_tools or ():
            if name not in listed:
                problem = f"the server has no tool {name!r} of allowed_tools"
                raise SettingsError(f"mcp_tools: {problem}. {near_names(name, listed)}")
        unusable = None
        for name, each in reversed(listed.items()):
            if allowed_tools is None or name in allowed_tools:
                try:
                    self.append(McpTool(connection, each, prefix))
                except McpServerError as error:
                    unusable = error
                    _log.warning("%s; the tool is left out", error)
        if unusable and not self:
            raise unusable

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection, and the server if it was started here. Running calls fail."""
        self._connection.close()


class McpTool(Tool):
    """One tool of a server. The texts of a result are joined; other content is shown as a note in brackets.

    `metadata["structured"]` is the result's structured content, if there is any and it has at most 100,000 characters of
    JSON. Raises RuntimeError if the server reports a failed call, ConnectionError if the server is gone, ValueError if
    arguments cannot be sent.
    """

    def __init__(self, connection: Connection, listed: Any, prefix: str) -> None:
        description = listed.description or listed.title or listed.name
        try:
            schema: Any = {"properties": {}, **_without_nulls(listed.input_schema)}
            ArgumentsChecker(schema)
            self.definition = ToolDefinition(prefix + _NOT_IN_A_NAME.sub("_", listed.name), description, schema)
        except (SettingsError, RecursionError) as error:
            raise McpServerError(f"MCP tool {listed.name!r:.80}: {error}") from None
        self.timeout_seconds = connection.timeout_seconds
        self._name = listed.name
        self._connection = connection

    async def execute(self, /, **parameters: Any) -> ToolOutput:
        _require_sendable(parameters)
        result = await self._connection.call(self._name, parameters)
        text = "\n".join(map(_block_text, result.content))
        structured = None if result.structured_content is None else json.dumps(result.structured_content)
        if not result.content and structured is not None:
            text = structured
        if result.is_error:
            raise RuntimeError(text or "the tool failed and did not say why")
        is_kept = structured is not None and len(structured) <= _MAX_STRUCTURED_CHARS
        return ToolOutput(text, {"structured": result.structured_content} if is_kept else {})


def _without_nulls(schema: Any) -> Any:
    """Returns a schema without keywords of null, which some servers write for keywords that do not apply."""
    if isinstance(schema, list):
        return [_without_nulls(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value if key in OF_DATA else _without_nulls(value)
        for key, value in schema.items()
        if value is not None or key in ("const", "default")
    }


def _require_sendable(parameters: Mapping[str, Any]) -> None:
    """Raises ValueError for arguments that the SDK cannot write: they would break the connection."""
    try:
        json.dumps(parameters, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the arguments cannot be sent: {type(error).__name__}") from None


def _block_text(block: Any) -> str:
    """Returns one content block of a result as text for the model."""
    if block.type == "text":
        return block.text
    if block.type in ("image", "audio"):
        return f"[{block.type}: {block.mime_type}]"
    if block.type == "resource_link":
        return f"[link: {block.uri}]"
    text = getattr(block.resource, "text", None)
    return f"[resource: {block.resource.uri}]" if text is None else text
