"""A tool that takes a step in an environment. It only uses the environment's `step(action)`, plain or `async`, which returns
`(observation, reward, done, info)`, or Gymnasium's `(observation, reward, terminated, truncated, info)`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

from midthought.errors import EpisodeError
from midthought.tools.definition import Tool, ToolDefinition, ToolEpisode, ToolOutput, ToolParameter


class EnvironmentStepTool(Tool):
    """`environment_step(action)`: takes the step and returns the observation, the reward and whether the episode has ended.

    `metadata` contains `reward` (float) and `done` (bool) for rewards and metrics. Without an `environment`, the tool steps
    the environment of the calling episode. With one, all calls step that object: use it for a single episode only.

    Examples:
        >>> class Guess:
        ...     def step(self, action: str) -> tuple[str, float, bool, dict]:
        ...         return ("Right.", 1.0, True, {}) if action == "7" else ("Wrong.", 0.0, False, {})
        >>> EnvironmentStepTool(Guess()).execute(action="7")
        ToolOutput(text='Right.\\nreward: 1; the episode has ended', metadata={'reward': 1.0, 'done': True})
    """

    def __init__(
        self,
        environment: Any = None,
        *,
        name: str = "environment_step",
        description: str = "Does an action in the environment and tells what happened.",
    ) -> None:
        self.definition = ToolDefinition(name, description, [ToolParameter("action", "string", "What to do.")])
        self._environment = environment
        self.max_concurrency = None if environment is None else 1

    def open(self, episode: ToolEpisode) -> EnvironmentStepTool:
        """Returns the tool for the episode's environment. Raises `EpisodeError` if the episode has none."""
        if self._environment is not None:
            return self
        if episode.environment is None:
            raise EpisodeError(f"the episode of task {episode.task.task_id!r} has no environment to step")
        name, description = self.definition.name, self.definition.description
        return EnvironmentStepTool(episode.environment, name=name, description=description)

    def execute(self, *, action: str) -> ToolOutput | Awaitable[ToolOutput]:
        """Takes the step. Raises what the environment raises, and ValueError if it returns no such tuple."""
        if self._environment is None:
            raise EpisodeError(f"{self.definition.name!r} has no environment; give it one, or call it in an episode")
        result = self._environment.step(action)
        return _output_later(result) if inspect.isawaitable(result) else _output(result)


async def _output_later(result: Awaitable[Any]) -> ToolOutput:
    return _output(await result)


def _output(result: Any) -> ToolOutput:
    if not isinstance(result, tuple) or len(result) not in (4, 5):
        raise ValueError(f"step returned {type(result).__name__}, not (observation, reward, done, info)")
    observation, reward, *ends, _ = result
    done = any(ends)
    words = "the episode has ended" if done else "the episode continues"
    return ToolOutput(f"{observation}\nreward: {float(reward):g}; {words}", {"reward": float(reward), "done": done})
