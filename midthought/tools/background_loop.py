"""Event loop in a daemon thread, so that synchronous calls work in notebooks and inside running loops.

Not anyio's `start_blocking_portal`: that ends when a task raises SystemExit or KeyboardInterrupt, waits without limit for
coroutines at its end, and does not end when its owner is garbage-collected.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from midthought.errors import EngineError

T = TypeVar("T")

_CHECK_SECONDS = _CANCEL_SECONDS = 1.0
"""Time for cancelled coroutines to end when the loop is closed."""


class BackgroundLoop:
    """Runs coroutines from synchronous code.

    The thread starts with the first coroutine and ends with `close`, or when this object is garbage-collected.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: weakref.finalize[..., BackgroundLoop] | None = None

    def run(self, coroutine: Coroutine[Any, Any, T], check: Callable[[], None] | None = None) -> T:
        """Returns the coroutine's result or raises its exception. Ctrl-C while waiting cancels it, and so does an exception of
        `check`, which is called every second.

        Raises `CancelledError` if `close` cancels it, `EngineError` if called on this loop, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            remedy = "call this from a plain function instead (a tool's plain `execute` runs in its own thread)"
            raise EngineError(f"a coroutine cannot wait for the event loop that it runs on; {remedy}")
        future = self.start(coroutine)
        try:
            while check is not None and not concurrent.futures.wait([future], _CHECK_SECONDS).done:
                check()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts the coroutine without waiting for it."""
        with self._lock:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop or self._start_thread())

    def close(self) -> None:
        """Cancels all coroutines and stops the thread. A later `run` starts a new one."""
        with self._lock:
            if self._stop is not None:
                self._stop()
            self._loop = self._thread = self._stop = None

    def _start_thread(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name=self._name, daemon=True)
        self._stop = weakref.finalize(self, _stop, self._loop)
        self._stop.atexit = False
        self._thread.start()
        return self._loop


class SilenceError(Exception):
    """What is waited for makes no progress."""


def silence_check(progress: Callable[[], object], seconds: float) -> Callable[[], None]:
    """Returns a function to call again and again in a wait. It raises `SilenceError` if `progress` has returned the same for so
    many seconds."""
    seen, since = progress(), time.monotonic()

    def check() -> None:
        nonlocal seen, since
        if (found := progress()) != seen:
            seen, since = found, time.monotonic()
        elif time.monotonic() - since > seconds:
            raise SilenceError

    return check


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    is_stopped = False
    while not is_stopped:
        # If a task raises SystemExit or KeyboardInterrupt, run_forever raises it, too; the caller gets it from the future.
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
            is_stopped = True
    running = asyncio.all_tasks(loop)
    for task in running:
        task.cancel()
    if running:
        loop.run_until_complete(asyncio.wait(running, timeout=_CANCEL_SECONDS))
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)
