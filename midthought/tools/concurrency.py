"""How many calls run at once on one event loop: of one tool, in threads, of all. Knows no call and no deadline."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator

from midthought.tools.definition import Tool


class Places:
    """Who comes first is served first. A place that is waited for while another is held is always a more common one, so
    nobody waits in a circle."""

    def __init__(self, *, max_concurrency: int, max_threads: int) -> None:
        self._all = asyncio.Semaphore(max_concurrency)
        self._threads = asyncio.Semaphore(max_threads)
        self._of_tools: dict[str, asyncio.Semaphore] = {}

    @contextlib.asynccontextmanager
    async def take(self, tool: Tool) -> AsyncIterator[None]:
        """Wait for a place among the calls of this tool, if those are limited; among the threads, if it needs one; and
        among all."""
        taken: list[asyncio.Semaphore] = []
        try:
            for places in self._needed(tool):
                await places.acquire()
                taken.append(places)
            yield
        finally:
            for places in taken:
                places.release()

    def _needed(self, tool: Tool) -> list[asyncio.Semaphore]:
        needed = []
        if tool.max_concurrency is not None:
            name = tool.definition.name
            if name not in self._of_tools:
                self._of_tools[name] = asyncio.Semaphore(tool.max_concurrency)
            needed.append(self._of_tools[name])
        if not inspect.iscoroutinefunction(tool.execute):
            needed.append(self._threads)
        return [*needed, self._all]
