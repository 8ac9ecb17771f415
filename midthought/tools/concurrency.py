"""Limits on simultaneous tool calls, and daemon threads for blocking functions."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import itertools
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from midthought.tools.definition import Tool

T = TypeVar("T")

_IDLE_SECONDS = 30.0
_numbers = itertools.count()


class ConcurrencyLimits:
    """Limits of one event loop: calls of one tool, calls in threads, all calls. First come, first served.

    The semaphores are always acquired in this order, so calls cannot deadlock.
    """

    def __init__(self, *, max_concurrency: int, max_threads: int) -> None:
        self._all = asyncio.Semaphore(max_concurrency)
        self._threads = asyncio.Semaphore(max_threads)
        self._by_tool: dict[str, asyncio.Semaphore] = {}

    @contextlib.asynccontextmanager
    async def acquire(self, tool: Tool) -> AsyncIterator[None]:
        """Waits until a call of this tool may run: under the tool's own limit if it has one, the limit of threads if its
        `execute` is a plain function, and the limit of all calls."""
        async with contextlib.AsyncExitStack() as stack:
            for semaphore in self._semaphores(tool):
                await stack.enter_async_context(semaphore)
            yield

    def _semaphores(self, tool: Tool) -> list[asyncio.Semaphore]:
        needed = []
        if tool.max_concurrency is not None:
            name = tool.definition.name
            if name not in self._by_tool:
                self._by_tool[name] = asyncio.Semaphore(tool.max_concurrency)
            needed.append(self._by_tool[name])
        if needs_thread(tool):
            needed.append(self._threads)
        return [*needed, self._all]


def needs_thread(tool: Tool) -> bool:
    """Whether its calls block a thread."""
    return not inspect.iscoroutinefunction(tool.execute)


@dataclass(slots=True, eq=False)
class _Job:
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    has_ended: bool = False
    is_abandoned: bool = False


class DaemonThreads:
    """Runs blocking functions in as many threads as there are simultaneous calls. Threads are reused and end after 30 idle
    seconds. May be shared by several event loops.

    Not `asyncio.to_thread`: the interpreter joins its threads at exit, so one hung tool would block the exit. Here a caller
    that is cancelled abandons its thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: deque[queue.SimpleQueue[_Job]] = deque()
        self.num_abandoned = 0
        """Calls whose caller was cancelled (a deadline) while their thread continued."""
        self.num_lingering = 0
        """Those of them whose thread has not ended yet."""
        self._lock = threading.Lock()

    async def run(self, function: Callable[[], T]) -> T:
        """Awaits `function()`, which sees the caller's context variables. Raises what it raises, or RuntimeError if that is not
        an Exception (SystemExit)."""
        loop = asyncio.get_running_loop()
        job = _Job(functools.partial(contextvars.copy_context().run, function), loop, loop.create_future())
        self._inbox().put(job)
        try:
            value, error = await job.future
        except asyncio.CancelledError:
            with self._lock:
                self.num_abandoned += 1
                job.is_abandoned = not job.has_ended
                self.num_lingering += job.is_abandoned
            raise
        if error is not None:
            raise error
        return value

    def _inbox(self) -> queue.SimpleQueue[_Job]:
        try:
            return self._idle.pop()
        except IndexError:
            inbox: queue.SimpleQueue[_Job] = queue.SimpleQueue()
            name = f"{self._name}-{next(_numbers)}"
            threading.Thread(target=self._work, args=(inbox,), name=name, daemon=True).start()
            return inbox

    def _work(self, inbox: queue.SimpleQueue[_Job]) -> None:
        while True:
            try:
                job = inbox.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                try:
                    self._idle.remove(inbox)
                except ValueError:  # just taken: a job will follow
                    continue
                return
            value, error = None, None
            try:
                value = job.function()
            except Exception as raised:
                error = raised
            except BaseException as raised:
                error = RuntimeError(f"{type(raised).__name__}: {raised}")
            with self._lock:
                job.has_ended = True
                self.num_lingering -= job.is_abandoned
            self._idle.append(inbox)
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                job.loop.call_soon_threadsafe(_settle, job.future, (value, error))
            del job, value, error


def _settle(future: asyncio.Future[Any], outcome: tuple[Any, Exception | None]) -> None:
    if not future.done():
        future.set_result(outcome)
