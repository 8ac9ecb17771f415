"""Reader-writer lock: samples are readers, weight updates are writers. Works across event loops and threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from midthought.errors import EngineError

_POLL_SECONDS = 0.01


class UpdateLock:
    """Allows many concurrent samples or one weight update. A waiting update has priority over new samples."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_sampling = 0
        self._is_shut = False

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Waits until no update is running; no update runs inside."""
        while not self._enter():
            await asyncio.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            with self._lock:
                self._num_sampling -= 1

    @asynccontextmanager
    async def changing(self, timeout_seconds: float) -> AsyncIterator[None]:
        """Blocks new samples and waits for running ones. Raises `EngineError` if they do not end in time."""
        deadline = time.monotonic() + timeout_seconds
        while not self._shut():
            await _until(deadline, timeout_seconds)
        try:
            while self._num_sampling:
                await _until(deadline, timeout_seconds)
            yield
        finally:
            self._is_shut = False

    def _enter(self) -> bool:
        with self._lock:
            self._num_sampling += not self._is_shut
            return not self._is_shut

    def _shut(self) -> bool:
        with self._lock:
            was_shut, self._is_shut = self._is_shut, True
            return not was_shut


async def _until(deadline: float, timeout_seconds: float) -> None:
    if time.monotonic() > deadline:
        raise EngineError(f"the weights cannot be changed: samples were still running after {timeout_seconds:g} s")
    await asyncio.sleep(_POLL_SECONDS)
