"""Plays written conversations as episodes: the same loop, scanner and reward as in training, without a model.

A conversation becomes token ids as a demonstration does; these are fed to the loop as if the policy had sampled them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from midthought.background_loop import BackgroundLoop
from midthought.config import InferenceConfig
from midthought.doctor.setup import PolicyParts, SkippedError
from midthought.engines.scripted import ScriptedEngine
from midthought.errors import SettingsError
from midthought.rollout.demonstration import demonstration
from midthought.rollout.episode import EpisodeEnvironment, EpisodeStart, RolloutParts, run_episodes
from midthought.tokenization.chat_template import as_tool_calls
from midthought.tools.arguments import ArgumentsError
from midthought.tools.definition import ToolDefinition, ToolOutput
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Reward, Task, Trajectory

THOUGHT = "I think about it."
_NO_LIMIT = 1 << 20
_VALUES: dict[str, tuple[Any, ...]] = {
    "string": ('a "b" {c}, d\n#2', "a b", "1"),
    "integer": (1,),
    "number": (1.5, 1),
    "boolean": (True,),
    "array": (["a"], [1], []),
    "object": ({"a": 1}, {}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What an episode's policy writes: perhaps a call, and then the answer."""

    answer: str
    thought: str = THOUGHT
    call: tuple[str, dict[str, Any]] | None = None
    """Name and arguments of a call."""
    result: str = ""
    """What the tool returns."""


class Cast(ToolExecutor):
    """Returns `result` for every valid call, instead of running the tool."""

    def __init__(self, registry: ToolRegistry, result: str) -> None:
        super().__init__(registry)
        self._result = result

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        """Returns the result."""
        return ToolOutput(self._result)


class NoReward:
    """An environment without replies and reward."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Returns None."""
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        """Returns an empty reward."""
        return Reward()


def no_reward(task: Task) -> EpisodeEnvironment:
    """Returns an environment without replies and reward."""
    return NoReward()


def written(parts: PolicyParts, task: Task, line: Line) -> Trajectory:
    """Returns the tokens of a line, as a demonstration.

    Raises `DataError` if its call would not be read back, `SettingsError` if the template cannot write it, `SkippedError` if
    the call format only reads calls.
    """
    messages: list[dict[str, Any]] = [dict(message) for message in parts.messages(task)]
    if line.call is not None:
        call = as_tool_calls([(*line.call, "callid001")])
        messages.append({"role": "assistant", "content": "", "tool_calls": call, "reasoning_content": line.thought})
        messages.append({"role": "tool", "tool_call_id": "callid001", "content": line.result})
    messages.append({"role": "assistant", "content": line.answer, "reasoning_content": line.thought})
    try:
        return _demonstrated(parts, task, messages)
    except NotImplementedError as error:
        raise SkippedError(str(error)) from None


def _demonstrated(parts: PolicyParts, task: Task, messages: Sequence[dict[str, Any]]) -> Trajectory:
    try:
        return demonstration(task, messages, parts.renderer, parts.call_format)
    except SettingsError:  # a template without thoughts, or one that drops them
        plain = [{key: said for key, said in each.items() if key != "reasoning_content"} for each in messages]
        return demonstration(task, plain, parts.renderer, parts.call_format)


def play(
    parts: PolicyParts,
    inference: InferenceConfig,
    scripts: Sequence[Trajectory],
    *,
    result: str = "",
    episode: Callable[[Task], EpisodeEnvironment] | None = None,
) -> list[Trajectory]:
    """Returns the episodes in which the policy writes what these demonstrations show. Lengths are not limited.

    `result`: what every tool returns. `episode` None: without a reward.
    """
    remaining = [script.sampled_runs() for script in scripts]

    def script(number: int, token_ids: Sequence[int]) -> Sequence[int] | None:
        return remaining[number].pop(0) if remaining[number] else None

    rollout = RolloutParts(
        engine=ScriptedEngine(script, parts.renderer),
        renderer=parts.renderer,
        call_format=parts.call_format,
        executor=Cast(parts.registry, result),
        messages=parts.messages,
        environment=no_reward if episode is None else episode,
        inference=inference.changed(
            max_tokens=_NO_LIMIT,
            max_segment_length=_NO_LIMIT,
            max_result_tokens=_NO_LIMIT,
            max_turns=max(inference.max_turns, 3),
            max_tool_calls_per_cot=max(inference.max_tool_calls_per_cot, 2),
        ),
    )
    starts = [EpisodeStart(task=script.task, seed=0, group=number) for number, script in enumerate(scripts)]
    loop = BackgroundLoop("midthought-doctor")
    try:
        return loop.run(run_episodes(rollout, starts))
    finally:
        loop.close()


def example_call(registry: ToolRegistry, definition: ToolDefinition) -> tuple[str, dict[str, Any]] | None:
    """Returns a call of the tool with values for all its parameters that its schema accepts; None if none is found.

    Texts have quotation marks, braces and a line end if the schema allows them.
    """
    properties = definition.parameters_schema().get("properties", {})
    for place in range(3):
        values = {name: _value(schema, place) for name, schema in properties.items()}
        required = definition.parameters_schema().get("required", [])
        for arguments in (values, {name: values.get(name) for name in required}):
            try:
                registry.arguments(definition.name, arguments)
            except ArgumentsError:
                continue
            return definition.name, arguments
    return None


def _value(schema: Any, place: int) -> Any:
    if not isinstance(schema, dict):
        return "a"
    if choices := schema.get("enum"):
        return choices[0]
    if schema.get("default") is not None:
        return schema["default"]
    kind = schema.get("type", "string")
    values = _VALUES.get(kind if isinstance(kind, str) else "string", ("a",))
    return values[min(place, len(values) - 1)]
