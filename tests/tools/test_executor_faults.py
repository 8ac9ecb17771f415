"""Nothing hangs: tools that never return or block the event loop of all async tools, and episodes that end early."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest
from calling import TASK, Hang, Quick, call, run

from midthought.tools.definition import Tool, ToolDefinition
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ToolEvent, ToolOutcome


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


# -- the event loop of async tools -----------------------------------------------------------------------------------


class Where(Tool):
    """Answers with its event loop and its thread."""

    timeout_seconds = 5.0

    def __init__(self, name: str) -> None:
        self.definition = ToolDefinition(name, "Answers.")
        self.loops: list[asyncio.AbstractEventLoop] = []

    async def execute(self) -> str:
        self.loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return threading.current_thread().name


class Block(Tool):
    """Blocks the event loop that it runs on, until the test is over."""

    definition = ToolDefinition("block", "Blocks.")
    timeout_seconds = 0.3

    def __init__(self) -> None:
        self.has_begun, self.over = threading.Event(), threading.Event()

    async def execute(self) -> str:
        self.has_begun.set()
        self.over.wait(60)
        return "free"


def called(box: ToolExecutor, *names: str) -> Any:
    return box.run([call(name) for name in names], TASK)


def test_all_async_tools_run_on_one_loop_that_outlives_the_loops_of_their_callers() -> None:
    one, other = Where("one"), Where("other")
    box = ToolExecutor(ToolRegistry([one, other]))
    for _ in range(2):
        asyncio.run(called(box, "one", "other"))
    assert len({*one.loops, *other.loops}) == 1 and not one.loops[0].is_closed()
    assert box.registry.execute_tool("one") == (True, "midthought-tools")


def test_while_a_tool_blocks_the_loop_the_rollout_goes_on_and_every_call_ends_at_its_deadline() -> None:
    block, where, patient = Block(), Where("where"), Where("patient")
    where.timeout_seconds, patient.timeout_seconds = 0.5, 60.0
    box = ToolExecutor(ToolRegistry([block, where, patient, Quick()]))

    async def rollout() -> tuple[list[ToolEvent], list[ToolEvent], float]:
        blocking = asyncio.create_task(called(box, "block"))
        while not block.has_begun.is_set():
            await asyncio.sleep(0.001)
        started = time.perf_counter()
        waiting = [asyncio.create_task(called(box, name)) for name in ("where", "patient")]
        first = [*await called(box, "quick"), *await blocking, *await waiting[0]]
        seconds = time.perf_counter() - started
        block.over.set()
        return first, [*await waiting[1], *await called(box, "patient")], seconds

    first, second, seconds = asyncio.run(rollout())
    assert [event.outcome for event in first] == [ToolOutcome.OK, ToolOutcome.TIMED_OUT, ToolOutcome.TIMED_OUT]
    assert [event.outcome for event in second] == [ToolOutcome.OK, ToolOutcome.OK]
    assert seconds < 3
    assert where.loops == []  # a call that was given up before it began never runs


def test_a_tool_on_the_loop_that_would_wait_for_the_loop_is_told_the_remedy() -> None:
    class Nested(Where):
        async def execute(self) -> str:
            return str(registry.execute_tool("where"))

    registry = ToolRegistry([Where("where"), Nested("nested")])
    is_ok, told = registry.execute_tool("nested")
    assert is_ok and "call this from a plain function" in told
