"""State of the tool executor: the stateful tools of one episode; the places and the results of the calls of one event loop.

Does not depend on call formats.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from midthought.tools.concurrency import DaemonThreads, TooLateError, contained, settled, within
from midthought.tools.definition import Tool, ToolEpisode

T = TypeVar("T")

_log = logging.getLogger(__name__)


class EpisodeTools:
    """The tool executor's state for one episode. `close` it when the episode has ended, also after an error.

    Calls of one stateful tool run one after the other, in order. If `open` takes longer than the deadline of the call that
    needed it, the next call waits for the same `open`.
    """

    def __init__(self, episode: ToolEpisode, threads: DaemonThreads, close_seconds: float) -> None:
        self._episode = episode
        self._threads = threads
        self._close_seconds = close_seconds
        self._opened: dict[str, tuple[Tool, asyncio.Future[Tool]]] = {}
        """The registered tool, and the tool that its `open` returns."""
        self._turns: dict[str, asyncio.Lock] = {}
        self._is_closed = False

    def turn(self, tool: Tool) -> contextlib.AbstractAsyncContextManager[Any]:
        """Returns a lock that waits for the earlier calls of the tool if it is stateful."""
        return (
            self._turns.setdefault(tool.definition.name, asyncio.Lock())
            if tool.is_stateful
            else contextlib.nullcontext()
        )

    async def opened(self, tool: Tool) -> Tool:
        """Returns the tool opened for this episode. Raises what `open` raises; then the next call opens it again."""
        name = tool.definition.name
        if self._is_closed:
            raise RuntimeError("the episode has ended")
        if name not in self._opened or self._opened[name][1].cancelled():
            self._opened[name] = tool, asyncio.ensure_future(contained(self._open(tool)))
        try:
            return await asyncio.shield(self._opened[name][1])
        except Exception:
            self._opened.pop(name, None)
            raise

    async def _open(self, tool: Tool) -> Tool:
        bound = await settled(functools.partial(tool.open, self._episode), self._threads)
        if not isinstance(bound, Tool):
            raise TypeError(f"open returned a {type(bound).__name__}; return the tool for the episode")
        if self._is_closed:  # nobody waits for it any more
            await self._close(tool, bound)
        return bound

    async def close(self) -> None:
        """Closes the opened tools, each within the tool executor's deadline.

        Never raises: what a tool's `close` raises is logged. Cancelling does not interrupt it.
        """
        self._is_closed = True
        opened, self._opened = self._opened, {}
        await asyncio.shield(asyncio.gather(*(self._end(*each) for each in opened.values())))

    async def _end(self, tool: Tool, opened: asyncio.Future[Tool]) -> None:
        if not opened.done():  # when it is done, it closes what it opened
            await asyncio.wait((opened,), timeout=self._close_seconds)
        elif not opened.cancelled() and opened.exception() is None:
            await self._close(tool, opened.result())

    async def _close(self, tool: Tool, bound: Tool) -> None:
        name = tool.definition.name

        async def close() -> None:
            async with self.turn(tool):
                await settled(bound.close, self._threads)

        if bound is tool:
            return
        try:
            await within(self._close_seconds, close())
        except TooLateError:
            _log.warning("tool %r: close was not done within %g seconds", name, self._close_seconds)
        except Exception as error:
            _log.warning("tool %r: close raised %s: %s", name, type(error).__name__, error)


# -- one event loop -------------------------------------------------------------------------------------------


class LoopState:
    """State of a tool executor that belongs to one event loop: the places for calls, and the runs of equal calls by key.

    A run ends by itself, also if no call waits for it. Results are kept while a `rollout` is open. Exceptions, and outside of a
    rollout results, too, are shared only by the calls that wait for the run; the next call starts another run.
    """

    def __init__(self, max_concurrency: int, max_threads: int) -> None:
        self._all = asyncio.Semaphore(max_concurrency)
        self._threads = asyncio.Semaphore(max_threads)
        self._by_tool: dict[str, asyncio.Semaphore] = {}
        self._runs: dict[str, asyncio.Task[Any]] = {}
        """In progress or finished."""
        self._num_rollouts = 0

    @contextlib.asynccontextmanager
    async def place(self, tool: Tool) -> AsyncIterator[None]:
        """Waits until a call of this tool may run. The semaphores are always acquired in this order, so calls cannot deadlock."""
        async with contextlib.AsyncExitStack() as stack:
            if tool.max_concurrency is not None:
                own = self._by_tool.setdefault(tool.definition.name, asyncio.Semaphore(tool.max_concurrency))
                await stack.enter_async_context(own)
            if needs_thread(tool):
                await stack.enter_async_context(self._threads)
            await stack.enter_async_context(self._all)
            yield

    @contextlib.contextmanager
    def rollout(self) -> Iterator[None]:
        """Keeps results until the last of all simultaneous rollouts has ended."""
        self._num_rollouts += 1
        try:
            yield
        finally:
            self._num_rollouts -= 1
            if not self._num_rollouts:
                self._runs.clear()

    async def shared(self, key: str, compute: Callable[[], Coroutine[Any, Any, T]]) -> tuple[asyncio.Task[T], bool]:
        """Returns the ended run and whether it is shared, that is, an earlier call started it."""
        run = self._runs.get(key)
        is_shared = run is not None
        if run is None:
            run = self._runs[key] = asyncio.ensure_future(compute())
            run.add_done_callback(lambda ended: self._finish(key, ended))
        await asyncio.wait((run,))
        return run, is_shared

    def _finish(self, key: str, run: asyncio.Task[Any]) -> None:
        has_result = not run.cancelled() and run.exception() is None
        if not (has_result and self._num_rollouts) and self._runs.get(key) is run:
            del self._runs[key]


def needs_thread(tool: Tool) -> bool:
    return not inspect.iscoroutinefunction(tool.execute)


def key_of(name: str, arguments: Mapping[str, Any]) -> str | None:
    """Returns the same text for equal calls, in any order of arguments; None if the arguments are not JSON throughout.

    >>> key_of("look", {"k": 1, "query": "tide"})
    'look{"k": 1, "query": "tide"}'
    >>> key_of("look", {"k": {1: "one"}})  # as JSON, the key would be "1"
    """
    try:
        text = json.dumps(arguments, sort_keys=True)
        return name + text if json.loads(text) == arguments else None
    except (TypeError, ValueError, RecursionError):
        return None
