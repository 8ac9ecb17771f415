"""Tools that call an object of the user: the step of an environment, or a function that answers queries."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from midthought.errors import EpisodeError, SettingsError
from midthought.tools.concurrency import environments_loop, on_loop
from midthought.tools.definition import Tool, ToolDefinition, ToolEpisode, ToolOutput, ToolParameter


class EnvironmentStepTool(Tool):
    """`environment_step(action)`: takes the step and returns the observation, the reward and whether the episode has ended.

    Only `step(action)` of the environment is used, plain or `async`. It returns `(observation, reward, done, info)`, or
    Gymnasium's `(observation, reward, terminated, truncated, info)`.
    `metadata` contains `reward` (float) and `done` (bool) for rewards and metrics. Without an `environment`, the tool steps
    the environment of the calling episode. With one, calls step that object, except in an episode with another environment of
    its class (training copies the environment): they step the episode's.

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
        """Returns the tool for the episode's environment. Raises `EpisodeError` if there is none."""
        if self._environment is not None and type(episode.environment) is not type(self._environment):
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
    return _output(await on_loop(environments_loop, lambda: result))


def _output(result: Any) -> ToolOutput:
    if not isinstance(result, tuple) or len(result) not in (4, 5):
        raise ValueError(f"step returned {type(result).__name__}, not (observation, reward, done, info)")
    observation, reward, *ends, _ = result
    done = any(ends)
    words = "the episode has ended" if done else "the episode continues"
    return ToolOutput(f"{observation}\nreward: {float(reward):g}; {words}", {"reward": float(reward), "done": done})


class QueryTool(Tool):
    """`query(query)`: the answer of a function, plain or `async`, to a query. Raises `SettingsError` for other sources.

    Examples:
        >>> QueryTool({"Ada": "Ada Lovelace wrote a program."}.__getitem__).execute(query="Ada")
        'Ada Lovelace wrote a program.'
    """

    def __init__(
        self,
        source: Callable[[str], Any],
        *,
        name: str = "query",
        description: str = "Looks up what is known about a question, a name or a subject.",
    ) -> None:
        if not callable(source):
            remedy = "for an environment use EnvironmentStepTool(env)"
            raise SettingsError(f"QueryTool takes a function of the query, not a {type(source).__name__}; {remedy}")
        self.definition = ToolDefinition(name, description, [ToolParameter("query", "string", "What to look up.")])
        self._answer = source

    def execute(self, *, query: str) -> str | ToolOutput | Awaitable[str | ToolOutput]:
        """Calls the function. Raises ValueError, which the model reads, if the query is empty."""
        if not query.strip():
            raise ValueError("query is empty")
        return self._answer(query)
