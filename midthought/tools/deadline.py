"""Runs a coroutine of unknown code under a deadline, even if it hangs, ignores its cancellation or raises SystemExit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_CANCEL_SECONDS = 0.5
"""Time for a cancelled coroutine to end. A tool's own coroutine has half of it (`concurrency`)."""


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
    running.add_done_callback(retrieve_exception)
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
        raise RuntimeError("cancelled by the tool")
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


def retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Prevents asyncio's message "exception was never retrieved"."""
    if not future.cancelled():
        future.exception()
