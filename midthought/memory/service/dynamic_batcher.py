"""Dynamic batching: items that arrive at about the same time are processed together. Does not depend on what the items are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Other = TypeVar("Other")


class DynamicBatcher(Generic[Item, Result]):
    """Calls `work` in one thread with batches of at most `max_batch_size` items.

    An item that arrives while nothing is running starts at once. Items that arrive while `work` runs form the next
    batch. If further callers are about to submit (`num_others()` of them), a batch waits for them, but at most
    `max_wait_seconds`.
    """

    def __init__(
        self,
        work: Callable[[list[Item]], Sequence[Result]],
        *,
        max_batch_size: int,
        max_wait_seconds: float,
        num_others: Callable[[], int] = lambda: 0,
    ) -> None:
        self._work = work
        self._max_items = max_batch_size
        self._window_seconds = max_wait_seconds
        self._num_others = num_others
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._came = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="midthought-collector")

    async def submit(self, item: Item) -> Result:
        """Returns the result of `work` for the item. Raises what `work` raised for the batch."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._came.set()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def alone(self, function: Callable[[], Other]) -> Other:
        """Runs `function()` in the thread of `work`, so that the two never compute at the same time."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def before_all(self, function: Callable[[], Other]) -> Other:
        """The same before an event loop runs."""
        return self._thread.submit(function).result()

    def close(self) -> None:
        """Stops the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                await self._gather()
                taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_items))]
                taken = [(item, future) for item, future in taken if not future.done()]  # skip cancelled items
                if not taken:
                    continue
                try:
                    results = await loop.run_in_executor(self._thread, self._work, [item for item, _ in taken])
                except Exception as error:
                    for _, future in taken:
                        if not future.done():
                            future.set_exception(error)
                else:
                    for (_, future), result in zip(taken, results, strict=True):
                        if not future.done():
                            future.set_result(result)
        finally:
            self._running = None

    async def _gather(self) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._window_seconds
        while len(self._waiting) < min(self._max_items, len(self._waiting) + self._num_others()):
            self._came.clear()
            try:
                async with asyncio.timeout_at(ends_at):
                    await self._came.wait()
            except TimeoutError:
                return
