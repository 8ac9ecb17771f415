"""One event loop and thread per async tool, with detection of coroutines that block it.

A blocking coroutine delays only its own tool; deadlines, sampling and other tools run on other loops.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import logging
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, TypeVar

from midthought.tools.concurrency import DaemonThreads
from midthought.tools.deadline import contained
from midthought.tools.definition import Tool

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 0.2
"""Interval at which the caller of a tool checks that the tool's loop is not blocked."""
_BLOCKED_SECONDS = 0.4
"""A loop that has run no callback for this time is blocked, if its thread is in the tool's code."""
_CANCEL_SECONDS = 0.25
"""Time for a cancelled coroutine to end."""
_NOT_TOOL_CODE = ("asyncio", "midthought.tools", "selectors", "threading")

_lock = threading.Lock()
_loops: dict[int, ToolLoop] = {}
"""By the `id` of the registered tool; the entry is removed when the tool is garbage-collected."""


class ToolLoop:
    """Event loop for the coroutines of one tool in all episodes. It outlives rollouts, so the tool may keep a client open.

    The first time that the loop is blocked for more than about 0.5 s, a warning names the tool and the line.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"midthought-tool-{name}", daemon=True)
        self._thread.start()
        self._pinged_at: float | None = None
        """When a callback was scheduled to test the loop; None after the loop has run it."""
        self._is_reported = False
        self.is_lost = False
        """Whether a call was abandoned while the loop was blocked: further calls get a new loop."""

    async def run(self, start_call: Callable[[], Awaitable[Any]], threads: DaemonThreads) -> Any:
        """Awaits `start_call()` on the tool's loop and raises what it raises.

        Cancelling cancels the call and waits 0.25 s for its end; a call that continues counts in `threads.num_abandoned`.
        """
        here = asyncio.get_running_loop()
        done: asyncio.Future[None] = here.create_future()
        task: asyncio.Task[Any] | None = None
        is_cancelled = False

        async def awaited() -> Any:
            return await contained(start_call())

        def start() -> None:
            nonlocal task
            task = self._loop.create_task(awaited())
            task.add_done_callback(notify)
            if is_cancelled:
                task.cancel()

        def notify(_: asyncio.Task[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                here.call_soon_threadsafe(_settle, done)

        def cancel() -> None:
            if task is not None:
                task.cancel()

        self._loop.call_soon_threadsafe(start)
        try:
            while not done.done():
                await asyncio.wait((done,), timeout=_CHECK_SECONDS)
                if not done.done():
                    self._check()
        except asyncio.CancelledError:
            is_cancelled = True
            self._loop.call_soon_threadsafe(cancel)
            await asyncio.wait((done,), timeout=_CANCEL_SECONDS)
            if not done.done():
                threads.num_abandoned += 1
                if task is not None:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it was abandoned on purpose
                self.is_lost = self.is_lost or self._seconds_blocked() >= _BLOCKED_SECONDS
            raise
        assert task is not None
        return task.result()

    def stop(self) -> None:
        """Ends the thread as soon as the loop is not blocked and all its tasks have ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(_stop_when_idle(self._loop)))

    def _check(self) -> None:
        if self._pinged_at is None:
            self._pinged_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._pong)
        elif not self._is_reported and (seconds := self._seconds_blocked()) >= _BLOCKED_SECONDS:
            line = self._blocking_line()
            if line is not None:
                self._is_reported = True
                logger.warning(
                    "tool %r blocks its event loop: %s has not returned for %.1f seconds, and all calls of the tool wait. "
                    "Use calls that do not block (asyncio.sleep, an async client), or make it a plain function, "
                    "which runs in a thread",
                    self._name,
                    line,
                    seconds,
                )

    def _pong(self) -> None:
        self._pinged_at = None

    def _seconds_blocked(self) -> float:
        pinged_at = self._pinged_at
        return 0.0 if pinged_at is None else time.monotonic() - pinged_at

    def _blocking_line(self) -> str | None:
        """Returns the line of the tool's code that the thread is executing; None if it is in other code, for example because
        it gets no CPU time."""
        frame: FrameType | None = sys._current_frames().get(self._thread.ident or 0)
        line = None
        while frame is not None:
            if not frame.f_globals.get("__name__", "").startswith(_NOT_TOOL_CODE):
                line = f"{frame.f_code.co_filename}, line {frame.f_lineno}, in {frame.f_code.co_name}"
            frame = frame.f_back
        return line


def loop_of(tool: Tool) -> ToolLoop:
    """Returns the loop of a registered tool, for its own coroutines and for the coroutines of tools that it opens."""
    with _lock:
        loop = _loops.get(id(tool))
        if loop is None or loop.is_lost:
            if loop is None:
                weakref.finalize(tool, _forget, id(tool)).atexit = False
            else:
                loop.stop()
            loop = _loops[id(tool)] = ToolLoop(tool.definition.name)
        return loop


def _forget(key: int) -> None:
    _loops.pop(key).stop()


async def settled(function: Callable[[], Any], tool: Tool, threads: DaemonThreads) -> Any:
    """Returns the result of a method of this registered tool, or of one that it has opened: a plain function runs in a
    thread, a coroutine on the tool's loop."""
    if inspect.iscoroutinefunction(function):
        return await loop_of(tool).run(function, threads)
    result = await threads.run(function)
    return await loop_of(tool).run(lambda: result, threads) if inspect.isawaitable(result) else result


def run_on_new_loop(awaitable: Awaitable[T], thread_name: str) -> concurrent.futures.Future[T]:
    """Runs an awaitable on a new event loop in a daemon thread, so that the caller may wait for it inside a running loop.

    A tool call that ignores its cancellation may block that thread, but not the caller.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    async def settle() -> None:
        try:
            future.set_result(await awaitable)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=lambda: asyncio.run(settle()), name=thread_name, daemon=True).start()
    return future


async def _stop_when_idle(loop: asyncio.AbstractEventLoop) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)
    loop.stop()


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
