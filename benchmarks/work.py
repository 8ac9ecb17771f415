"""The work of every system: prompts and tool results of exact lengths, made of random words, and a slow tool."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.reciter import WORDS, Reciter
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter
from midthought.types import Task, ToolCall, ToolEvent, ToolOutcome

SLOW_EVERY, SLOW_FACTOR = 20, 30.0
Latency = Callable[[int], float]
"""Seconds that call number n (0, 1, …) takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How many episodes, and how many tokens each part of an episode has. Between two spans stands a call's result."""

    num_episodes: int = 64
    num_prompt: int = 200
    num_spans: int = 3
    num_span: int = 48
    num_result: int = 60
    num_per_prompt: int = 1
    """Episodes that share a prompt."""

    @property
    def num_calls(self) -> int:
        return self.num_spans - 1

    @property
    def num_sampled(self) -> int:
        """Sampled tokens of one episode."""
        return self.num_spans * self.num_span

    @property
    def num_response(self) -> int:
        """Tokens of one episode after its prompt."""
        return self.num_sampled + self.num_calls * self.num_result

    @property
    def length(self) -> int:
        return self.num_prompt + self.num_response

    def describe(self, size: str) -> str:
        """With the model's size: a row's setting."""
        episodes = f"{self.num_episodes} episode{'s' * (self.num_episodes > 1)}"
        return f"{size}, {episodes}, prompts of {self.num_prompt:,}"


class Work:
    """One batch of episodes; another seed gives other words, and as many."""

    def __init__(self, reciter: Reciter, shape: Shape, seed: int) -> None:
        draw = random.Random(seed)
        self.shape = shape
        self.seed = seed
        num_prompts = -(-shape.num_episodes // shape.num_per_prompt)
        num_words = shape.num_prompt - len(prompt_ids(reciter, WORDS[0])) + 1
        prompts = [_words(num_words, draw) for _ in range(num_prompts)]
        self.prompts = [prompts[number // shape.num_per_prompt] for number in range(shape.num_episodes)]
        num_words = shape.num_result - len(result_ids(reciter, WORDS[0])) + 1
        self.results = [_words(num_words, draw) for _ in range(shape.num_episodes * shape.num_calls)]

    def tasks(self) -> list[Task]:
        return [Task(task_id=str(number), prompt=prompt, answer="") for number, prompt in enumerate(self.prompts)]

    def prompt_ids(self, reciter: Reciter) -> list[list[int]]:
        """`[num_episodes][num_prompt]`."""
        return [prompt_ids(reciter, prompt) for prompt in self.prompts]

    def result_ids(self, reciter: Reciter, call: int) -> list[list[int]]:
        """`[num_episodes][num_result]`: the result tokens of each episode's call number `call`."""
        start = call * self.shape.num_episodes
        return [result_ids(reciter, words) for words in self.results[start : start + self.shape.num_episodes]]


class LookTool(Tool):
    """Waits as a slow service lets one wait, in a plain function, then answers with the next of the results."""

    definition = ToolDefinition("look", "Looks a word up.", [ToolParameter("word", "string", "The word.")])

    def __init__(self, results: Sequence[str], latency: Latency) -> None:
        self._results = results
        self._latency = latency
        self._numbers = itertools.count()

    def execute(self, word: str) -> str:
        number = next(self._numbers)
        if seconds := self._latency(number):
            time.sleep(seconds)
        return self._results[number]


class EchoTool(Tool):
    """Answers at once, and the same word alike wherever and whenever it is asked: `num_result` tokens of random words."""

    definition = LookTool.definition

    def __init__(self, reciter: Reciter, num_result: int) -> None:
        self._num_words = num_result - len(result_ids(reciter, WORDS[0])) + 1

    def execute(self, word: str) -> str:
        return _words(self._num_words, random.Random(word))


def prompt_ids(reciter: Reciter, words: str) -> list[int]:
    """A conversation of one message."""
    return reciter.renderer.prompt([{"role": "user", "content": words}])


def result_ids(reciter: Reciter, words: str) -> list[int]:
    """The tokens between a call and what is sampled next."""
    call = ToolCall(tool_name="look", success=True, result=words)
    text = reciter.call_format.render_results([ToolEvent(call=call, outcome=ToolOutcome.OK)])
    if reciter.call_format.stops_at_call:
        return reciter.renderer.foreign(text)
    return reciter.renderer.following([{"role": "tool", "content": text}])


def at_once(number: int) -> float:
    """No latency."""
    return 0.0


def always(seconds: float) -> Latency:
    """Every call takes so long."""
    return lambda number: seconds


def some_slow(seconds: float) -> Latency:
    """One call in 20 takes 30 times as long."""
    return lambda number: seconds * (SLOW_FACTOR if number % SLOW_EVERY == SLOW_EVERY - 1 else 1.0)


def _words(num_words: int, draw: random.Random) -> str:
    if num_words < 1:
        raise ValueError(f"{num_words} words: the lengths asked for leave no room for a text")
    return "".join(draw.choices(WORDS, k=num_words))
