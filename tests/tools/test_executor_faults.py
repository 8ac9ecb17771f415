"""Nothing hangs: tools that never return, and episodes that end early."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest
from calling import TASK, Hang, Quick, call, run

from midthought.tools.definition import Tool, ToolDefinition
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ToolOutcome


class AsyncHang(Tool):
    definition = ToolDefinition("async_hang", "Never returns.")
    num_running = 0

    async def execute(self) -> str:
        self.num_running += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.num_running -= 1
        raise AssertionError("unreachable")


def test_threads_that_hang_hold_no_place() -> None:
    hang = Hang()
    box = ToolExecutor(ToolRegistry([hang, Quick()]), timeout_seconds=0.05, max_threads=2, max_concurrency=2)
    events = run(box, *[call("hang")] * 5, call("quick"))
    assert [event.outcome for event in events] == [ToolOutcome.TIMED_OUT] * 5 + [ToolOutcome.OK]
    hang.over.set()


def test_calls_that_never_return_do_not_take_more_and_more_threads() -> None:
    hang = Hang()
    box = ToolExecutor(ToolRegistry([hang, Quick()]), timeout_seconds=0.05, max_threads=1)
    num_threads = threading.active_count()
    events = run(box, *[call("hang")] * 10, call("quick"))
    outcomes = Counter(event.outcome for event in events)
    assert outcomes == {ToolOutcome.TIMED_OUT: 4, ToolOutcome.UNAVAILABLE: 7}
    assert "4 earlier calls still run after their deadline" in events[-1].call.result
    assert threading.active_count() <= num_threads + 4
    hang.over.set()
    deadline = time.monotonic() + 30
    while run(box, call("quick"))[0].outcome is not ToolOutcome.OK:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("name", ["hang", "async_hang"])
def test_an_episode_that_is_cancelled_gives_its_places_back_at_once(name: str) -> None:
    hang, async_hang = Hang(), AsyncHang()
    box = ToolExecutor(ToolRegistry([hang, async_hang, Quick()]), timeout_seconds=60, max_concurrency=2)

    async def rollout() -> None:
        episode = asyncio.create_task(box.run([call(name)] * 4, TASK))
        while hang.num_begun + async_hang.num_running < 2:
            await asyncio.sleep(0.01)
        began = time.perf_counter()
        episode.cancel()
        await asyncio.wait({episode})
        assert episode.cancelled() and async_hang.num_running == 0
        (event,) = await box.run([call("quick")], TASK)
        assert event.outcome is ToolOutcome.OK and time.perf_counter() - began < 5

    asyncio.run(rollout())
    hang.over.set()


def test_one_executor_serves_several_loops_even_when_calls_had_to_wait() -> None:
    box = ToolExecutor(ToolRegistry([Quick()]), max_concurrency=1)
    for _ in range(2):
        assert [event.outcome for event in run(box, *[call("quick")] * 3)] == [ToolOutcome.OK] * 3
