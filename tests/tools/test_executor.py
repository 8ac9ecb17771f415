"""The calls of a turn run concurrently, in order, under a deadline, within the limits of all episodes; every failure becomes an
event, and nothing hangs, whatever a tool does."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from calling import TASK, Hang, Quick, call, results, run
from hypothesis import given
from hypothesis import strategies as st

from midthought.errors import SettingsError
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.function_tool import tool
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolEvent, ToolOutcome


@tool
def wait(seconds: float) -> str:
    """Waits."""
    time.sleep(seconds)
    return f"waited {seconds}"


cancelled: list[float] = []


@tool
async def async_wait(seconds: float) -> str:
    """Waits, and notes when it is cancelled."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        cancelled.append(seconds)
        raise
    return f"waited {seconds}"


ERRORS = {
    "plain": ValueError("no\n  luck"),
    "long": ValueError("x" * 500),
    "silent": ValueError(),
    "stop": StopIteration("over"),
    "surrogate": ValueError("\ud83d"),
}


@tool(name="raise")
def fail(how: str) -> str:
    """Fails."""
    raise ERRORS[how]


@tool
def say(what: list[Any]) -> str:
    """Says it."""
    what.append("changed")
    return str(what[0])


def executor(*tools: Tool, **settings: Any) -> ToolExecutor:
    return ToolExecutor(ToolRegistry(tools or [wait, async_wait, fail, say]), **settings)


def outcome(box: ToolExecutor, action: ParsedAction) -> tuple[ToolOutcome, str | None]:
    (event,) = run(box, action)
    assert event.call.success is (event.outcome is ToolOutcome.OK)
    return event.outcome, event.call.result


def called(box: ToolExecutor, *names: str) -> Any:
    return box.run([call(name) for name in names], TASK)


def test_waiting_for_a_slot_does_not_count_against_the_deadline() -> None:
    box = executor(max_concurrency=1, timeout_seconds=0.4)
    events = run(box, *[call("wait", seconds=0.25)] * 3)
    assert [event.outcome for event in events] == [ToolOutcome.OK] * 3
    assert events[2].seconds >= 0.7


def test_a_hung_tool_does_not_keep_the_interpreter_from_ending() -> None:
    script = "from test_executor import *; print(outcome(executor(timeout_seconds=0.05), call('wait', seconds=60))[0])"
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, timeout=20)
    assert done.stdout.strip() == b"timed_out"


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


def test_metadata_in_the_record_does_not_change_with_the_tools_objects() -> None:
    seen: list[str] = []

    @tool
    def see(what: str) -> ToolOutput:
        """Sees."""
        seen.append(what)
        return ToolOutput("seen", {"seen": seen})

    box = executor(see)
    events = [run(box, call("see", what=what))[0] for what in "ab"]
    assert [event.metadata["seen"] for event in events] == [["a"], ["a", "b"]]


def test_calls_beyond_the_budget_are_answered_but_not_run() -> None:
    events = run(executor(), *[call("say", what=["a"])] * 3, calls_left=1)
    assert [event.outcome for event in events] == [ToolOutcome.OK, *[ToolOutcome.NO_CALLS_LEFT] * 2]
    assert events[1].call.result == "no calls left; go on with what you have"
    assert run(executor(), call("say", what=["a"]), calls_left=-1)[0].outcome is ToolOutcome.NO_CALLS_LEFT


def test_a_tools_own_deadline_takes_the_place_of_the_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    box = executor(timeout_seconds=0.05)
    for each in (wait, async_wait):
        action = call(each.definition.name, seconds=0.2)
        monkeypatch.setattr(each, "timeout_seconds", 20.0)
        assert outcome(box, action) == (ToolOutcome.OK, "waited 0.2") and not cancelled
        monkeypatch.setattr(each, "timeout_seconds", 0.01)
        assert outcome(box, action) == (ToolOutcome.TIMED_OUT, "no answer within 0.01 seconds; go on without it")
    assert cancelled == [0.2]


