"""A connection to an MCP server, on its own event loop and thread, so that it can be used from any number of loops.

The SDK is imported when a connection is made.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from midthought.errors import McpServerError, SettingsError, near_names
from midthought.tools.mcp_process import Started, one_line

_MAX_PAGES = 100
_MAX_TOOLS = 2000
_LATER_SECONDS = 1.0
"""The SDK's deadline is this much later than the tool's own, so that the tool executor reports the timeout."""
_CLOSE_SECONDS = 15.0
_USER = re.compile(r"//[^/]*@")
LONG_SESSION_SECONDS = 60.0
"""A server that ended earlier is started again after a pause of at most this length."""
_HAS_ENDED = ("Connection closed", "Session terminated")
"""What the SDK says if a session has ended. Other errors have the same codes."""
_MAX_MESSAGES = 20
"""Messages of the SDK about what servers sent, per minute; counted anew for a new connection."""
_MAX_BODY_BYTES = 64 * 1024 * 1024
"""Size of a response that is not a stream of events."""
_LOGGERS = ("mcp.client.stdio", "mcp.client.streamable_http", "client", "mcp.shared.tool_name_validation")
"""Loggers of the SDK that report what a server sent."""

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
        headers = {"Accept-Encoding": "identity", **(self._headers or {})}
        hooks = {"response": [_limit_body]}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks) as http,
            streamable_http_client(self._url, http_client=http) as streams,
        ):
            yield streams


async def _limit_body(response: Any) -> None:
    """Raises ConnectionError while a response is read that is too large, or compressed although that was not asked for."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ConnectionError("the server compresses its responses")
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        return
    import httpx2

    stream = response.stream

    class Limited(httpx2.AsyncByteStream):
        async def aclose(self) -> None:
            await stream.aclose()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for piece in stream:
                if (size := size + len(piece)) > _MAX_BODY_BYTES:
                    raise ConnectionError(f"a response of the server has more than {_MAX_BODY_BYTES:,} bytes")
                yield piece

    response.stream = Limited()


class Connection:
    """A client of the SDK. One task on a private loop enters and exits it, as the SDK requires, and again if the server ends:
    after `restart_seconds`, then twice as long each time."""

    def __init__(
        self,
        server: Started | Remote,
        timeout_seconds: float,
        start_seconds: float,
        restart_seconds: float,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._server = server
        self._start_seconds = start_seconds
        self._restart_seconds = restart_seconds
        self._loop = asyncio.new_event_loop()
        self._client: asyncio.Future[Any] = self._loop.create_future()
        """The present session; calls wait for it."""
        self._is_closing = False
        self._ending = asyncio.Event()
        self._starting: asyncio.Timeout | None = None
        _shown.since = 0.0
        ready: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="midthought-mcp", daemon=True)
        self._thread.start()
        try:
            self.listed = ready.result()
        except BaseException:  # Ctrl-C, too
            self.close()
            raise

    def restrict(self, names: Sequence[str]) -> None:
        """Leaves out the tools of other names. Raises `SettingsError` for a name that the server does not list."""
        listed = [each.name for each in self.listed]
        for name in names:
            if name not in listed:
                raise SettingsError(
                    f"mcp_tools: the server has no tool {name!r} of allowed_tools. {near_names(name, listed)}"
                )
        self.listed = [each for each in self.listed if each.name in names]

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Calls a tool; may be awaited on any loop. Cancelling sends a cancellation to the server."""
        if self._is_closing:
            raise ConnectionError("the MCP server is closed")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._call(name, arguments), self._loop))

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        from mcp import MCPError

        client = await asyncio.shield(session := self._client)
        try:
            seconds = self.timeout_seconds + _LATER_SECONDS
            return await client.call_tool(name, arguments, read_timeout_seconds=seconds)
        except MCPError as error:
            if error.message not in _HAS_ENDED:
                raise RuntimeError(one_line(error.message)) from error
            if self._client is session:
                self._client = self._loop.create_future()
                self._ending.set()
            raise ConnectionError(f"the MCP server has ended: {error.message}") from error

    def close(self) -> None:
        self._is_closing = True
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._end)
        self._thread.join(_CLOSE_SECONDS)

    def _end(self) -> None:
        self._ending.set()
        if self._starting is not None and not self._starting.expired():
            self._starting.reschedule(self._loop.time())

    def _run(self, ready: concurrent.futures.Future[list[Any]]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(ready))

    async def _serve(self, ready: concurrent.futures.Future[list[Any]]) -> None:
        pause = 0.0
        while not self._is_closing:
            started = self._loop.time()
            try:
                await self._session(ready)
                words = f"the {self._server.name} has ended"
            except (Exception, asyncio.CancelledError) as error:
                words = str(self._failure(error))
                if not ready.done():
                    ready.set_exception(self._failure(error))
                    return
            if self._client.done():
                self._client = self._loop.create_future()
            if not self._is_closing:
                is_long = self._loop.time() - started > LONG_SESSION_SECONDS
                pause = 0.0 if is_long else min(2 * pause or self._restart_seconds, LONG_SESSION_SECONDS)
                _log.warning("%s; it is %s in %g seconds", words, self._server.again, pause)
                self._ending.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), pause)
        self._client.set_exception(ConnectionError("the MCP server is closed"))
        self._client.exception()  # also if no call waits for it
        if calls := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(calls, timeout=_LATER_SECONDS)  # else the end of the loop cancels them

    async def _session(self, ready: concurrent.futures.Future[list[Any]]) -> None:
        from mcp import Client

        self._ending.clear()
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._start_seconds) as self._starting:
                    client = await stack.enter_async_context(Client(self._server.transport(), cache=None))
                    listed = None if ready.done() else await _listed(client)
            finally:
                self._starting = None
            self._client.set_result(client)
            if listed is not None:
                ready.set_result(listed)
            if not self._is_closing:
                await self._ending.wait()

    def _failure(self, error: BaseException) -> McpServerError:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        reason = one_line(str(getattr(error, "message", "") or error)) or type(error).__name__
        if isinstance(error, TimeoutError):
            reason = f"no answer within {self._start_seconds:g} seconds"
        log = f"; its last output: {one_line(self._server.last_lines)}" if self._server.last_lines else ""
        return McpServerError(f"the {self._server.name} cannot be used: {reason}{log}")


async def _listed(client: Any) -> list[Any]:
    tools: list[Any] = []
    cursor = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if len(tools) > _MAX_TOOLS:
            raise McpServerError(f"it has more than {_MAX_TOOLS:,} tools")
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise McpServerError(f"its list of tools has more than {_MAX_PAGES} pages")


class _OneLine(logging.Filter):
    """Shortens the SDK's messages about what a server sent to one line each, without tracebacks, and leaves out most of many."""

    def __init__(self) -> None:
        super().__init__()
        self.since, self._num_messages = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        if f"{os.sep}mcp{os.sep}" not in record.pathname:  # a logger of another package may have the same name
            return True
        if record.created - self.since > 60:
            self.since, self._num_messages = record.created, 0
        self._num_messages += 1
        if self._num_messages > _MAX_MESSAGES:
            return False
        error = record.exc_info[1] if record.exc_info else None
        record.msg = one_line(f"MCP: {record.getMessage()}" + (f": {error}" if error is not None else ""))
        if self._num_messages == _MAX_MESSAGES:
            record.msg += "; further messages of this minute are not shown"
        record.args, record.exc_info, record.exc_text = (), None, None
        return True


_shown = _OneLine()
for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_shown)
