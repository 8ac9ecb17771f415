"""Runs the code of tools: plain functions in daemon threads, coroutines on one background event loop for all tools, and any
coroutine under a deadline.

No tool runs on the event loop of the rollout. A tool that blocks the tools' event loop (`time.sleep` in a coroutine) delays the
other async tools, but neither the rollout nor any deadline.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from midthought.errors import EngineError
from midthought.tools.background_loop import BackgroundLoop

T = TypeVar("T")

_CANCEL_SECONDS = 0.5
"""Time for a cancelled coroutine to end. A tool's own coroutine has half of it."""
_numbers = itertools.count()
_Future = concurrent.futures.Future[tuple[Any, Exception | None]]
_loop, environments_loop = BackgroundLoop("midthought-tools"), BackgroundLoop("midthought-environments")
"""They outlive rollouts, so that a tool or an environment may keep a client open, which belongs to one loop."""


class DaemonThreads:
    """Runs each blocking function in a daemon thread of its own. May be shared by several event loops.

    Not `asyncio.to_thread`: the interpreter joins its threads at exit, so one hung tool would block the exit. Here a caller
    that is cancelled abandons its thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.num_lingering = 0
        """Calls that still run although their caller was cancelled (a deadline)."""
        self._lock = threading.Lock()

    async def run(self, function: Callable[[], T]) -> T:
        """Awaits `function()`, which sees the caller's context variables. Raises what it raises, or RuntimeError if that is not
        an Exception (SystemExit)."""
        future: _Future = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # from now on it cannot be cancelled
        run = functools.partial(contextvars.copy_context().run, _run, function, future)
        threading.Thread(target=run, name=f"{self._name}-{next(_numbers)}", daemon=True).start()
        try:
            value, error = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            with self._lock:
                self.num_lingering += 1
            future.add_done_callback(self._end_lingering)
            raise
        if error is not None:
            raise error
        return value

    def _end_lingering(self, _: _Future) -> None:
        with self._lock:
            self.num_lingering -= 1


def _run(function: Callable[[], Any], future: _Future) -> None:
    try:
        outcome: tuple[Any, Exception | None] = function(), None
    except Exception as error:
        outcome = None, error
    except BaseException as error:
        outcome = None, _failure(error)
    future.set_result(outcome)


# -- methods of tools ------------------------------------------------------------------------------------------


async def settled(method: Callable[[], Any], threads: DaemonThreads, loop: BackgroundLoop = _loop) -> Any:
    """Returns the result of a method: a plain function runs in a thread, a coroutine on a background event loop, by default
    that of the tools.

    Cancelling cancels a coroutine and waits 0.25 s for its end.
    """
    if inspect.iscoroutinefunction(method):
        return await on_loop(loop, method)
    result = await threads.run(method)
    return await on_loop(loop, lambda: result) if inspect.isawaitable(result) else result


def result_of(awaitable: Awaitable[Any]) -> Any:
    """Waits for an awaitable on the tools' event loop, without a deadline. Raises what it raises, and `EngineError` on that
    loop itself, which would wait for itself."""
    try:
        return _loop.run(contained(awaitable))
    except EngineError:
        if inspect.iscoroutine(awaitable):
            awaitable.close()  # it was not started
        raise


async def on_loop(loop: BackgroundLoop, start_call: Callable[[], Awaitable[Any]]) -> Any:
    """Returns the result of the awaitable that `start_call` returns, which runs on `loop`."""
    is_cancelled = False
    has_ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    async def call() -> tuple[Any, Exception | None]:
        try:
            return (None if is_cancelled else await contained(start_call())), None
        except Exception as error:
            return None, error
        finally:
            has_ended.set_result(None)

    try:
        value, error = await asyncio.wrap_future(loop.start(call()))
    except asyncio.CancelledError:
        is_cancelled = True
        await asyncio.wait((asyncio.wrap_future(has_ended),), timeout=_CANCEL_SECONDS / 2)
        raise
    if error is not None:
        raise error
    return value


# -- deadlines -------------------------------------------------------------------------------------------------


class TooLateError(Exception):
    """The deadline has passed."""


async def within(seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `coroutine`, which runs in its own task, or raises what it raises.

    Raises `TooLateError` after `seconds`, and RuntimeError if the coroutine cancelled itself or raised SystemExit.
    When the deadline has passed or the caller is cancelled, the coroutine is cancelled and has 0.5 s to end. If it does not
    end, the task is abandoned: its event loop does not wait for it when the loop closes.

    `asyncio.wait_for` and `asyncio.timeout` would wait for a coroutine that ignores its cancellation.
    """
    running = asyncio.ensure_future(contained(coroutine))
    # an exception that nobody waits for any more is retrieved, so that asyncio does not report it
    running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    is_late = False
    try:
        await asyncio.wait((running,), timeout=seconds)
        is_late = not running.done()
    finally:
        if not running.done():
            await _stop(running)
    if is_late:
        raise TooLateError
    if running.cancelled():
        raise RuntimeError("cancelled itself")
    error = running.exception()
    if error is None or isinstance(error, Exception):
        return running.result()
    raise _failure(error) from error


async def contained(coroutine: Awaitable[T]) -> T:
    """Turns SystemExit and KeyboardInterrupt into RuntimeError: a task would raise them out of the event loop, and whoever
    awaits the task would not get them."""
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as stop:
        raise _failure(stop) from stop


def _failure(stop: BaseException) -> RuntimeError:
    return RuntimeError(f"{type(stop).__name__}: {stop}".removesuffix(": "))


async def _stop(running: asyncio.Task[Any]) -> None:
    running.cancel()
    try:
        await asyncio.wait((running,), timeout=_CANCEL_SECONDS)
    finally:
        if not running.done():  # `asyncio.run` would wait for it at its end, and it may never end
            asyncio.tasks._unregister_task(running)
            running._log_destroy_pending = False  # type: ignore[attr-defined]
