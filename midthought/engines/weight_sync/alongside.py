"""Runs blocking work, such as a broadcast, while a server is processing the request that takes part in it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from midthought.errors import EngineError

T = TypeVar("T")

_HEAD_START_SECONDS = 0.1
"""Time for a server to refuse the request before the work starts to wait for it."""


async def alongside(request: Coroutine[Any, Any, T], work: Callable[[], None], *, last_seconds: float = 60.0) -> T:
    """Returns the answer to the request, after `work` has ended in a thread of its own.

    The first error of either is raised at once, because the other one may wait for its counterpart without end. A thread that
    is left behind does not keep the process from ending.

    Args:
        last_seconds: time for the work to end after the server has answered.

    Raises `EngineError` if the work fails, or does not end in time.
    """
    answer = asyncio.ensure_future(request)
    try:
        await asyncio.wait([answer], timeout=_HEAD_START_SECONDS)
        if answer.done():
            answer.result()
        ended = _in_a_thread(work)
        both: list[asyncio.Future[Any]] = [answer, ended]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
            return await answer
        result = answer.result()
        await asyncio.wait([ended], timeout=last_seconds)
        if not ended.done():
            raise EngineError(f"it answered, but did not take part within {last_seconds:g} s")
        ended.result()
        return result
    finally:
        answer.cancel()


def _in_a_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Starts the work in a daemon thread. The future gets its end, or `EngineError`."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    ended.add_done_callback(lambda future: future.cancelled() or future.exception())

    def report(error: Exception | None) -> None:
        if error is not None:
            ended.set_exception(EngineError(f"the broadcast failed ({type(error).__name__}: {str(error)[:300]})"))
        else:
            ended.set_result(None)

    def run() -> None:
        error = None
        try:
            work()
        except Exception as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop may have been closed meanwhile
            loop.call_soon_threadsafe(report, error)

    threading.Thread(target=run, name="midthought-broadcast", daemon=True).start()
    return ended
