"""A tool that blocks its event loop is reported, and delays no other tool."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from typing import Any

import pytest

from midthought.tools.definition import Tool, ToolDefinition, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.function_tool import tool
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolEvent, ToolOutcome

TASK = Task(task_id="t", prompt="Who?", answer="Ada")


def call(name: str, **parameters: Any) -> ParsedAction:
    return ParsedAction(tool_name=name, parameters=parameters, raw_text="", success=True)


@tool
async def block(seconds: float) -> str:
    """Blocks, though it is a coroutine.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "blocked"


@tool
async def wait(seconds: float) -> str:
    """Waits as it should.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "waited"


async def timed(box: ToolExecutor, action: ParsedAction) -> tuple[ToolEvent, float]:
    started = time.perf_counter()
    [event] = await box.run([action], TASK)
    return event, time.perf_counter() - started


def test_a_coroutine_that_blocks_is_named_once_with_its_line(caplog: Any) -> None:
    caplog.set_level(logging.WARNING)
    box = ToolExecutor(ToolRegistry([block, wait]))

    async def episodes() -> None:
        await asyncio.gather(timed(box, call("block", seconds=0.8)), timed(box, call("wait", seconds=0.8)))
        await timed(box, call("block", seconds=0.7))

    asyncio.run(episodes())
    [record] = caplog.records
    assert "tool 'block' blocks its event loop" in record.message
    assert "test_event_loops.py, line " in record.message and "in block" in record.message


def test_calls_of_other_episodes_end_in_time_and_at_their_deadlines_meanwhile() -> None:
    box = ToolExecutor(ToolRegistry([block, wait]), timeout_seconds=0.3)

    async def episodes() -> list[tuple[ToolEvent, float]]:
        others = [timed(box, call("wait", seconds=seconds)) for seconds in (0.05, 60.0)]
        return await asyncio.gather(timed(box, call("block", seconds=1.5)), *others)

    blocked, quick, late = asyncio.run(episodes())
    assert (quick[0].outcome, late[0].outcome) == (ToolOutcome.OK, ToolOutcome.TIMED_OUT)
    assert blocked[0].outcome is ToolOutcome.TIMED_OUT
    assert quick[1] < 0.3 and max(late[1], blocked[1]) < 1.0


def test_after_a_call_that_blocks_for_ever_the_tool_answers_others() -> None:
    over = threading.Event()

    class Stuck(Tool):
        definition = ToolDefinition("stuck", "Gets stuck.", [ToolParameter("how", "string", "How.")])
        timeout_seconds = 0.8

        async def execute(self, how: str) -> str:
            if how == "for ever":
                over.wait(30)
            return "free"

    box = ToolExecutor(ToolRegistry([Stuck()]))
    [stuck] = asyncio.run(box.run([call("stuck", how="for ever")], TASK))
    [free] = asyncio.run(box.run([call("stuck", how="not at all")], TASK))
    over.set()
    assert (stuck.outcome, free.outcome) == (ToolOutcome.TIMED_OUT, ToolOutcome.OK)
    assert box.num_abandoned == 1


def test_what_a_tool_keeps_open_on_its_loop_outlives_the_loops_of_its_callers() -> None:
    class Client(Tool):
        definition = ToolDefinition("client", "Keeps a connection.")

        def __init__(self) -> None:
            self.loops: list[asyncio.AbstractEventLoop] = []

        async def execute(self) -> str:
            self.loops.append(asyncio.get_running_loop())
            return "connected"

    client = Client()
    box = ToolExecutor(ToolRegistry([client]))
    for _ in range(2):
        asyncio.run(box.run([call("client")], TASK))
    one, other = client.loops
    assert one is other and not one.is_closed()


def test_the_thread_ends_with_the_tool() -> None:
    class Brief(Tool):
        definition = ToolDefinition("brief", "Lives briefly.")

        async def execute(self) -> str:
            return threading.current_thread().name

    [event] = asyncio.run(ToolExecutor(ToolRegistry([Brief()])).run([call("brief")], TASK))
    assert event.call.result == "midthought-tool-brief"
    gc.collect()
    for _ in range(500):
        if event.call.result not in {thread.name for thread in threading.enumerate()}:
            return
        time.sleep(0.01)
    pytest.fail("the thread continues")