def test_a_limit_that_makes_no_sense_is_refused() -> None:
    for name in ("timeout_seconds", "max_concurrency", "max_threads"):
        with pytest.raises(SettingsError, match=f"{name} must be .*, not 0"):
            executor(**{name: 0})
    with pytest.raises(SettingsError, match=r"max_threads must be an integer of 1 or more, not 2\.5"):
        executor(max_threads=2.5)


def test_an_arm_overrides_the_answer_and_nothing_else() -> None:
    class Oracle(ToolExecutor):
        async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
            if action.parameters["what"] == []:
                raise RuntimeError("the tool is off")
            return ToolOutput(task.answer)

    box = Oracle(ToolRegistry([say]))
    assert outcome(box, call("say", what=["a"])) == (ToolOutcome.OK, "Ada")
    assert outcome(box, call("say", what=[])) == (ToolOutcome.RAISED, "the tool is off")
    assert outcome(box, call("say"))[0] is ToolOutcome.BAD_ARGUMENTS


def test_the_calls_of_64_episodes_run_all_at_once_by_default() -> None:
    barrier = threading.Barrier(64)

    @tool
    def meet() -> str:
        """Waits for the others."""
        barrier.wait(10)
        return "met"

    async def all_episodes() -> list[list[ToolEvent]]:
        box = executor(meet)
        return await asyncio.gather(*(called(box, "meet") for _ in range(64)))

    for events in asyncio.run(all_episodes()):
        assert results(events) == ["met"]


class Watched(Tool):
    """Takes some turns of the event loop; knows how many of its calls run, and how many run of all tools."""

    def __init__(self, name: str, running: Counter[str], max_concurrency: int | None) -> None:
        self.definition = ToolDefinition(name, "Waits.", [ToolParameter("turns", "integer", "How long.")])
        self.max_concurrency = max_concurrency
        self.executed: list[int] = []
        self.most = 0
        self._running = running

    async def execute(self, turns: int) -> ToolOutput:
        name = self.definition.name
        self._running[name] += 1
        self.executed.append(turns)
        try:
            self.most = max(self.most, self._running[name])
            self._running["most"] = max(self._running["most"], sum(self._running[key] for key in "abc"))
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns == 3:
                raise ValueError("not three")
            return ToolOutput(f"{name}{turns}")
        finally:
            self._running[name] -= 1


@given(
    st.integers(1, 5),
    st.tuples(*[st.none() | st.integers(1, 3)] * 3),
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=4), min_size=1, max_size=6),
)
def test_limits_hold_at_any_moment_and_results_come_in_order(
    max_concurrency: int, limits: tuple[int | None, ...], episodes: list[list[tuple[str, int]]]
) -> None:
    running: Counter[str] = Counter()
    tools = {name: Watched(name, running, limit) for name, limit in zip("abc", limits, strict=True)}
    box = executor(*tools.values(), max_concurrency=max_concurrency)

    async def everybody() -> list[list[ToolEvent]]:
        asked = [[call(name, turns=turns) for name, turns in calls] for calls in episodes]
        return await asyncio.gather(*(box.run(calls, TASK) for calls in asked))

    done = asyncio.run(everybody())
    assert running["most"] <= max_concurrency and not any(running[name] for name in "abc")
    for calls, events in zip(episodes, done, strict=True):
        assert results(events) == ["not three" if turns == 3 else f"{name}{turns}" for name, turns in calls]
    for name, each in tools.items():
        assert each.max_concurrency is None or each.most <= each.max_concurrency
        asked = [turns for calls in episodes for asked_name, turns in calls if asked_name == name]
        assert sorted(each.executed) == sorted(asked)


def test_of_what_a_tool_returns_only_so_many_characters_are_kept_and_the_cut_is_marked(monkeypatch) -> None:
    monkeypatch.setattr("midthought.tools.executor.MAX_RESULT_CHARS", 9)
    assert outcome(executor(), call("say", what=["tide " * 40])) == (ToolOutcome.OK, "tide tide …[cut]")


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
    box = executor(hang, Quick(), timeout_seconds=0.05, max_threads=1)
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
    box = executor(hang, async_hang, Quick(), timeout_seconds=60, max_concurrency=2)

    async def rollout() -> None:
        episode = asyncio.create_task(called(box, *[name] * 4))
        while hang.num_begun + async_hang.num_running < 2:
            await asyncio.sleep(0.01)
        began = time.perf_counter()
        episode.cancel()
        await asyncio.wait({episode})
        assert episode.cancelled() and async_hang.num_running == 0
        (event,) = await called(box, "quick")
        assert event.outcome is ToolOutcome.OK and time.perf_counter() - began < 5

    asyncio.run(rollout())
    hang.over.set()


