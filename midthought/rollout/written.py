"""Plays written conversations as episodes: the same loop, scanner and reward as in training, without a model.

A conversation becomes token ids as a demonstration does; these are fed to the loop as if the policy had sampled them. They are
not a user's: nothing about them is logged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midthought.config import InferenceConfig
from midthought.engines.scripted import ScriptedEngine
from midthought.errors import SettingsError
from midthought.rollout.demonstration import demonstration
from midthought.rollout.episode import EpisodeEnvironment, EpisodeStart, RolloutParts, run_episodes
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import as_tool_calls
from midthought.tools.arguments import ArgumentsError
from midthought.tools.background_loop import BackgroundLoop
from midthought.tools.call_formats import ToolCallFormat, example_parameters
from midthought.tools.definition import ToolOutput
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, Trajectory

THOUGHT = "I think about it."
ODD_TEXT = 'a "b" {c}, d\n#2'
_NO_LIMIT = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyParts:
    """A policy, and how its prompts and calls are written."""

    model: Any
    renderer: Renderer
    call_format: ToolCallFormat
    registry: ToolRegistry
    messages: Callable[[Task], Sequence[Mapping[str, str]]]
    """Returns the messages before the policy's first token."""
    episode: Callable[[Task], EpisodeEnvironment]
    """Returns the environment of a training episode, which computes the reward."""
    max_seq_len: int
    """Maximum tokens of a sequence, including the prompt."""


class _FixedResult(ToolExecutor):
    """Returns `result` for every valid call, instead of running the tool."""

    result = ""

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        return ToolOutput(self.result)


def written(
    parts: PolicyParts,
    task: Task,
    answer: str,
    *,
    thought: str = THOUGHT,
    call: tuple[str, dict[str, Any]] | None = None,
    result: str = "",
) -> Trajectory:
    """Returns the tokens of an answer after a thought, and perhaps after a call (name and arguments) and its result.

    Raises `DataError` if the call would not be read back, `SettingsError` if the template cannot write it,
    `NotImplementedError` if the call format only reads calls.
    """
    said: list[dict[str, Any]] = [{"role": "assistant", "content": answer, "reasoning_content": thought}]
    if call is not None:
        calls = {"role": "assistant", "content": "", "tool_calls": as_tool_calls([(*call, "callid001")])}
        calls["reasoning_content"] = thought
        said = [calls, {"role": "tool", "tool_call_id": "callid001", "content": result}, *said]
    messages = [*map(dict, parts.messages(task)), *said]
    plain = [{key: text for key, text in each.items() if key != "reasoning_content"} for each in messages]
    with contextlib.suppress(SettingsError):  # a template without thoughts, or one that drops them
        return demonstration(task, messages, parts.renderer, parts.call_format, is_given=False)
    return demonstration(task, plain, parts.renderer, parts.call_format, is_given=False)


def play(
    parts: PolicyParts, inference: InferenceConfig, script: Trajectory, episode: Callable[[Task], Any], result: str = ""
) -> Trajectory:
    """Returns the episode in which the policy writes what the script shows and every tool returns `result`. Lengths are not
    limited. `episode`: makes its environment."""
    remaining = script.sampled_runs()
    executor = _FixedResult(parts.registry)
    executor.result = result
    limits = dict.fromkeys(("max_tokens", "max_segment_length", "max_result_tokens"), _NO_LIMIT)
    rollout = RolloutParts(
        engine=ScriptedEngine(lambda number, token_ids: remaining.pop(0) if remaining else None, parts.renderer),
        renderer=parts.renderer,
        call_format=parts.call_format,
        executor=executor,
        messages=parts.messages,
        environment=episode,
        inference=inference.changed(**limits, max_turns=max(inference.max_turns, 3), max_tool_calls_per_cot=2),
    )
    with contextlib.closing(BackgroundLoop("midthought-rollout")) as loop:
        return loop.run(run_episodes(rollout, [EpisodeStart(task=script.task, seed=0)]))[0]


def example_calls(registry: ToolRegistry) -> Iterator[tuple[str, dict[str, Any]]]:
    """Returns a call of each tool with arguments that its schema accepts, if they are found; texts are `ODD_TEXT` if allowed."""
    for definition in registry.definitions():
        usual = dict(example_parameters(definition))
        odd = {name: ODD_TEXT if isinstance(value, str) else value for name, value in usual.items()}
        for arguments in (odd, usual, {}):
            with contextlib.suppress(ArgumentsError):
                registry.arguments(definition.name, arguments)
                yield definition.name, arguments
                break
