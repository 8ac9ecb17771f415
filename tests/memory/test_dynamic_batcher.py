import asyncio
import threading
import time

import pytest

from midthought.memory.service.dynamic_batcher import DynamicBatcher


class Work:
    """Notes what came together; a call ends when it is let go."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, items: list[int]) -> list[int]:
        self.calls.append(items)
        self.gate.wait(5)
        if -1 in items:
            raise ValueError("minus one")
        return [10 * item for item in items]


def test_a_lone_item_goes_at_once_and_an_error_reaches_those_that_went_together_only():
    async def run() -> None:
        batcher = DynamicBatcher(Work(), max_batch_size=8, max_wait_seconds=60.0)
        started = time.perf_counter()
        assert await batcher.submit(1) == 10
        with pytest.raises(ValueError, match="minus one"):
            await batcher.submit(-1)
        assert await batcher.submit(2) == 20
        batcher.close()
        assert time.perf_counter() - started < 30

    asyncio.run(run())


def test_what_comes_while_work_goes_on_goes_together_in_parts_of_at_most_so_many():
    work = Work()

    async def run() -> list[int]:
        batcher = DynamicBatcher(work, max_batch_size=3, max_wait_seconds=0.0)
        work.gate.clear()
        first = asyncio.create_task(batcher.submit(0))
        while not work.calls:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(batcher.submit(number)) for number in range(1, 6)]
        await asyncio.sleep(0.01)
        work.gate.set()
        return await asyncio.gather(first, *others)

    assert asyncio.run(run()) == [0, 10, 20, 30, 40, 50]
    assert work.calls == [[0], [1, 2, 3], [4, 5]]


def test_an_item_waits_for_others_that_are_on_their_way():
    work = Work()

    async def run() -> None:
        num_others = 1
        batcher = DynamicBatcher(work, max_batch_size=8, max_wait_seconds=5.0, num_others=lambda: num_others)
        first = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.01)
        num_others = 0
        await asyncio.gather(first, batcher.submit(2))

    asyncio.run(run())
    assert work.calls == [[1, 2]]


def test_an_item_that_nobody_waits_for_any_more_is_left_out():
    work = Work()

    async def run() -> None:
        batcher = DynamicBatcher(work, max_batch_size=8, max_wait_seconds=0.0)
        work.gate.clear()
        first = asyncio.create_task(batcher.submit(0))
        while not work.calls:
            await asyncio.sleep(0.001)
        gone, stays = asyncio.create_task(batcher.submit(1)), asyncio.create_task(batcher.submit(2))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.sleep(0.01)
        work.gate.set()
        assert await stays == 20 and await first == 0

    asyncio.run(run())
    assert work.calls == [[0], [2]]
