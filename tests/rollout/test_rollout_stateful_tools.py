"""Stateful tools under the whole loop: episodes see their own state, and leave nothing open."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from playing import Host, parts_of, starts

from midthought.engines.scripted import ScriptedEngine
from midthought.rollout.episode import run_episodes
from midthought.tokenization import Renderer
from midthought.tools.definition import Tool, ToolDefinition, ToolEpisode, ToolParameter
from midthought.types import Reward, StopReason, Trajectory


class Notes(Tool):
    """Keeps the words of one episode, and says in `open_now` which episodes have it open."""

    definition = ToolDefinition("note", "Keeps notes.", [ToolParameter("word", "string", "What to add.")])
    timeout_seconds = 5.0

    def __init__(self, episode: ToolEpisode | None = None, open_now: set[str] | None = None) -> None:
        self.episode = episode
        self.open_now: set[str] = set() if open_now is None else open_now
        self.num_opened = 0
        self.words: list[str] = []

    def open(self, episode: ToolEpisode) -> Notes:
        self.num_opened += 1
        self.open_now.add(episode.task.task_id)
        return type(self)(episode, self.open_now)

    def execute(self, word: str) -> str:
        assert self.episode is not None
        words = list(self.words)
        time.sleep(0.001)
        self.words = [*words, word]
        return " ".join([self.episode.task.task_id, str(self.episode.seed), *self.words])

    def close(self) -> None:
        assert self.episode is not None
        self.open_now.remove(self.episode.task.task_id)


def script(number: int) -> str:
    calls = "".join(f'Now #call note {{"word": "{number}{letter}"}}' for letter in "abc")
    return f"<think>{calls}</think>Ada"


def watched_parts(renderer: Renderer, tool: Tool, happen: Callable[[Trajectory], None], scripts: list[str]) -> Any:
    """`happen` is called when an episode is scored."""

    def score(trajectory: Trajectory) -> Reward:
        happen(trajectory)
        return Reward()

    return parts_of(ScriptedEngine(scripts, renderer), renderer, tools=[tool], environment=lambda _: Host(score=score))


def test_a_tool_is_closed_after_the_reward_and_what_fails_or_is_too_late_leaves_nothing_open(
    renderer: Renderer,
) -> None:
    over = threading.Event()

    class Faulty(Notes):
        timeout_seconds = 0.1

        def execute(self, word: str) -> str:
            if word.startswith("1"):
                raise ValueError("the sandbox broke")
            if word.startswith("2"):
                over.wait(20)
            return super().execute(word)

    def break_some(trajectory: Trajectory) -> None:
        at_score.append(trajectory.task.task_id in tool.open_now)
        if trajectory.task.task_id == "t3":
            raise RuntimeError("the judge broke")

    tool, at_score = Faulty(), []
    parts = watched_parts(renderer, tool, break_some, [script(number) for number in range(5)])
    done = asyncio.run(run_episodes(parts, starts(5)))
    over.set()
    assert [t.stop_reason for t in done] == [*[StopReason.ANSWERED] * 3, StopReason.FAILED, StopReason.ANSWERED]
    assert [event.call.result for event in done[4].tool_events] == ["t4 4 4a", "t4 4 4a 4b", "t4 4 4a 4b 4c"]
    assert tool.num_opened == 5 and not tool.open_now
    assert at_score == [True] * 5, "it is closed after the reward"
