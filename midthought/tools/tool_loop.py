"""The background event loop of all async tools. No tool runs on the event loop of the rollout.

A tool that blocks this loop (`time.sleep` in a coroutine) delays the other async tools, but neither the rollout nor any
deadline. If a call is cancelled, for example at its deadline, and the loop does not answer within 0.25 s, a new loop replaces it
for all later calls. Calls in progress stay on the old loop, which ends with them: they continue when the tool returns, or end
at their own deadlines. A client that a tool has opened on the old loop must be opened again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from midthought.background_loop import BackgroundLoop
from midthought.errors import EngineError
from midthought.tools.concurrency import DaemonThreads
from midthought.tools.deadline import contained, retrieve_exception

_NAME = "midthought-tools"
_CANCEL_SECONDS = 0.25
"""Time for a cancelled coroutine to end, and for the loop to answer."""

_loop = BackgroundLoop(_NAME)
"""The present loop. It outlives rollouts, so that a tool may keep a client open."""


async def settled(function: Callable[[], Any], threads: DaemonThreads) -> Any:
    """Returns the result of a tool's method: a plain function runs in a thread, a coroutine on the tools' event loop."""
    if inspect.iscoroutinefunction(function):
        return await _on_tool_loop(function, threads)
    result = await threads.run(function)
    return await _on_tool_loop(lambda: result, threads) if inspect.isawaitable(result) else result


def result_of(awaitable: Awaitable[Any]) -> Any:
    """Waits for an awaitable on the tools' event loop, without a deadline. Raises what it raises, and `EngineError` on that
    loop itself, which would wait for itself."""
    try:
        return _loop.run(contained(awaitable))
    except EngineError:
        if inspect.iscoroutine(awaitable):
            awaitable.close()  # it was not started
        raise


async def _on_tool_loop(start_call: Callable[[], Awaitable[Any]], threads: DaemonThreads) -> Any:
    """Awaits `start_call()` on the tools' event loop and raises what it raises.

    Cancelling cancels the call and waits 0.25 s for its end; a call that continues counts in `threads.num_abandoned`.
    """
    global _loop
    loop = _loop  # it ends when no call holds it any more and another one has replaced it
    task: asyncio.Task[Any] | None = None
    is_cancelled = False

    async def call() -> Any:
        nonlocal task
        if is_cancelled:
            raise asyncio.CancelledError
        task = asyncio.current_task()
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
            if not answer.done() and loop is _loop:
                _loop = BackgroundLoop(_NAME)
        raise
    finally:
        del loop  # a traceback may hold this frame
    return ended.result()
