"""A connection to an MCP server, on its own event loop and thread, so that it can be used from any number of loops.

The SDK is imported when a connection is made.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.errors import McpServerError

_MAX_PAGES = 100
_LATER_SECONDS = 1.0
"""The SDK's deadline is this much later than the tool's own, so that the tool executor reports the timeout."""
_LOG_SECONDS = 1.0
"""Time to read the last lines of a server that has ended."""
_CLOSE_SECONDS = 15.0
_MAX_REASON_CHARS = 400
_LOGGERS = ("mcp.client.stdio", "mcp.client.streamable_http", "client", "mcp.shared.tool_name_validation")
"""Loggers of the SDK that report what a server sent."""


class Started:
    """A server that is started here. The last five lines of its standard error are kept."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None, folder: str | Path | None
    ) -> None:
        self.name = f"MCP server {_one_line(' '.join(map(str, command)))!r}"
        self._command = command
        self._environment = environment
        self._folder = folder
        self._lines: deque[str] = deque(maxlen=5)

    @property
    def last_lines(self) -> str:
        return "".join(self._lines).strip()

    @contextlib.asynccontextmanager
    async def transport(self) -> AsyncIterator[Any]:
        from mcp import StdioServerParameters, stdio_client

        parameters = StdioServerParameters(
            command=str(self._command[0]),
            args=[str(word) for word in self._command[1:]],
            env=None if self._environment is None else dict(self._environment),
            cwd=self._folder,
        )
        readable, writable = os.pipe()
        reader = threading.Thread(target=self._read_log, args=(readable,), name="midthought-mcp-log", daemon=True)
        reader.start()
        try:
            with os.fdopen(writable, "w") as log:
                async with stdio_client(parameters, errlog=log) as streams:
                    yield streams
        finally:
            reader.join(_LOG_SECONDS)

    def _read_log(self, readable: int) -> None:
        with os.fdopen(readable, errors="replace") as log:
            while line := log.readline(1000):
                self._lines.append(line)


class Remote:
    """A server at a URL."""

    last_lines = ""

    def __init__(self, url: str, headers: Mapping[str, str] | None) -> None:
        self.name = f"MCP server {url}"
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


class Connection:
    """A client of the SDK. One task on a private loop enters and exits it, as the SDK requires."""

    def __init__(self, server: Started | Remote, timeout_seconds: float, start_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._server = server
        self._start_seconds = start_seconds
        self._client: Any = None
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        ready: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="midthought-mcp", daemon=True)
        self._thread.start()
        try:
            self.listed = ready.result()
        except BaseException:  # Ctrl-C, too
            self.close()
            raise

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Calls a tool; may be awaited on any loop. Cancelling sends a cancellation to the server."""
        from mcp import MCPError

        if self._client is None:
            raise ConnectionError("the MCP server is closed")
        call = self._client.call_tool(name, arguments, read_timeout_seconds=self.timeout_seconds + _LATER_SECONDS)
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))
        except MCPError as error:
            raise RuntimeError(error.message) from error

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self, ready: concurrent.futures.Future[list[Any]]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(ready))

    async def _serve(self, ready: concurrent.futures.Future[list[Any]]) -> None:
        from mcp import Client

        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._start_seconds):
                    client = await stack.enter_async_context(Client(self._server.transport(), cache=None))
                    listed = await _listed(client)
                self._client = client
                ready.set_result(listed)
                await self._closing.wait()
        except (Exception, asyncio.CancelledError) as error:
            if not ready.done():
                ready.set_exception(self._failure(error))
        finally:
            self._client = None

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
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise McpServerError(f"its list of tools has more than {_MAX_PAGES} pages")


def _one_line(text: str) -> str:
    """Returns the text without line breaks, and its end left out if it is long: servers, and the SDK, write pages."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_REASON_CHARS else line[:_MAX_REASON_CHARS] + "…"


class _OneLine(logging.Filter):
    """Shortens the SDK's messages about what a server sent to one line each, without tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        if f"{os.sep}mcp{os.sep}" not in record.pathname:  # a logger of another package may have the same name
            return True
        error = record.exc_info[1] if record.exc_info else None
        record.msg = _one_line(f"MCP: {record.getMessage()}" + (f": {error}" if error is not None else ""))
        record.args, record.exc_info, record.exc_text = (), None, None
        return True


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_OneLine())
