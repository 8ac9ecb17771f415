"""A tool that takes a step in an environment. Knows of the environment only that it has `step(action)`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any, Protocol

from midthought.errors import EpisodeError
from midthought.tools.definition import Tool, ToolDefinition, ToolEpisode, ToolOutput, ToolParameter


class Steppable(Protocol):
    """What the tool needs of an environment."""

    def step(self, action: str) -> Any:
        """`(observation, reward, done, info)`, or Gymnasium's `(observation, reward, terminated, truncated, info)`;
        plain or `async`."""
        ...


class EnvironmentStepTool(Tool):
    """`environment_step(action)`: does the action and tells the observation, the reward and whether the episode ended.

    `metadata` holds `reward` (float) and `done` (bool) for rewards and metrics. Without an environment, the tool steps the
    one of the episode that calls it. With one, it steps that one, whoever calls: only for a single episode.

    >>> class Guess:
    ...     def step(self, action: str) -> tuple[str, float, bool, dict]:
    ...         return ("Right.", 1.0, True, {}) if action == "7" else ("Wrong.", 0.0, False, {})
    >>> EnvironmentStepTool(Guess()).execute(action="7")
    ToolOutput(text='Right.\\nreward: 1; the episode has ended', metadata={'reward': 1.0, 'done': True})
    """

    def __init__(
        self,
        environment: Steppable | None = None,
        *,
        name: str = "environment_step",
        description: str = "Does an action in the environment and tells what happened.",
    ) -> None:
        self.definition = ToolDefinition(name, description, [ToolParameter("action", "string", "What to do.")])
        self._environment = environment
        self.max_concurrency = None if environment is None else 1

    def open(self, episode: ToolEpisode) -> EnvironmentStepTool:
        """The tool of the episode's environment. EpisodeError if it has none."""
        if self._environment is not None:
            return self
        if episode.environment is None:
            raise EpisodeError(f"the episode of task {episode.task.task_id!r} has no environment to step")
        name, description = self.definition.name, self.definition.description
        return EnvironmentStepTool(episode.environment, name=name, description=description)

    def execute(self, *, action: str) -> ToolOutput | Awaitable[ToolOutput]:
        """Take the step. What the environment raises is raised here; ValueError where it gives no such tuple."""
        if self._environment is None:
            raise EpisodeError(f"{self.definition.name!r} has no environment; give it one, or call it in an episode")
        result = self._environment.step(action)
        return _told_later(result) if inspect.isawaitable(result) else _told(result)


async def _told_later(result: Awaitable[Any]) -> ToolOutput:
    return _told(await result)


def _told(result: Any) -> ToolOutput:
    if not isinstance(result, tuple) or len(result) not in (4, 5):
        raise ValueError(f"step gave {type(result).__name__}, not (observation, reward, done, info)")
    observation, reward, *ends, _ = result
    done = any(ends)
    words = "the episode has ended" if done else "the episode goes on"
    return ToolOutput(f"{observation}\nreward: {float(reward):g}; {words}", {"reward": float(reward), "done": done})
