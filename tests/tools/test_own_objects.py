"""Tools that call an object of the user: the step of an environment, or a function that answers queries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from calling import TASK, call, run

from midthought.errors import SettingsError
from midthought.tools.builtin.own_objects import EnvironmentStepTool, QueryTool
from midthought.tools.definition import ToolEpisode
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry


class Counter:
    """Counts actions; slow enough that two steps at once would lose one."""

    def __init__(self, num_values: int = 4) -> None:
        self.num_values = num_values
        self.actions: list[str] = []

    def step(self, action: str) -> tuple[Any, ...]:
        self.actions.append(action)
        done = len(self.actions) == 3
        ends = (done,) if self.num_values == 4 else (False, done)
        return (f"You did {action}.", len(self.actions) / 2, *ends, {"ignored": object()})


class AsyncCounter(Counter):
    async def step(self, action: str) -> tuple[Any, ...]:  # type: ignore[override]
        before = len(self.actions)
        await asyncio.sleep(0.001)
        assert len(self.actions) == before, "another step ran meanwhile"
        return super().step(action)


@pytest.mark.parametrize("environment", [Counter(), Counter(num_values=5), AsyncCounter()])
def test_steps_run_in_order_and_tell_observation_reward_and_end(environment: Counter) -> None:
    box = ToolExecutor(ToolRegistry([EnvironmentStepTool(environment)]))
    events = run(box, *(call("environment_step", action=action) for action in ("look", "take", "leave")))
    assert environment.actions == ["look", "take", "leave"]
    assert [event.call.result for event in events] == [
        "You did look.\nreward: 0.5; the episode continues",
        "You did take.\nreward: 1; the episode continues",
        "You did leave.\nreward: 1.5; the episode has ended",
    ]
    assert events[0].metadata == {"reward": 0.5, "done": False} and events[2].metadata == {"reward": 1.5, "done": True}


def test_what_the_environment_raises_or_gives_wrongly_is_an_error_that_the_model_reads() -> None:
    class Broken:
        def step(self, action: str) -> str:
            return {"x": "only words"}[action]

    do = ToolRegistry([EnvironmentStepTool(Broken(), name="do", description="Does it.")]).execute_tool
    assert do("do", action="y") == (False, "Tool execution error: KeyError: 'y'")
    wrong = "Tool execution error: step returned str, not (observation, reward, done, info)"
    assert do("do", action="x") == (False, wrong)


def test_without_an_environment_it_steps_that_of_the_episode() -> None:
    box, step = ToolExecutor(ToolRegistry([EnvironmentStepTool()])), call("environment_step", action="look")
    worlds = [Counter(), Counter()]

    async def episodes() -> None:
        tools = [box.for_episode(ToolEpisode(task=TASK, environment=world)) for world in worlds]
        await asyncio.gather(*(box.run([step] * 2, TASK, tools=each) for each in tools))

    asyncio.run(episodes())
    assert [world.actions for world in worlds] == [["look", "look"]] * 2
    mine, its = Counter(), Counter()
    box_of_mine = ToolExecutor(ToolRegistry([EnvironmentStepTool(mine)]))
    for environment in (its, None, object()):
        tools = box_of_mine.for_episode(ToolEpisode(task=TASK, environment=environment))
        run(box_of_mine, step, tools=tools)
    assert its.actions == ["look"] and mine.actions == ["look"] * 2, (
        "an episode's own environment of the class comes first"
    )
    assert run(box, step)[0].call.result == "the episode of task 't' has no environment to step"
    is_ok, told = box.registry.execute_tool("environment_step", action="look")
    assert not is_ok and "has no environment; give it one, or call it in an episode" in told


def test_a_function_answers_plain_or_async_and_an_empty_query_is_an_error_that_the_model_reads() -> None:
    async def later(query: str) -> str:
        return f"later: {query}"

    registry = ToolRegistry([QueryTool(str.upper), QueryTool(later, name="later", description="Later.")])
    assert registry.execute_tool("query", query="tide") == (True, "TIDE")
    assert registry.execute_tool("later", query="tide") == (True, "later: tide")
    assert registry.execute_tool("query", query=" \n") == (False, "Tool execution error: query is empty")


@pytest.mark.parametrize("source", [["a text"], {"a": "text"}, "text"])
def test_what_is_no_function_is_refused(source: object) -> None:
    with pytest.raises(SettingsError, match=f"a function of the query, not a {type(source).__name__}"):
        QueryTool(source)  # type: ignore[arg-type]
