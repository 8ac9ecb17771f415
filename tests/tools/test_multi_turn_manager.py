"""A conversation with tools: calls are found and run, turns recorded, metrics computed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from midthought.env.environment import BaseEnvironment
from midthought.tools.call_formats import ActionParser
from midthought.tools.call_formats.json_calls import HermesFormat
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter
from midthought.tools.multi_turn import MultiTurnManager
from midthought.tools.parsers import HermesParser, InThoughtParser
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, ToolOutcome


class Add(Tool):
    definition = ToolDefinition(
        "add", "Adds two numbers.", [ToolParameter("a", "integer", "one"), ToolParameter("b", "integer", "other")]
    )

    def execute(self, a: int, b: int) -> str:
        return str(a + b)


class Wait(Tool):
    definition = ToolDefinition("wait", "Waits.", [ToolParameter("seconds", "number", "how long")])

    async def execute(self, seconds: float) -> ToolOutput:
        await asyncio.sleep(seconds)
        return ToolOutput("waited", {"seconds": seconds})


class Guess(BaseEnvironment):
    def reset(self) -> str:
        return "Guess a digit."

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        return "Right.", 1.0, True, {}


def manager(parser: ActionParser | None = None, **options: object) -> MultiTurnManager:
    return MultiTurnManager(ToolRegistry([Add(), Wait()]), parser or HermesParser(), **options)


def call(a: int, b: int) -> str:
    return HermesFormat().render_call("add", {"a": a, "b": b})


def test_all_calls_of_one_output_are_run_and_the_first_is_the_turns():
    keeper = manager()
    turn = keeper.step(f"{call(1, 2)} and {call(10, 20)}")
    assert turn.tool_call.result == "3"
    assert [event.call.result for event in keeper.tool_events] == ["3", "30"]
    assert keeper.get_tool_results() == "3\n30"
    other = manager()
    other.follow(keeper.turns, keeper.tool_events)
    assert other.get_episode_summary() == keeper.get_episode_summary()
    keeper.step("No call.")
    assert keeper.get_tool_results() == "" and len(keeper.tool_events) == 2
    keeper = manager(InThoughtParser())
    keeper.step('#call add {"a": 1, "b": 2}')
    assert keeper.get_tool_results() == "\n#add_result:\n3\n\n"


def test_a_parser_may_yield_its_calls():
    class Names(ActionParser):
        def parse_all(self, text: str) -> Iterator[ParsedAction]:  # type: ignore[override]
            yield from (ParsedAction(tool_name="add", parameters={"a": int(each), "b": 1}) for each in text.split())

    keeper = manager(Names())
    keeper.step("1 2")
    assert [event.call.result for event in keeper.tool_events] == ["2", "3"]
    assert [call.parameters["a"] for call in Names().call_format.parse_all("1 2")] == [1, 2]


def test_it_works_inside_a_running_event_loop_and_runs_the_calls_of_one_turn_at_once():
    async def inside() -> str | None:
        return manager().step(call(2, 2)).tool_call.result

    assert asyncio.run(inside()) == "4"
    keeper = manager()
    started = time.perf_counter()
    keeper.step(HermesFormat().render_call("wait", {"seconds": 0.5}) * 16)
    assert time.perf_counter() - started < 6
    assert [event.outcome for event in keeper.tool_events] == [ToolOutcome.OK] * 16


def test_an_empty_conversation_has_an_empty_summary_before_the_first_turn_and_after_a_reset():
    keeper = manager()
    empty = {"num_turns": 0, "num_tool_calls": 0, "successful_tool_calls": 0, "tools_used": [], "turns": []}
    assert keeper.get_episode_summary() == empty
    keeper.step(call(1, 2))
    keeper.reset()
    assert keeper.get_episode_summary() == empty and keeper.get_tool_results() == ""
    assert keeper.step("again").turn_number == 1


def test_a_conversation_continues_until_max_turns_or_until_the_environment_is_done():
    keeper = manager(max_turns=2)
    assert keeper.should_continue()
    keeper.step("one")
    assert keeper.should_continue()
    keeper.step("two")
    assert not keeper.should_continue()
    env = Guess()
    env.reset()
    assert manager(environment=env).should_continue()
    env.step("7")
    assert not manager(environment=env).should_continue()
    assert manager(environment=object()).should_continue()
