"""An event loop in a thread of its own, so that synchronous calls work in notebooks and inside other running loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from midthought.errors import EngineError

T = TypeVar("T")

_CANCEL_SECONDS = 1.0
"""How long coroutines may take to end when the loop is closed under them."""


class BackgroundLoop:
    """Runs coroutines from synchronous code. The thread starts with the first one and ends with `close`, or when nobody
    holds this object any more."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: weakref.finalize[..., BackgroundLoop] | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the coroutine's result; what it raises is raised here. Ctrl-C while waiting cancels it.

        CancelledError where `close` came first. EngineError from a coroutine of this very loop: it would wait for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise EngineError(
                "a coroutine cannot wait for the event loop that it runs on; call this from a plain function instead "
                "(a tool's plain `execute` gets a thread of its own)"
            )
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin the coroutine and do not wait for it."""
        with self._lock:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop or self._begin())

    def close(self) -> None:
        """Cancel what is running and stop the thread; a later `run` starts another."""
        with self._lock:
            if self._stop is not None:
                self._stop()
            self._loop = self._thread = self._stop = None

    def _begin(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_work, args=(self._loop,), name=self._name, daemon=True)
        self._stop = weakref.finalize(self, _stop, self._loop)
        self._stop.atexit = False
        self._thread.start()
        return self._loop


def _work(loop: asyncio.AbstractEventLoop) -> None:
    is_stopped = False
    while not is_stopped:
        # A task that raises SystemExit or KeyboardInterrupt also throws it out of here; whoever waits for it has it.
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
