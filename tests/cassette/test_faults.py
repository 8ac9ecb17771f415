"""Injected faults: drawn by position, by rate or by script, and survived by every episode."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from midthought.cassette.cassette import Cassette
from midthought.cassette.faults import CallPosition, Faults
from midthought.config import CassetteConfig, FaultRule, InferenceConfig
from midthought.engines.byte_tokenizer import byte_tokenizer
from midthought.engines.recorded import RecordedEngine
from midthought.engines.scripted import ScriptedEngine
from midthought.env.judge import Judge
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Reward, StopReason, Task, ToolEvent, ToolOutcome, Trajectory

RENDERER = Renderer(byte_tokenizer())
CALLS = "".join(f'#call look {{"query": "the {n}. of four"}}' for n in range(4))
SCRIPT = f"<think>{CALLS}So.</think>Ada"


class Look(Tool):
    definition = ToolDefinition("look", "Looks.", [ToolParameter("query", "string", "For what.")])
    timeout_seconds = 0.2
    pure = True

    async def execute(self, query: str) -> str:
        return f"found {query}"


class Judged:
    """Scores with a judge that cannot be reached."""

    judge = Judge(model="m", base_url="http://127.0.0.1:9/v1", retries=0, timeout_seconds=0.5)

    async def reply(self, trajectory: Trajectory) -> str | None:
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        verdict = await self.judge.verdict("Who?", "Ada")
        return Reward(feedback=str(verdict.problem))


def play(config: CassetteConfig, num_episodes: int = 2, engine: Any = None) -> list[Trajectory]:
    parts: dict[str, Any] = {
        "engine": engine or ScriptedEngine([SCRIPT] * num_episodes, RENDERER),
        "renderer": RENDERER,
        "call_format": InThoughtFormat(),
        "executor": ToolExecutor(ToolRegistry([Look()])),
        "messages": lambda task: [{"role": "user", "content": task.prompt}],
        "environment": lambda task: Judged(),
        "inference": InferenceConfig(max_tokens=4000),
    }
    tasks = [Task(task_id=f"t{n}", prompt="Who?", answer="Ada") for n in range(num_episodes)]
    starts = [EpisodeStart(task=task, seed=n) for n, task in enumerate(tasks)]
    with Cassette(config).part("train-000002") as part:
        return asyncio.run(run_episodes(RolloutParts(**parts, cassette_part=part), starts))


def events(trajectories: list[Trajectory]) -> list[list[tuple[str, str]]]:
    def shown(event: ToolEvent) -> tuple[str, str]:
        return event.outcome, event.call.result or ""

    return [[shown(event) for event in trajectory.tool_events] for trajectory in trajectories]


def fine(place: int) -> tuple[ToolOutcome, str]:
    return ToolOutcome.OK, f"found the {place}. of four"


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ({"fault": "error"}, (ToolOutcome.RAISED, "injected fault")),
        ({"fault": "timeout"}, (ToolOutcome.TIMED_OUT, "no answer within 0.2 seconds; go on without it")),
        ({"fault": "slow", "seconds": 0.05}, fine(2)),
        ({"fault": "slow", "seconds": 60}, (ToolOutcome.TIMED_OUT, "no answer within 0.2 seconds; go on without it")),
        ({"fault": "garbled"}, None),
    ],
)
def test_the_third_call_of_a_tool_gets_the_scripted_fault_and_no_other(rule: dict[str, Any], found: Any) -> None:
    rule = {**rule, "name": "look", "call": 3, "episode": 1, "part": "train-*"}
    first, second = events(play(CassetteConfig(faults=[rule])))
    assert first == [fine(n) for n in range(4)]
    assert second[:2] + second[3:] == [fine(0), fine(1), fine(3)]
    outcome, text = second[2]
    if found is None:
        assert outcome is ToolOutcome.OK and text != fine(2)[1] and sorted(text) == sorted(fine(2)[1])
    else:
        assert (outcome, text) == found


def test_faults_are_recorded_and_replayed_without_being_injected_again(tmp_path: Path) -> None:
    rules = [{"rate": 0.4, "seconds": 0.01}, {"kind": "judge", "fault": "error", "episode": 0}]
    first = play(CassetteConfig(record=str(tmp_path), faults=rules), 8)
    kinds = {outcome for episode in events(first) for outcome, _ in episode}
    assert kinds == {ToolOutcome.OK, ToolOutcome.RAISED, ToolOutcome.TIMED_OUT}
    assert first[0].reward is not None and first[0].reward.feedback == "injected fault"
    again = play(CassetteConfig(replay=str(tmp_path)), 8, RecordedEngine(RENDERER.eos_token_ids, 4096))
    assert events(again) == events(first)
    assert [t.token_ids for t in again] == [t.token_ids for t in first]
    assert [t.reward for t in again] == [t.reward for t in first]


def test_a_failing_engine_fails_its_episode_only() -> None:
    rule = {"kind": "completion", "fault": "error", "episode": 1, "call": 2}
    done = play(CassetteConfig(faults=[rule]), 3)
    assert [t.stop_reason for t in done] == [StopReason.ANSWERED, StopReason.FAILED, StopReason.ANSWERED]
    assert done[1].error == "EngineError: injected fault"


def test_a_draw_depends_on_the_seed_and_the_position_alone_and_the_rate_is_kept() -> None:
    def drawn(seed: int) -> list[str | None]:
        faults = Faults([FaultRule(rate=0.1)], seed)
        at = [CallPosition(part="p", episode=n, kind="tool", name="look", call=1) for n in range(4000)]
        return [None if (fault := faults.draw(position)) is None else fault.name for position in at]

    first = drawn(0)
    assert first == drawn(0) != drawn(1)
    share = sum(name is not None for name in first) / len(first)
    assert abs(share - 0.1) < 0.02  # four standard deviations
    assert {name for name in first if name} == {"error", "timeout", "slow", "garbled"}
