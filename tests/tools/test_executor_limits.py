"""Calls of all episodes run concurrently within the limits; equal calls of pure tools run once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

from calling import TASK, call
from hypothesis import given
from hypothesis import strategies as st

from midthought.tools import executor
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolEvent, ToolOutcome

NUM_EPISODES = 64


class Meet(Tool):
    """Answers only once as many calls as there are episodes run at the same time."""

    definition = ToolDefinition("meet", "Waits for the others.")

    def __init__(self) -> None:
        self.barrier = threading.Barrier(NUM_EPISODES)

    def execute(self) -> str:
        self.barrier.wait(10)
        return "met"


def test_the_calls_of_64_episodes_run_all_at_once_by_default() -> None:
    box = ToolExecutor(ToolRegistry([Meet()]))

    async def episode() -> list[ToolEvent]:
        return [event for _ in range(2) for event in await box.run([call("meet")], TASK)]

    async def all_episodes() -> list[list[ToolEvent]]:
        return await asyncio.gather(*(episode() for _ in range(NUM_EPISODES)))

    for events in asyncio.run(all_episodes()):
        assert [event.call.result for event in events] == ["met", "met"]


class Watched(Tool):
    """Takes some turns of the event loop; knows how many of its calls run, and how many run of all tools."""

    def __init__(self, name: str, running: Counter[str], max_concurrency: int | None, pure: bool) -> None:
        self.definition = ToolDefinition(name, "Waits.", [ToolParameter("turns", "integer", "How long.")])
        self.max_concurrency = max_concurrency
        self.pure = pure
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
            return ToolOutput(f"{name}{turns}", {"list": [turns]})
        finally:
            self._running[name] -= 1


@given(
    st.integers(1, 5),
    st.tuples(*[st.tuples(st.none() | st.integers(1, 3), st.booleans())] * 3),
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=4), min_size=1, max_size=6),
    st.booleans(),
)
def test_limits_hold_at_any_moment_and_results_come_in_order_whatever_is_shared(
    max_concurrency: int,
    about: tuple[tuple[int | None, bool], ...],
    episodes: list[list[tuple[str, int]]],
    in_rollout: bool,
) -> None:
    running: Counter[str] = Counter()
    tools = {name: Watched(name, running, *how) for name, how in zip("abc", about, strict=True)}
    box = ToolExecutor(ToolRegistry(tools.values()), max_concurrency=max_concurrency)

    async def everybody() -> list[list[ToolEvent]]:
        asked = [[call(name, turns=turns) for name, turns in calls] for calls in episodes]
        return await asyncio.gather(*(box.run(calls, TASK) for calls in asked))

    async def rollout() -> list[list[ToolEvent]]:
        if not in_rollout:
            return await everybody()
        with box.rollout():
            return await everybody()

    done = asyncio.run(rollout())
    assert running["most"] <= max_concurrency and not any(running[name] for name in "abc")
    shared: Counter[str] = Counter()
    for calls, events in zip(episodes, done, strict=True):
        for (name, turns), event in zip(calls, events, strict=True):
            assert event.call.result == ("not three" if turns == 3 else f"{name}{turns}")
            shared[name] += event.metadata.get("shared", False)
            assert event.metadata.get("list", [turns]) == [turns]
    for name, tool in tools.items():
        asked = [turns for calls in episodes for asked_name, turns in calls if asked_name == name]
        assert tool.max_concurrency is None or tool.most <= tool.max_concurrency
        assert len(tool.executed) == len(asked) - shared[name]
        if not tool.pure:
            assert shared[name] == 0
        elif in_rollout:
            good = [turns for turns in tool.executed if turns != 3]
            assert sorted(good) == sorted(set(asked) - {3})


class Search(Tool):
    definition = ToolDefinition("search", "Searches.", [ToolParameter("query", "string", "For what.")])
    pure = True

    def execute(self, query: str) -> ToolOutput:
        return ToolOutput(f"about {query}", {"lock": threading.Lock()})


def test_arms_answer_by_task_so_nothing_is_shared() -> None:
    class ByTask(ToolExecutor):
        async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
            return ToolOutput(task.answer)

    async def rollout(box: ToolExecutor) -> list[str | None]:
        tasks = [Task(task_id=name, prompt="Who?", answer=name) for name in ("Ada", "Bo")]
        with box.rollout():
            return [
                event.call.result for task in tasks for event in await box.run([call("search", query="tide")], task)
            ]

    assert asyncio.run(rollout(ByTask(ToolRegistry([Search()])))) == ["Ada", "Bo"]


def test_a_pure_tool_whose_metadata_cannot_be_copied_is_told_so() -> None:
    (event,) = asyncio.run(ToolExecutor(ToolRegistry([Search()])).run([call("search", query="tide")], TASK))
    assert event.outcome is ToolOutcome.RAISED and "JSON values only" in str(event.call.result)


def test_of_what_a_tool_returns_only_so_many_characters_are_kept_and_the_cut_is_marked(monkeypatch) -> None:
    class Flood(Tool):
        definition = ToolDefinition("flood", "Says much.")

        def execute(self) -> str:
            return "tide " * 40

    monkeypatch.setattr(executor, "MAX_RESULT_CHARS", 9)
    box = ToolExecutor(ToolRegistry([Flood()]))
    [event] = asyncio.run(box.run([call("flood")], TASK))
    assert (event.outcome, event.call.result) == (ToolOutcome.OK, "tide tide …[cut]")
