"""Samples on one side, new weights on the other: while one of them is at work the other waits.

Knows no servers. Callers may live on different event loops, even in different threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from midthought.errors import EngineError

_POLL_SECONDS = 0.01


class UpdateLock:
    """Many may sample at once; whoever changes the weights is alone, and goes before samples that begin later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_sampling = 0
        self._is_shut = False

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Wait until no weights are being changed; none are within."""
        while not self._enter():
            await asyncio.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            with self._lock:
                self._num_sampling -= 1

    @asynccontextmanager
    async def changing(self, timeout_seconds: float) -> AsyncIterator[None]:
        """Hold new samples back and wait for those that are on their way; EngineError where they take longer."""
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
        raise EngineError(f"the weights cannot be changed: samples were still on their way after {timeout_seconds:g} s")
    await asyncio.sleep(_POLL_SECONDS)
