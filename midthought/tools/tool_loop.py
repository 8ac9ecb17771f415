"""The background event loop of all async tools. No tool runs on the event loop of the rollout.

A tool that blocks this loop (`time.sleep` in a coroutine) delays the other async tools, but neither the rollout nor any
deadline. If a call is cancelled, for example at its deadline, and the loop does not answer within 0.25 s, a new loop replaces it
for all later calls. Calls in progress stay on the old loop, which ends with them: they continue when the tool returns, or end
at their own deadlines. A client that a tool has opened on the old loop must be opened again. While 8 old loops have not ended,
none is replaced any more, and the executor refuses the calls of async tools (UNAVAILABLE).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from midthought.errors import EngineError
from midthought.tools.background_loop import BackgroundLoop
from midthought.tools.concurrency import DaemonThreads
from midthought.tools.deadline import contained, retrieve_exception

_log = logging.getLogger(__name__)
_NAME = "midthought-tools"
MAX_LOST = 8
"""Replaced loops that have not ended: each keeps a thread and three file descriptors until its tool returns."""
_CANCEL_SECONDS = 0.25
"""Time for a cancelled coroutine to end, and for the loop to answer."""

_loop = BackgroundLoop(_NAME)
"""The present loop. It outlives rollouts, so that a tool may keep a client open."""


def require_other_loop() -> None:
    """Raises `EngineError` on the tools' event loop: who blocks it may wait for a tool that needs it."""
    if threading.current_thread().name == _NAME:
        raise EngineError(
            "an async tool cannot wait here: other tools need its event loop; call this from a plain function instead"
        )


def num_lost() -> int:
    """Returns the number of replaced loops that have not ended."""
    return max(sum(thread.name == _NAME for thread in threading.enumerate()) - 1, 0)


async def settled(function: Callable[[], Any], threads: DaemonThreads, name: str) -> Any:
    """Returns the result of the tool's method: a plain function runs in a thread, a coroutine on the tools' event loop."""
    if inspect.iscoroutinefunction(function):
        return await _on_tool_loop(function, threads, name)
    result = await threads.run(function)
    return await _on_tool_loop(lambda: result, threads, name) if inspect.isawaitable(result) else result


def result_of(awaitable: Awaitable[Any]) -> Any:
    """Waits for an awaitable on the tools' event loop, without a deadline. Raises what it raises, and `EngineError` on that
    loop itself, which would wait for itself."""
    try:
        return _loop.run(contained(awaitable))
    except EngineError:
        if inspect.iscoroutine(awaitable):
            awaitable.close()  # it was not started
        raise


async def _on_tool_loop(start_call: Callable[[], Awaitable[Any]], threads: DaemonThreads, name: str) -> Any:
    """Awaits `start_call()` on the tools' event loop and raises what it raises.

    Cancelling cancels the call and waits 0.25 s for its end; a call that continues counts in `threads.num_abandoned`.
    """
    loop = _loop  # it ends when no call holds it any more and another one has replaced it
    task: asyncio.Task[Any] | None = None
    is_cancelled = False

    async def call() -> Any:
        nonlocal task
        if is_cancelled:
            raise asyncio.CancelledError
        task = asyncio.current_task()
        task.set_name(name)  # type: ignore[union-attr]
        return await contained(start_call())

    async def cancel() -> None:
        if task is not None:
            task.cancel()

    ended = asyncio.wrap_future(loop.start(call()))
    ended.add_done_callback(retrieve_exception)
    try:
        await asyncio.wait((ended,))
    except asyncio.CancelledError:
        is_cancelled = True
        answer = loop.start(cancel())
        await asyncio.wait((ended,), timeout=_CANCEL_SECONDS)
        if not ended.done():
            threads.num_abandoned += 1
            if task is not None:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # it was abandoned on purpose
            if not answer.done() and loop is _loop and num_lost() < MAX_LOST:
                _replace_loop()
        raise
    finally:
        del loop  # a traceback may hold this frame
    return ended.result()


def _replace_loop() -> None:
    global _loop
    blocking = asyncio.current_task(_loop._loop)  # a task has its tool's name, one that the tool started has another
    _log.warning(
        "the async tool %r blocks the event loop of all async tools: they go on with a new one, and clients that they opened "
        "on the old one are lost; let it await, or make its `execute` a plain function",
        blocking.get_name() if blocking else "?",
    )
    _loop = BackgroundLoop(_NAME)