def test_one_executor_serves_several_loops_even_when_calls_had_to_wait() -> None:
    box = executor(Quick(), max_concurrency=1)
    for _ in range(2):
        assert [event.outcome for event in run(box, *[call("quick")] * 3)] == [ToolOutcome.OK] * 3


class Asked(asyncio.SelectorEventLoop):
    """Calls `then` when it is asked whether it is closed."""

    then: Any = None

    def is_closed(self) -> bool:
        if self.then is not None:
            then, self.then = self.then, None
            then()
        return super().is_closed()


def test_loops_of_several_threads_that_begin_at_once_all_keep_their_places() -> None:
    """While one loop begins, which asks the others whether they are closed, another one begins, and its call hangs."""
    hang = Hang()
    box = executor(hang, Quick(), timeout_seconds=60, max_concurrency=1)
    has_begun, may_go_on = threading.Event(), threading.Event()

    async def second_call_runs() -> bool:
        calls = [asyncio.create_task(called(box, "hang"))]
        while not hang.num_begun:
            await asyncio.sleep(0.01)
        has_begun.set()
        await asyncio.to_thread(may_go_on.wait, 60)
        calls.append(asyncio.create_task(called(box, "quick")))
        done, _ = await asyncio.wait(calls, timeout=0.2)
        hang.over.set()
        await asyncio.gather(*calls)
        return bool(done)

    with ThreadPoolExecutor(1) as pool, asyncio.Runner(loop_factory=Asked) as first:
        first.run(called(box, "quick"))
        others: list[Any] = []
        first.get_loop().then = lambda: (
            others.append(pool.submit(asyncio.run, second_call_runs())),
            has_begun.wait(60),
        )
        assert run(box, call("quick"))[0].outcome is ToolOutcome.OK
        may_go_on.set()
        assert not others[0].result()


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


def test_all_async_tools_run_on_one_loop_that_outlives_the_loops_of_their_callers() -> None:
    one, other = Where("one"), Where("other")
    box = executor(one, other)
    for _ in range(2):
        asyncio.run(called(box, "one", "other"))
    assert len({*one.loops, *other.loops}) == 1 and not one.loops[0].is_closed()
    assert box.registry.execute_tool("one") == (True, "midthought-tools")


def test_while_a_tool_blocks_the_loop_the_rollout_goes_on_and_every_call_ends_at_its_deadline() -> None:
    has_begun, over = threading.Event(), threading.Event()

    @tool(timeout_seconds=0.3)
    async def block() -> str:
        """Blocks the event loop that it runs on, until the test is over."""
        has_begun.set()
        over.wait(60)
        return "free"

    where, patient = Where("where"), Where("patient")
    where.timeout_seconds, patient.timeout_seconds = 0.5, 60.0
    box = executor(block, where, patient, Quick())

    async def rollout() -> tuple[list[ToolEvent], list[ToolEvent], float]:
        blocking = asyncio.create_task(called(box, "block"))
        while not has_begun.is_set():
            await asyncio.sleep(0.001)
        started = time.perf_counter()
        waiting = [asyncio.create_task(called(box, name)) for name in ("where", "patient")]
        first = [*await called(box, "quick"), *await blocking, *await waiting[0]]
        seconds = time.perf_counter() - started
        over.set()
        return first, [*await waiting[1], *await called(box, "patient")], seconds

    first, second, seconds = asyncio.run(rollout())
    assert [event.outcome for event in first] == [ToolOutcome.OK, ToolOutcome.TIMED_OUT, ToolOutcome.TIMED_OUT]
    assert [event.outcome for event in second] == [ToolOutcome.OK, ToolOutcome.OK]
    assert seconds < 3
    assert where.loops == []  # a call that was given up before it began never runs
