"""Tasks of the package `verifiers` (from 0.4, `verifiers.v1`): the policy gives one answer, the task's rewards score the record.

The package's harnesses, runtimes, tool servers and model clients are not used. The package is imported when an episode begins.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, StepResult
from midthought.errors import EpisodeError, SettingsError

MAX_TASKS = 10_000
"""Tasks that are read from a taskset; an infinite one is cut here."""


class VerifiersEnvironment(BaseEnvironment):
    """Environment for a `Taskset` of `verifiers.v1`.

    Every `reset` draws one of `rows`, tasks of the taskset (None: its first 10,000). Its episode is one answer. The task's
    weighted rewards are the reward of this step; `info["metrics"]` are its rewards and metrics by name. Copies share the tasks.

    Raises `SettingsError` for an empty set of rows, for something else than a taskset, and for tasks that need a runtime, tool
    servers or several turns.
    """

    def __init__(
        self, taskset: Any, *, rows: Sequence[Any] | None = None, config: EnvironmentConfig | None = None
    ) -> None:
        super().__init__(config)
        name = type(taskset).__name__
        if not hasattr(taskset, "load"):
            raise SettingsError(
                f"{name} is no Taskset of verifiers.v1; load one with verifiers.v1.load_taskset (of an Env: env.taskset), or "
                "write an environment of several turns as a BaseEnvironment"
            )
        self._tasks = _Tasks(itertools.islice(taskset, MAX_TASKS) if rows is None else rows)
        if not self._tasks:
            raise SettingsError(f"{name} has no tasks to play; give rows=[task, …]")
        if taskset.toolsets(taskset.config):
            raise SettingsError(f"{name} shares tool servers, which this adapter does not start")
        for each in {type(task): task for task in self._tasks}.values():
            _check_task(each)
        self._task: Any = None
        self._trace: Any = None

    async def reset(self, seed: int | None = None) -> str:
        """Draws a task by the seed. Returns its system prompt and prompt as text."""
        from verifiers.v1.types import content_text

        self._task = self._tasks[random.Random(seed).randrange(len(self._tasks))]
        self._trace = _new_trace(self._task)
        await _invoked(self._task.setup, trace=self._trace, runtime=None)
        messages = list(_prompt_of(self._task))
        for each in messages:
            _append(self._trace, each)
        return "\n\n".join(filter(None, (content_text(each.content) for each in messages)))

    async def step(self, action: str) -> StepResult:
        """Scores the answer. The reward is the task's weighted reward; `info["metrics"]` has its parts."""
        from verifiers.v1.types import AssistantMessage

        task, trace = self._task, self._trace
        _append(trace, AssistantMessage(content=action), sampled=True)
        trace.stop("user_closed")
        await _invoked(task.finalize, trace=trace, runtime=None)
        await task.score(trace)
        rewards = {name: each.score for name, each in trace.rewards.items() if each is not None}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return "", trace.reward, True, {"metrics": rewards | metrics}


class _Tasks(list[Any]):
    """The tasks, which copies of the environment share."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Tasks:
        return self


def _new_trace(task: Any) -> Any:
    """Returns an empty record of an episode, as the package's agents make it."""
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.state import state_cls
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask

    recorded = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    return Trace(task=recorded, agent=AgentInfo(config=AgentConfig()), state=state_cls(type(task))())


def _prompt_of(task: Any) -> Iterator[Any]:
    """Returns the messages of the task's prompt."""
    from verifiers.v1.dialects import parse_message
    from verifiers.v1.types import SystemMessage, UserMessage

    given = task.data.prompt
    if given is None:
        raise EpisodeError("the task has no prompt; write an environment that opens the exchange as a BaseEnvironment")
    if task.data.system_prompt is not None:
        yield SystemMessage(content=task.data.system_prompt)
    for each in [UserMessage(content=given)] if isinstance(given, str) else given:
        yield parse_message(each) if isinstance(each, dict) else each


def _append(trace: Any, message: Any, *, sampled: bool = False) -> None:
    from verifiers.v1.graph import MessageNode

    parent = len(trace.nodes) - 1 if trace.nodes else None
    trace.nodes.append(MessageNode(parent=parent, message=message, sampled=sampled))


async def _invoked(function: Callable[..., Any], **available: Any) -> Any:
    """Calls a hook with the arguments that it takes."""
    taken = inspect.signature(function).parameters
    result = function(**{name: value for name, value in available.items() if name in taken})
    return await result if inspect.isawaitable(result) else result


def _check_task(task: Any) -> None:
    from verifiers.v1.task import Task
    from verifiers.v1.utils.decorators import discover_decorated

    kind = type(task)
    needs = "which this adapter does not start; play it with the package, or write a BaseEnvironment"
    hooks = [*task.hooks("reward"), *task.hooks("metric")]
    hooks += [getattr(task, name) for name in ("setup", "finalize") if getattr(kind, name) is not getattr(Task, name)]
    if kind.NEEDS_CONTAINER or task.data.image or any(map(_requires_runtime, hooks)):
        raise SettingsError(f"tasks {kind.__name__} need a runtime (a container or a process), {needs}")
    if task.toolsets(task.config):
        raise SettingsError(f"tasks {kind.__name__} need tool servers, {needs}; tools can be tools of this library")
    if discover_decorated(task, "intercept"):
        raise SettingsError(f"tasks {kind.__name__} intercept model requests, of which there are none in this adapter")


def _requires_runtime(function: Callable[..., Any]) -> bool:
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
