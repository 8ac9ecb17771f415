"""Blocking functions run in daemon threads and awaited; a caller that gives up leaves its thread behind and counts it.

`asyncio.to_thread` will not do: its threads are joined when the interpreter ends, so one hung tool would hang the exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

_IDLE_SECONDS = 30.0
_numbers = itertools.count()


class _Job(NamedTuple):
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class DaemonThreads:
    """As many threads as calls run at once, used again, ended after 30 idle seconds. Safe to share between loops."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: deque[queue.SimpleQueue[_Job]] = deque()
        self.num_abandoned = 0
        """Calls whose caller was cancelled (a deadline) while their thread went on."""

    async def run(self, function: Callable[[], T]) -> T:
        """Await `function()`. What it raises is raised here, as RuntimeError where it is no Exception (SystemExit)."""
        loop = asyncio.get_running_loop()
        job = _Job(function, loop, loop.create_future())
        self._inbox().put(job)
        try:
            value, error = await job.future
        except asyncio.CancelledError:
            self.num_abandoned += 1
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
                except ValueError:  # taken a moment ago: a job is on its way
                    continue
                return
            value, error = None, None
            try:
                value = job.function()
            except Exception as raised:
                error = raised
            except BaseException as raised:
                error = RuntimeError(f"{type(raised).__name__}: {raised}")
            self._idle.append(inbox)
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                job.loop.call_soon_threadsafe(_settle, job.future, (value, error))
            del job, value, error


def _settle(future: asyncio.Future[Any], outcome: tuple[Any, Exception | None]) -> None:
    if not future.done():
        future.set_result(outcome)
