"""Tools under the whole loop: what they do wrong ends no episode, what they take is on its record,
and episodes see their own state. What a tool can do wrong: `tests/tools/test_concurrency.py`, `test_executor.py`."""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from typing import Any, Self

import pytest
from playing import EveryFew, Host, parts_of, play, starts
from small_qwen import small_model
from transformers import Qwen3Config

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.local.engine import LocalEngine
from midthought.engines.scripted import ScriptedEngine
from midthought.rollout.episode import run_episodes
from midthought.rollout.rollout_metrics import rollout_metrics
from midthought.tokenization import Renderer
from midthought.tools.definition import Tool, ToolDefinition, ToolEpisode, ToolOutput, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Completion, Reward, StopReason, Trajectory


def episodes(
    engine: Any, renderer: Renderer, box: ToolExecutor, number: int, *, on_finished: Any = None, **more: Any
) -> Any:
    return run_episodes(parts_of(engine, renderer, tools=box, **more), starts(number), on_finished=on_finished)


class Hang(Tool):
    """Never returns."""

    definition = ToolDefinition("hang", "Hangs.")
    timeout_seconds = 60
    num_begun = 0
    num_cancelled = 0

    async def execute(self) -> str:
        self.num_begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.num_cancelled += 1
        return ""


def test_a_rollout_that_ends_early_ends_the_calls_that_are_under_way(renderer: Renderer) -> None:
    hang = Hang()
    script = ["Ada"] + ["<think>#call hang {}So.</think>Ada"] * 3

    def stop(trajectory: Trajectory) -> None:
        raise ZeroDivisionError

    async def rollout() -> None:
        box = ToolExecutor(ToolRegistry([hang]))
        with pytest.raises(ZeroDivisionError):
            await episodes(ScriptedEngine(script, renderer), renderer, box, 4, on_finished=stop)
        running = asyncio.create_task(episodes(ScriptedEngine(script, renderer), renderer, box, 4))
        num_before = hang.num_begun
        while hang.num_begun < num_before + 3:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})
        async with asyncio.timeout(60):  # the calls run on the tool's own event loop
            while hang.num_cancelled < hang.num_begun:
                await asyncio.sleep(0.01)
        assert hang.num_cancelled == hang.num_begun == num_before + 3

    asyncio.run(rollout())


class SlowEngine(ScriptedEngine):
    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        await asyncio.sleep(0.1)
        return await super().sample(episode, token_ids, sampling, stopper=stopper)


class Wait(Tool):
    definition = ToolDefinition("wait", "Waits.", [ToolParameter("seconds", "number", "How long.")])

    async def execute(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"


def test_the_record_says_how_long_the_episode_waited_for_tools_and_for_the_engine(renderer: Renderer) -> None:
    script = ['<think>#call wait {"seconds": 0.2}So.</think>Ada', "Ada"]
    box = ToolExecutor(ToolRegistry([Wait()]))
    called, plain = asyncio.run(episodes(SlowEngine(script, renderer), renderer, box, 2))
    assert 0.2 <= called.tool_seconds < 2 and 0.2 <= called.engine_seconds < 2
    assert plain.tool_seconds == 0.0 and 0.1 <= plain.engine_seconds < called.tool_seconds + called.engine_seconds
    figures = rollout_metrics([called, plain])
    assert figures["time/episode/tool_seconds"] == pytest.approx(called.tool_seconds / 2)
    assert figures["time/episode/engine_seconds"] == pytest.approx((called.engine_seconds + plain.engine_seconds) / 2)


class Look(Tool):
    """Takes a while, each time another."""

    definition = ToolDefinition("look", "Looks.", [ToolParameter("word", "string", "What.")])

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = itertools.cycle(seconds)

    async def execute(self, word: str) -> ToolOutput:
        await asyncio.sleep(next(self._seconds))
        if word == "bad":
            raise ValueError("a bad word")
        return ToolOutput(f"<{word}>", {"word": word})


def test_deterministic_rollouts_do_not_depend_on_what_the_tools_take(renderer: Renderer) -> None:
    model = small_model(Qwen3Config, renderer)
    words = [["ab"[number % 2], "bad", "ab"[number // 2 % 2]] for number in range(9)]
    records = []
    for seconds in ((0.0,), (0.02, 0.0, 0.01)):
        engine = LocalEngine(model, eos_token_ids=[], max_num_seqs=4, deterministic=True)
        box = ToolExecutor(ToolRegistry([Look(seconds)]))
        limits = {"max_tokens": 60, "max_segment_length": 8}
        done = asyncio.run(episodes(engine, renderer, box, 9, call_format=EveryFew(num_calls=3, words=words), **limits))
        assert all(trajectory.error is None for trajectory in done)
        records.append([(t.token_ids, [dict(event.metadata) for event in t.tool_events]) for t in done])
        assert sum(len(events) for _, events in records[-1]) == 27
    assert records[0] == records[1]


# -- stateful tools -------------------------------------------------------------------------------------------------


class Notes(Tool):
    """Keeps the words of one episode, and says in `open_now` which episodes have it open."""

    definition = ToolDefinition("note", "Keeps notes.", [ToolParameter("word", "string", "What to add.")])

    def __init__(self, episode: ToolEpisode | None = None, open_now: set[str] | None = None) -> None:
        self.episode = episode
        self.open_now: set[str] = set() if open_now is None else open_now
        self.num_opened = 0
        self.words: list[str] = []

    def open(self, episode: ToolEpisode) -> Self:
        self.num_opened += 1
        self.open_now.add(episode.task.task_id)
        return type(self)(episode, self.open_now)

    def execute(self, word: str) -> str:
        self.words.append(word)
        return " ".join([self.episode.task.task_id, str(self.episode.seed), *self.words])

    def close(self) -> None:
        self.open_now.remove(self.episode.task.task_id)


def test_a_tool_is_closed_after_the_reward_and_what_fails_or_is_too_late_leaves_nothing_open(renderer):
    over, at_score = threading.Event(), []

    class Faulty(Notes):
        timeout_seconds = 0.1

        def execute(self, word: str) -> str:
            if word.startswith("1"):
                raise ValueError("the sandbox broke")
            if word.startswith("2"):
                over.wait(20)
            return super().execute(word)

    def score(trajectory: Trajectory) -> Reward:
        at_score.append(trajectory.task.task_id in tool.open_now)
        if trajectory.task.task_id == "t3":
            raise RuntimeError("the judge broke")
        return Reward()

    tool = Faulty()
    calls = ["".join(f'Now #call note {{"word": "{number}{letter}"}}' for letter in "abc") for number in range(5)]
    engine = ScriptedEngine([f"<think>{each}</think>Ada" for each in calls], renderer)
    done = play(parts_of(engine, renderer, tools=[tool], environment=lambda task: Host(score=score)), 5)
    over.set()
    assert [t.stop_reason for t in done] == [*[StopReason.ANSWERED] * 3, StopReason.FAILED, StopReason.ANSWERED]
    assert [event.call.result for event in done[4].tool_events] == ["t4 4 4a", "t4 4 4a 4b", "t4 4 4a 4b 4c"]
    assert tool.num_opened == 5 and not tool.open_now
    assert at_score == [True] * 5, "it is closed after the reward"
