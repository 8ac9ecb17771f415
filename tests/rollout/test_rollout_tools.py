"""Tools under the whole loop: what they do wrong ends no episode, what they take is on its record, equal calls are one."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from playing import EveryFew, parts_of, starts
from small_qwen import small_model
from transformers import Qwen3Config

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.local.engine import LocalEngine
from midthought.engines.scripted import ScriptedEngine
from midthought.rollout.episode import run_episodes
from midthought.rollout.rollout_metrics import rollout_metrics
from midthought.tokenization import Renderer
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Completion, StopReason, ToolOutcome, Trajectory


def episodes(
    engine: Any, renderer: Renderer, box: ToolExecutor, number: int, *, on_finished: Any = None, **more: Any
) -> Any:
    return run_episodes(parts_of(engine, renderer, tools=box, **more), starts(number), on_finished=on_finished)


class Act(Tool):
    """Does what it is asked to, as a coroutine."""

    definition = ToolDefinition("act", "Acts.", [ToolParameter("how", "string", "In what way.")])
    timeout_seconds = 0.1
    num_begun = 0
    num_cancelled = 0

    async def execute(self, how: str) -> str:
        self.num_begun += 1
        if how == "leave":
            raise SystemExit(3)
        if how == "interrupt":
            raise KeyboardInterrupt
        if how == "cancel":
            raise asyncio.CancelledError
        while how in ("hang", "deaf"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if how == "hang":
                    self.num_cancelled += 1
                    raise
        return how


class PlainAct(Tool):
    """The same in a thread."""

    definition = ToolDefinition("plain_act", "Acts.", Act.definition.parameters)
    timeout_seconds = 0.1

    def __init__(self) -> None:
        self.over = threading.Event()

    def execute(self, how: str) -> str:
        errors = {"leave": SystemExit(3), "interrupt": KeyboardInterrupt(), "cancel": asyncio.CancelledError()}
        if how in errors:
            raise errors[how]
        if how == "hang":
            self.over.wait(60)
        return how


def test_whatever_tools_do_every_episode_goes_on_to_its_answer(renderer: Renderer) -> None:
    plain = PlainAct()
    box = ToolExecutor(ToolRegistry([Act(), plain]))
    hows = ["fine", "leave", "interrupt", "cancel", "hang", "deaf"]
    asked = [("act", how) for how in hows] + [("plain_act", how) for how in hows[:-1]]
    script = [f'<think>Hm. #call {name} {{"how": "{how}"}}So.</think>Ada' for name, how in asked]
    done: list[Trajectory] = []
    engine = ScriptedEngine(script, renderer)
    thread = threading.Thread(
        target=lambda: done.extend(asyncio.run(episodes(engine, renderer, box, len(script)))), daemon=True
    )
    thread.start()
    thread.join(20)
    plain.over.set()
    assert [trajectory.stop_reason for trajectory in done] == [StopReason.ANSWERED] * len(script)
    raised, late = ToolOutcome.RAISED, ToolOutcome.TIMED_OUT
    found = [event.outcome for trajectory in done for event in trajectory.tool_events]
    assert found == [ToolOutcome.OK, raised, raised, raised, late, late, ToolOutcome.OK, raised, raised, raised, late]


def test_a_rollout_that_ends_early_ends_the_calls_that_are_under_way(renderer: Renderer) -> None:
    act = Act()
    act.timeout_seconds = 60
    script = ["Ada"] + ['<think>#call act {"how": "hang"}So.</think>Ada'] * 3

    def stop(trajectory: Trajectory) -> None:
        raise ZeroDivisionError

    async def rollout() -> None:
        box = ToolExecutor(ToolRegistry([act]))
        with pytest.raises(ZeroDivisionError):
            await episodes(ScriptedEngine(script, renderer), renderer, box, 4, on_finished=stop)
        running = asyncio.create_task(episodes(ScriptedEngine(script, renderer), renderer, box, 4))
        num_before = act.num_begun
        while act.num_begun < num_before + 3:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})
        async with asyncio.timeout(60):  # the calls run on the tool's own event loop
            while act.num_cancelled < act.num_begun:
                await asyncio.sleep(0.01)
        assert act.num_cancelled == act.num_begun == num_before + 3

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
    """Pure; takes a while, each time another."""

    definition = ToolDefinition("look", "Looks.", [ToolParameter("word", "string", "What.")])
    pure = True

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = itertools.cycle(seconds)
        self.asked: list[str] = []

    async def execute(self, word: str) -> ToolOutput:
        self.asked.append(word)
        await asyncio.sleep(next(self._seconds))
        if word == "bad":
            raise ValueError("a bad word")
        return ToolOutput(f"<{word}>", {"word": word})


def test_what_is_shared_in_deterministic_rollouts_does_not_hang_on_what_the_tools_take(renderer: Renderer) -> None:
    model = small_model(Qwen3Config, renderer)
    words = [["ab"[number % 2], "bad", "ab"[number // 2 % 2]] for number in range(9)]
    records = []
    for seconds in ((0.0,), (0.02, 0.0, 0.01)):
        look = Look(seconds)
        engine = LocalEngine(model, eos_token_ids=[], max_num_seqs=4, deterministic=True)
        box = ToolExecutor(ToolRegistry([look]))
        limits = {"max_tokens": 60, "max_segment_length": 8}
        done = asyncio.run(episodes(engine, renderer, box, 9, call_format=EveryFew(num_calls=3, words=words), **limits))
        assert all(trajectory.error is None for trajectory in done)
        events = [event for trajectory in done for event in trajectory.tool_events]
        assert len(events) == 27 and sorted(set(look.asked)) == ["a", "b", "bad"]
        assert look.asked.count("a") == look.asked.count("b") == 1
        assert sum(event.metadata.get("shared", False) for event in events) == 27 - len(look.asked)
        records.append([(t.token_ids, [dict(event.metadata) for event in t.tool_events]) for t in done])
    assert records[0] == records[1]
