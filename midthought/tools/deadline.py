"""Runs a stranger's coroutine under a deadline, whatever it does: hang, swallow its cancellation, leave the program.

Knows no tool and no call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_CANCEL_SECONDS = 0.5
"""How long a coroutine may take to end once it is cancelled; a tool's own has half of it (`loops`)."""


class TooLateError(Exception):
    """The deadline came first."""


async def within(seconds: float, coroutine: Coroutine[Any, Any, T], *, on_deaf: Callable[[], None]) -> T:
    """The result of `coroutine`, which runs in a task of its own; what it raises is raised here.

    TooLateError after `seconds`; RuntimeError where the coroutine cancelled itself, or tried to leave the program.
    When the deadline has passed, or whoever waits here is cancelled, it is cancelled and has a moment to end.
    `on_deaf` is called where it does not; it is left behind then, and no event loop waits for it at its own end.

    `asyncio.wait_for` and `asyncio.timeout` would wait for a coroutine that refuses to be cancelled.
    """
    running = asyncio.ensure_future(contained(coroutine))
    running.add_done_callback(_look_at)
    is_late = False
    try:
        await asyncio.wait((running,), timeout=seconds)
        is_late = not running.done()
    finally:
        if not running.done():
            await _stop(running, on_deaf)
    if is_late:
        raise TooLateError
    if running.cancelled():
        raise RuntimeError("cancelled by the tool")
    error = running.exception()
    if error is None or isinstance(error, Exception):
        return running.result()
    raise _failure(error) from error


async def contained(coroutine: Awaitable[T]) -> T:
    """A task would throw these out of the event loop, past everybody who awaits the task."""
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as stop:
        raise _failure(stop) from stop


def _failure(stop: BaseException) -> RuntimeError:
    return RuntimeError(f"{type(stop).__name__}: {stop}".removesuffix(": "))


async def _stop(running: asyncio.Task[Any], on_deaf: Callable[[], None]) -> None:
    running.cancel()
    try:
        await asyncio.wait((running,), timeout=_CANCEL_SECONDS)
    finally:
        if not running.done():
            on_deaf()
            _leave(running)


def _leave(running: asyncio.Task[Any]) -> None:
    """Take it from the tasks for whose end `asyncio.run` waits: this one may never come to it."""
    asyncio.tasks._unregister_task(running)
    running._log_destroy_pending = False  # type: ignore[attr-defined]


def _look_at(future: asyncio.Future[Any]) -> None:
    """Ask for the exception, so that asyncio does not report it as never looked at."""
    if not future.cancelled():
        future.exception()
