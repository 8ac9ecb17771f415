"""Limits on simultaneous tool calls, and daemon threads for blocking functions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import itertools
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from midthought.tools.definition import Tool

T = TypeVar("T")

_IDLE_SECONDS = 30.0
_numbers = itertools.count()
_Future = concurrent.futures.Future[tuple[Any, Exception | None]]
_Job = tuple[_Future, Callable[[], Any]]


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
            if tool.max_concurrency is not None:
                own = self._by_tool.setdefault(tool.definition.name, asyncio.Semaphore(tool.max_concurrency))
                await stack.enter_async_context(own)
            if needs_thread(tool):
                await stack.enter_async_context(self._threads)
            await stack.enter_async_context(self._all)
            yield


def needs_thread(tool: Tool) -> bool:
    """Whether its calls block a thread."""
    return not inspect.iscoroutinefunction(tool.execute)


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
        future: _Future = concurrent.futures.Future()
        self._inbox().put((future, functools.partial(contextvars.copy_context().run, function)))
        try:
            value, error = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            with self._lock:
                self.num_abandoned += 1
                self.num_lingering += 1
            future.add_done_callback(self._end_lingering)
            raise
        if error is not None:
            raise error
        return value

    def _end_lingering(self, _: _Future) -> None:
        with self._lock:
            self.num_lingering -= 1

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
                future, function = inbox.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                try:
                    self._idle.remove(inbox)
                except ValueError:  # just taken: a job will follow
                    continue
                return
            outcome = _outcome(function) if future.set_running_or_notify_cancel() else None
            self._idle.append(inbox)
            if outcome is not None:
                future.set_result(outcome)
            del future, function, outcome


def _outcome(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error
    except BaseException as error:
        return None, RuntimeError(f"{type(error).__name__}: {error}")
