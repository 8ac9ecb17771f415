"""Episodes in tests: their parts, two tools, an environment with replies, and a call format for models that know none.

Imports neither pytest nor torch: scripts that run in another interpreter use it, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from midthought.config import InferenceConfig
from midthought.engines.scripted import ScriptedEngine
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.serve.chat_policy import ChatPolicy
from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.parsers import find_call_format
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Reward, SpanKind, Task, ToolEvent, Trajectory


class Add(Tool):
    definition = ToolDefinition(
        "add", "Adds two numbers.", [ToolParameter("a", "integer", "one"), ToolParameter("b", "integer", "other")]
    )

    def execute(self, a: int, b: int) -> str:
        return str(a + b)


MARK = "⟦tool⟧"


class Look(Tool):
    """Answers with its word between marks that no policy writes; sleeps where it is told to."""

    definition = ToolDefinition(
        "look", "Look a word up.", [ToolParameter("word", "string", "what to look for", required=False)]
    )

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self._seconds = seconds or {}

    def execute(self, word: str = "nothing") -> str:
        time.sleep(self._seconds.get(word, 0.0))
        return f"{MARK}{word}</think>{MARK}"


class Host:
    """Replies with the given words, one after each answer. Its reward is that of `score`, else the number of sampled tokens."""

    def __init__(self, replies: Sequence[str] = (), score: Callable[[Trajectory], Reward] | None = None) -> None:
        self._replies = list(replies)
        self._score = score or (lambda trajectory: Reward(parts={"length": float(trajectory.num_sampled)}))

    async def reply(self, trajectory: Trajectory) -> str | None:
        return self._replies.pop(0) if self._replies else None

    async def score(self, trajectory: Trajectory) -> Reward:
        return self._score(trajectory)


def parts_of(
    engine: Any,
    renderer: Renderer,
    *,
    call_format: Any = None,
    tools: Sequence[Tool] | ToolExecutor = (),
    environment: Callable[[Task], Any] = lambda task: Host(),
    messages: Callable[[Task], Any] = lambda task: [{"role": "user", "content": task.prompt}],
    **limits: Any,
) -> RolloutParts:
    """`limits`: settings of the section `inference`."""
    return RolloutParts(
        engine=engine,
        renderer=renderer,
        call_format=call_format or InThoughtFormat(),
        executor=tools if isinstance(tools, ToolExecutor) else ToolExecutor(ToolRegistry(tools)),
        messages=messages,
        environment=environment,
        inference=InferenceConfig(**{"max_tokens": 4000, **limits}),
    )


def chat_policy(
    engine: Any, renderer: Renderer, call_format: Any = "in_thought", tools: Sequence[Any] = (), **fields: Any
) -> ChatPolicy:
    """A policy that answers conversations. `call_format`: also its name."""
    return ChatPolicy(
        engine=engine,
        renderer=renderer,
        call_format=find_call_format(call_format) if isinstance(call_format, str) else call_format,
        executor=ToolExecutor(ToolRegistry(tools)),
        **{"max_seq_len": 100_000, **fields},
    )


def starts(num_episodes: int, prompt: str = "Who?") -> list[EpisodeStart]:
    tasks = [Task(task_id=f"t{number}", prompt=prompt, answer="Ada") for number in range(num_episodes)]
    return [EpisodeStart(task=task, seed=number, group=number // 2) for number, task in enumerate(tasks)]


def play(parts: RolloutParts, num_episodes: int = 1, **options: Any) -> list[Trajectory]:
    return asyncio.run(run_episodes(parts, starts(num_episodes), **options))


def play_turns(
    turns: Sequence[str | Sequence[int]], renderer: Renderer, *, replies: Sequence[str] = (), **options: Any
) -> Trajectory:
    """One episode in which the policy writes these turns, each with the tokens at its end."""
    script = iter(turns)
    engine = ScriptedEngine(lambda episode, token_ids: next(script, None), renderer)
    options.setdefault("environment", lambda task: Host(replies))
    (trajectory,) = play(parts_of(engine, renderer, **options))
    return trajectory


def spoken(trajectory: Trajectory, renderer: Renderer) -> list[tuple[SpanKind, str]]:
    """Who wrote what, over all segments."""
    return [
        (span.kind, renderer.decode(segment.token_ids[span.start : span.end]))
        for segment in trajectory.segments
        for span in segment.spans
    ]


class EveryFew(ToolCallFormat):
    """A call "ends" after every few pieces of text, whatever they are, a few times in an episode.

    `words`: what the calls of each episode ask for, one word or one per call; the last ones repeat.
    """

    name = "every_few"
    stops_at_call = True

    def __init__(self, num_pieces: int = 5, num_calls: int = 2, words: Sequence[Any] = ("tide",)) -> None:
        super().__init__()
        self._num_pieces, self._num_calls, self._words = num_pieces, num_calls, list(words)

    def scanner(self, *, in_thought: bool) -> EveryFew:
        words = self._next()
        return EveryFew(self._num_pieces, self._num_calls, [words] if isinstance(words, str) else words)

    def _next(self) -> Any:
        return self._words.pop(0) if len(self._words) > 1 else self._words[0]

    def feed(self, piece: str) -> bool:
        self._num_pieces -= 1
        return self._num_pieces == 0 and self._num_calls > 0

    def take(self) -> list[ParsedAction]:
        if self._num_pieces > 0 or self._num_calls == 0:
            return []
        self._num_pieces, self._num_calls = 6, self._num_calls - 1
        return [ParsedAction(tool_name="look", parameters={"word": self._next()}, raw_text="", success=True)]

    def resume(self) -> None:
        pass

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        return "".join(f"[{event.call.result}]" for event in events)

    def instructions(self, definitions: Any) -> str:
        return ""
