"""The calls of a turn run concurrently, in order, under a deadline; every failure becomes an event."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from calling import call, run

from midthought.errors import SettingsError
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolOutcome


class Wait(Tool):
    definition = ToolDefinition("wait", "Waits.", [ToolParameter("seconds", "number", "How long.")])

    def execute(self, seconds: float) -> str:
        time.sleep(seconds)
        return f"waited {seconds}"


class AsyncWait(Tool):
    definition = ToolDefinition("async_wait", "Waits.", Wait.definition.parameters)
    was_cancelled = False

    async def execute(self, seconds: float) -> ToolOutput:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return ToolOutput(f"waited {seconds}", {"seconds": seconds})


class Raise(Tool):
    definition = ToolDefinition("raise", "Fails.", [ToolParameter("how", "string", "")])
    errors: ClassVar[dict[str, BaseException]] = {
        "plain": ValueError("no\n  luck"),
        "long": ValueError("x" * 500),
        "silent": ValueError(),
        "stop": StopIteration("over"),
        "surrogate": ValueError("\ud83d"),
    }

    def execute(self, how: str) -> str:
        raise self.errors[how]


class Say(Tool):
    definition = ToolDefinition("say", "Says it.", [ToolParameter("what", "array", "")])

    def execute(self, what: list[Any]) -> str:
        what.append("changed")
        return str(what[0])


def executor(**settings: Any) -> ToolExecutor:
    tools = [Wait(), AsyncWait(), Raise(), Say()]
    return ToolExecutor(ToolRegistry(tools), **settings)


def outcome(box: ToolExecutor, action: ParsedAction) -> tuple[ToolOutcome, str | None]:
    (event,) = run(box, action)
    assert event.call.success is (event.outcome is ToolOutcome.OK)
    return event.outcome, event.call.result


def test_waiting_for_a_slot_does_not_count_against_the_deadline() -> None:
    box = executor(max_concurrency=1, timeout_seconds=0.4)
    events = run(box, *[call("wait", seconds=0.25)] * 3)
    assert [event.outcome for event in events] == [ToolOutcome.OK] * 3
    assert events[2].seconds >= 0.7


def test_a_hung_tool_does_not_keep_the_interpreter_from_ending() -> None:
    script = (
        "import asyncio\nfrom test_executor import *\n"
        "print(run(executor(timeout_seconds=0.05), call('wait', seconds=60))[0].outcome)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=20
    )
    assert done.stdout.strip() == "timed_out"


def test_every_failure_is_an_event_with_short_words() -> None:
    malformed = ParsedAction(tool_name="say", parameters={}, raw_text="", success=False, error="bad JSON: x")
    box = executor()
    for action, expected, words in (
        (call("x"), ToolOutcome.UNKNOWN_TOOL, f"unknown tool 'x'; there is: {', '.join(box.registry.names())}"),
        (call("wait"), ToolOutcome.BAD_ARGUMENTS, "missing argument 'seconds'"),
        (call("raise", how="plain"), ToolOutcome.RAISED, "no luck"),
        (call("raise", how="long"), ToolOutcome.RAISED, "x" * 100),
        (call("raise", how="silent"), ToolOutcome.RAISED, "ValueError"),
        (call("raise", how="stop"), ToolOutcome.RAISED, "coroutine raised StopIteration"),
        (call("raise", how="surrogate"), ToolOutcome.RAISED, "?"),
        (call("say", what=["a\ud83db"]), ToolOutcome.OK, "a?b"),
        (malformed, ToolOutcome.MALFORMED, "bad JSON: x"),
        (dataclasses.replace(malformed, tool_name=None), ToolOutcome.MALFORMED, "bad JSON: x"),
    ):
        assert outcome(box, action) == (expected, words)


def test_calls_beyond_the_budget_are_answered_but_not_run() -> None:
    events = run(executor(), *[call("say", what=["a"])] * 3, calls_left=1)
    assert [event.outcome for event in events] == [ToolOutcome.OK, *[ToolOutcome.NO_CALLS_LEFT] * 2]
    assert events[1].call.result == "no calls left; go on with what you have"
    assert run(executor(), call("say", what=["a"]), calls_left=-1)[0].outcome is ToolOutcome.NO_CALLS_LEFT


def test_a_tools_own_deadline_takes_the_place_of_the_executors() -> None:
    box = executor(timeout_seconds=0.05)
    for name, seconds in (("wait", 0.2), ("async_wait", 0.2)):
        tool = box.registry.get(name)
        assert tool is not None
        tool.timeout_seconds = 20.0
        assert outcome(box, call(name, seconds=seconds)) == (ToolOutcome.OK, "waited 0.2")
        tool.timeout_seconds = 0.01
        words = "no answer within 0.01 seconds; go on without it"
        assert outcome(box, call(name, seconds=seconds)) == (ToolOutcome.TIMED_OUT, words)
    assert isinstance(tool, AsyncWait) and tool.was_cancelled


def test_a_limit_that_makes_no_sense_is_refused() -> None:
    for name in ("timeout_seconds", "max_concurrency", "max_threads"):
        with pytest.raises(SettingsError, match=f"{name} must be .*, not 0"):
            executor(**{name: 0})


def test_an_arm_overrides_the_answer_and_nothing_else() -> None:
    class Oracle(ToolExecutor):
        async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
            if action.parameters["what"] == []:
                raise RuntimeError("the tool is off")
            return ToolOutput(task.answer)

    box = Oracle(ToolRegistry([Say()]))
    assert outcome(box, call("say", what=["a"])) == (ToolOutcome.OK, "Ada")
    assert outcome(box, call("say", what=[])) == (ToolOutcome.RAISED, "the tool is off")
    assert outcome(box, call("say"))[0] is ToolOutcome.BAD_ARGUMENTS
