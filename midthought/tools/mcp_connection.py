"""A connection to an MCP server that is started here or runs at a URL, on its own event loop: usable from any number of loops.

The SDK is imported when a connection is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.errors import McpServerError
from midthought.http.network import without_keys
from midthought.tools.background_loop import BackgroundLoop

_LATER_SECONDS = 1.0
"""The SDK's deadline is this much later than the tool's own, so that the tool executor reports the timeout."""
_CLOSE_SECONDS = 15.0
_MAX_LOG_BYTES = 10_000
_MAX_LINE_CHARS = 400
_USER = re.compile(r"//[^/]*@")
_HAS_ENDED = ("Connection closed", "Session terminated")
"""What the SDK says if a session has ended. Other errors have the same codes."""

_log = logging.getLogger(__name__)


class Remote:
    """A server at a URL. Errors show it without user names and the query, which may hold keys."""

    last_lines = ""
    again = "connected again"

    def __init__(self, url: str, headers: Mapping[str, str] | None) -> None:
        self.name = f"MCP server {_USER.sub('//', url.partition('?')[0])}"
        self._url = url
        self._headers = headers

    @contextlib.asynccontextmanager
    async def transport(self) -> AsyncIterator[Any]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        timeout = httpx2.Timeout(30.0, read=300.0)  # a stream may send nothing for minutes
        async with (
            httpx2.AsyncClient(headers=dict(self._headers or {}), timeout=timeout) as http,
            streamable_http_client(self._url, http_client=http) as streams,
        ):
            yield streams


class Started:
    """A server that is started here. The last five lines of its standard error are kept."""

    again = "started again"

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None, folder: str | Path | None
    ) -> None:
        self.name = f"MCP server {_one_line(' '.join(map(str, command)))!r}"
        self._command = [str(word) for word in command]
        self._environment = dict(environment or {})
        self._folder = folder
        self.last_lines = ""

    @contextlib.asynccontextmanager
    async def transport(self) -> AsyncIterator[Any]:
        from mcp import StdioServerParameters, stdio_client

        command, *arguments = self._command
        parameters = StdioServerParameters(
            command=command, args=arguments, env=self._environment, cwd=self._folder, encoding_error_handler="replace"
        )
        with tempfile.TemporaryFile("ab+") as log:
            try:
                async with stdio_client(parameters, errlog=log) as streams:  # type: ignore[arg-type]
                    yield streams
            finally:
                start = max(log.seek(0, os.SEEK_END) - _MAX_LOG_BYTES, 0)
                log.seek(start)
                read = re.sub(rb"^\S*", b"", log.read()) if start else log.read()  # a cut word may be a key
                self.last_lines = "\n".join(read.decode(errors="replace").strip().splitlines()[-5:])


class Connection:
    """Clients of the SDK, one after the other: a call starts the next. One task enters and exits each, as the SDK requires."""

    def __init__(self, server: Started | Remote, timeout_seconds: float, start_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.listed: list[Any] | None = None
        """The tools, listed once."""
        self._server = server
        self._start_seconds = start_seconds
        self._is_closed = False
        self._serving: asyncio.Task[None] | None = None
        self._client: asyncio.Future[tuple[Any, asyncio.Event]]
        self._has_ended: asyncio.Event
        self._loop = BackgroundLoop("midthought-mcp")
        try:
            self._loop.run(self._connected())
        except BaseException:  # Ctrl-C, too
            self.close()
            raise

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Calls a tool; may be awaited on any loop. Cancelling sends a cancellation to the server."""
        if self._is_closed:
            raise ConnectionError("the MCP server is closed")
        return await asyncio.wrap_future(self._loop.start(self._call(name, arguments)))

    def close(self) -> None:
        """Ends the session, and the server if it was started here. Running and waiting calls fail."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.run(self._end())
            self._loop.close()

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        from mcp import MCPError

        client, has_ended = await self._connected()
        try:
            seconds = self.timeout_seconds + _LATER_SECONDS
            return await client.call_tool(name, arguments, read_timeout_seconds=seconds)
        except MCPError as error:
            if error.message not in _HAS_ENDED:
                raise RuntimeError(_one_line(error.message)) from error
            has_ended.set()
            raise ConnectionError(f"the MCP server has ended: {error.message}") from error

    async def _connected(self) -> tuple[Any, asyncio.Event]:
        """Returns the client and its end, of a new session if the last has ended. Raises `McpServerError` if there is none."""
        if self._serving is None or self._has_ended.is_set():
            self._client, self._has_ended = asyncio.get_running_loop().create_future(), asyncio.Event()
            self._serving = asyncio.create_task(self._serve(self._serving, self._client, self._has_ended))
        return await asyncio.shield(self._client)

    async def _serve(
        self, previous: asyncio.Task[None] | None, client: asyncio.Future[Any], has_ended: asyncio.Event
    ) -> None:
        from mcp import Client

        try:
            if previous is not None:
                await asyncio.wait((previous,))
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._start_seconds):
                    entered = await stack.enter_async_context(Client(self._server.transport(), cache=None))
                    self.listed = await _listed(entered) if self.listed is None else self.listed
                client.set_result((entered, has_ended))
                await has_ended.wait()
                _log.warning("the %s has ended; it is %s with the next call", self._server.name, self._server.again)
        except Exception as error:
            failure = self._failure(error)
            if client.done():
                _log.warning("%s; it is %s with the next call", failure, self._server.again)
            else:
                client.set_exception(failure)
        finally:
            has_ended.set()
            if not client.done():  # cancelled while it starts
                client.set_exception(ConnectionError("the MCP server is closed"))
            client.exception()  # also if no call waits for it

    async def _end(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
        if running := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(running, timeout=_CLOSE_SECONDS)

    def _failure(self, error: BaseException) -> McpServerError:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        reason = _one_line(str(getattr(error, "message", "") or error)) or type(error).__name__
        if isinstance(error, TimeoutError):
            reason = f"no answer within {self._start_seconds:g} seconds"
        log = f"; its last output: {_one_line(self._server.last_lines)}" if self._server.last_lines else ""
        return McpServerError(f"the {self._server.name} cannot be used: {reason}{log}")


async def _listed(client: Any) -> list[Any]:
    tools: list[Any] = []
    cursor = None
    while page := await client.list_tools(cursor=cursor):
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _one_line(text: str) -> str:
    """Returns the text without line breaks, control characters and keys; the end of a long one is left out."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in without_keys(text)).split())
    return line if len(line) <= _MAX_LINE_CHARS else line[:_MAX_LINE_CHARS] + "…"
