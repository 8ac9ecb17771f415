"""All async tools share one event loop, which is not the rollout's. A tool that blocks it stops nothing for long."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from calling import TASK, Quick, call

from midthought.tools.definition import Tool, ToolDefinition
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ToolEvent, ToolOutcome


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
        self.thread: threading.Thread | None = None

    async def execute(self) -> str:
        self.thread = threading.current_thread()
        self.has_begun.set()
        self.over.wait(60)
        return "free"


def run(box: ToolExecutor, *names: str) -> Any:
    return box.run([call(name) for name in names], TASK)


def test_all_async_tools_run_on_one_loop_that_outlives_the_loops_of_their_callers() -> None:
    one, other = Where("one"), Where("other")
    box = ToolExecutor(ToolRegistry([one, other]))
    for _ in range(2):
        asyncio.run(run(box, "one", "other"))
    assert len({*one.loops, *other.loops}) == 1 and not one.loops[0].is_closed()
    assert box.registry.execute_tool("one") == (True, "midthought-tools")


def test_while_a_tool_blocks_the_loop_the_rollout_goes_on_and_every_call_ends_at_its_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    block, where, patient, fresh = Block(), Where("where"), Where("patient"), Where("fresh")
    where.timeout_seconds, patient.timeout_seconds = 0.5, 60.0
    box = ToolExecutor(ToolRegistry([block, where, patient, fresh, Quick()]))

    async def rollout() -> tuple[list[ToolEvent], list[ToolEvent], float]:
        blocking = asyncio.create_task(run(box, "block"))
        while not block.has_begun.is_set():
            await asyncio.sleep(0.001)
        started = time.perf_counter()
        waiting = [asyncio.create_task(run(box, name)) for name in ("where", "patient")]
        plain = await run(box, "quick")
        late = await blocking + await waiting[0] + await run(box, "fresh")  # on a new loop
        seconds = time.perf_counter() - started
        block.over.set()
        return [*plain, *late], [*await waiting[1], *await run(box, "patient")], seconds

    first, second, seconds = asyncio.run(rollout())
    assert [event.outcome for event in first] == [
        *(ToolOutcome.OK, ToolOutcome.TIMED_OUT, ToolOutcome.TIMED_OUT),
        ToolOutcome.OK,
    ]
    assert [event.outcome for event in second] == [ToolOutcome.OK, ToolOutcome.OK]
    assert seconds < 3
    assert where.loops == []  # a call that was given up before it began never runs
    assert "the async tool 'block', or another one, blocks the event loop of all async tools" in caplog.text


def test_a_tool_on_the_loop_that_would_wait_for_the_loop_is_told_the_remedy() -> None:
    class Nested(Where):
        async def execute(self) -> str:
            return str(registry.execute_tool("where"))

    registry = ToolRegistry([Where("where"), Nested("nested")])
    is_ok, told = registry.execute_tool("nested")
    assert is_ok and "call this from a plain function" in told


def test_a_tool_that_ends_when_it_is_cancelled_keeps_the_loop_and_its_clients(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Where):
        timeout_seconds = 0.01

        async def execute(self) -> str:
            self.loops.append(asyncio.get_running_loop())
            await asyncio.sleep(60)
            return "too late"

    slow = Slow("slow")
    box = ToolExecutor(ToolRegistry([slow]))

    async def calls() -> None:
        for _ in range(100):  # one in six found the loop blocked as long as only its answer was looked at
            (event,) = await run(box, "slow")
            assert event.outcome is ToolOutcome.TIMED_OUT

    asyncio.run(calls())
    assert len(set(slow.loops)) == 1 and not caplog.records
