"""An event loop in a thread of its own for every async tool, and who blocks it.

So a coroutine that blocks holds up its own tool only: deadlines, sampling and other tools go on elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

from midthought.tools.deadline import contained
from midthought.tools.definition import Tool
from midthought.tools.threads import DaemonThreads

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
"""Whoever waits for a call looks so often whether the loop turns."""
_BLOCKED_SECONDS = 0.4
"""A loop that has not turned for so long is blocked, if its thread is inside the tool's code."""
_CANCEL_SECONDS = 0.25
"""How long a coroutine may take to end once it is cancelled."""
_NOT_THE_TOOLS = ("asyncio", "midthought.tools", "selectors", "threading")

_lock = threading.Lock()
_loops: dict[int, ToolLoop] = {}
"""By the identity of the registered tool; an entry goes with the tool."""


class ToolLoop:
    """Where the coroutines of one tool run, over all episodes. What they keep open (a client) may stay on this loop, which
    outlives rollouts.

    The first time that the loop is blocked for more than about half a second, a warning names the tool and the line.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"midthought-tool-{name}", daemon=True)
        self._thread.start()
        self._pinged_at: float | None = None
        """When the loop was asked to turn, if it has not turned since."""
        self._is_reported = False
        self.is_lost = False
        """Whether a call was given up while the loop was blocked: further calls get another loop."""

    async def run(self, begin: Callable[[], Awaitable[Any]], threads: DaemonThreads) -> Any:
        """Await on the tool's loop what `begin` gives. What it raises is raised here.

        Cancelling it cancels that, and waits a moment for its end; one that goes on is counted as `threads.num_abandoned`.
        """
        here = asyncio.get_running_loop()
        over: asyncio.Future[None] = here.create_future()
        task: asyncio.Task[Any] | None = None
        is_cancelled = False

        async def awaited() -> Any:
            return await contained(begin())

        def start() -> None:
            nonlocal task
            task = self._loop.create_task(awaited())
            task.add_done_callback(tell)
            if is_cancelled:
                task.cancel()

        def tell(_: asyncio.Task[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                here.call_soon_threadsafe(_settle, over)

        def cancel() -> None:
            if task is not None:
                task.cancel()

        self._loop.call_soon_threadsafe(start)
        try:
            while not over.done():
                await asyncio.wait((over,), timeout=_LOOK_SECONDS)
                if not over.done():
                    self._look()
        except asyncio.CancelledError:
            is_cancelled = True
            self._loop.call_soon_threadsafe(cancel)
            await asyncio.wait((over,), timeout=_CANCEL_SECONDS)
            if not over.done():
                threads.num_abandoned += 1
                if task is not None:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it was left behind on purpose
                self.is_lost = self.is_lost or self._seconds_blocked() >= _BLOCKED_SECONDS
            raise
        assert task is not None
        return task.result()

    def stop(self) -> None:
        """End the thread when the loop turns again and nothing runs on it."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(_stop_when_idle(self._loop)))

    def _look(self) -> None:
        if self._pinged_at is None:
            self._pinged_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._turned)
        elif not self._is_reported and (seconds := self._seconds_blocked()) >= _BLOCKED_SECONDS:
            place = self._place()
            if place is not None:
                self._is_reported = True
                logger.warning(
                    "tool %r blocks its event loop: %s has not returned for %.1f seconds, and all calls of the tool wait. "
                    "Await something that does not block (asyncio.sleep, an async client), or make it a plain function, "
                    "which gets a thread",
                    self._name,
                    place,
                    seconds,
                )

    def _turned(self) -> None:
        self._pinged_at = None

    def _seconds_blocked(self) -> float:
        pinged_at = self._pinged_at
        return 0.0 if pinged_at is None else time.monotonic() - pinged_at

    def _place(self) -> str | None:
        """The line of the tool's code at which the thread is; None if it is in none, for example because it gets no CPU."""
        frame: FrameType | None = sys._current_frames().get(self._thread.ident or 0)
        place = None
        while frame is not None:
            if not frame.f_globals.get("__name__", "").startswith(_NOT_THE_TOOLS):
                place = f"{frame.f_code.co_filename}, line {frame.f_lineno}, in {frame.f_code.co_name}"
            frame = frame.f_back
        return place


def loop_of(tool: Tool) -> ToolLoop:
    """The loop of a registered tool, for its own coroutines and for those of the tools that it opens."""
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
    """The result of a method of this registered tool, or of one that it has opened: a plain function runs in a thread, a
    coroutine on the tool's loop."""
    if inspect.iscoroutinefunction(function):
        return await loop_of(tool).run(function, threads)
    result = await threads.run(function)
    return await loop_of(tool).run(lambda: result, threads) if inspect.isawaitable(result) else result


async def _stop_when_idle(loop: asyncio.AbstractEventLoop) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)
    loop.stop()


def _settle(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
