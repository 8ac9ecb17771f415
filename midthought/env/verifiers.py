"""Plays tasks of the package `verifiers` (from 0.4, `verifiers.v1`): one policy answers, the task's rewards score the record.

The package's harnesses, runtimes, tool servers and model clients are not used: `Env.run` gets an agent whose answers come from
`step`. The package is imported when an episode begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, StepResult
from midthought.errors import EpisodeError, SettingsError

MAX_TASKS = 10_000
"""Tasks that are read from a taskset; an infinite one is cut here."""


class VerifiersEnvironment(BaseEnvironment):
    """Environment for a `Taskset` or an `Env` of `verifiers.v1`.

    Every `reset` draws one of `rows`, tasks of the taskset (None: its first 10,000). A taskset's task is one answer; an `Env` of
    one agent may exchange several turns with it. The task's rewards are the reward of the last step, also if `config.max_steps`
    ends the episode; `info["metrics"]` are its metrics. Copies share the tasks; a started episode cannot be copied: the other
    episodes of its group are started again with the same seed.

    Raises `SettingsError` for an empty set of rows, for something else than these classes, and for tasks that need a runtime,
    tool servers or several agents.
    """

    def __init__(self, env: Any, *, rows: Sequence[Any] | None = None, config: EnvironmentConfig | None = None) -> None:
        super().__init__(config)
        if not hasattr(env, "load") and not hasattr(env, "taskset"):
            remedy = "load one with verifiers.v1.load_taskset or verifiers.v1.load_environment"
            raise SettingsError(f"{type(env).__name__} is neither a Taskset nor an Env of verifiers.v1; {remedy}")
        self._source = _Source(env, rows)
        self._exchange: _Exchange | None = None

    async def reset(self, seed: int | None = None) -> str:
        """Draws a task by the seed. Returns its system prompt and prompt, or the environment's first message, as text."""
        await self.close()
        tasks = self._source.tasks
        task = tasks[random.Random(seed).randrange(len(tasks))]
        self._exchange = _Exchange(self._source, task)
        observation = await self._exchange.next_message()
        if observation is None:
            raise EpisodeError(f"{self._source.name} ended before its agent was asked anything")
        return observation

    async def step(self, action: str) -> StepResult:
        """Gives the answer to the environment. The last step has the task's weighted reward; `info["metrics"]` its metrics."""
        exchange = self._exchange
        if exchange is None:
            raise EpisodeError("the environment is closed; call reset() first")
        await exchange.answer(action)
        message = await exchange.next_message()
        if message is not None and self.get_step_count() + 1 == self.config.max_steps:
            await exchange.terminate("max_turns")
            return message, exchange.trace.reward, False, {"metrics": exchange.metrics()}
        if message is not None:
            return message, 0.0, False, {"metrics": {}}
        return "", exchange.trace.reward, True, {"metrics": exchange.metrics()}

    async def close(self) -> None:
        """Cancels the episode if it has not ended."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.cancel()


class _Source:
    """The tasks and the environment that copies share."""

    def __init__(self, env: Any, tasks: Sequence[Any] | None) -> None:
        taskset = getattr(env, "taskset", env)
        self.env = None if taskset is env else env
        self.name = type(env).__name__
        self.tasks = list(itertools.islice(taskset, MAX_TASKS)) if tasks is None else list(tasks)
        if not self.tasks:
            raise SettingsError(f"{self.name} has no tasks to play; give rows=[task, …]")
        for each in {type(task): task for task in self.tasks}.values():
            _check_task(each)
        self.seat = "agent" if self.env is None else _only_seat(env)
        _check_serving(env, taskset)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Source:
        return self


class _Exchange:
    """One running episode: `Env.run` in a task of the event loop, and the two queues between it and `step`.

    `Env.run` sees it as its agent and as the exchange with it, as `verifiers.v1.Agent` and `Interaction`.
    """

    trainable = True

    def __init__(self, source: _Source, task: Any) -> None:
        self.trace: Any = None
        self._source = source
        self._task = task
        self._is_over = False
        self._messages: asyncio.Queue[str | None] = asyncio.Queue()  # None: the episode has ended
        self._answers: asyncio.Queue[str | None] = asyncio.Queue()  # None: the exchange is terminated
        self._running = asyncio.ensure_future(self._run())

    def __deepcopy__(self, memo: dict[int, Any]) -> _Exchange:
        raise TypeError("a running episode of verifiers.v1 cannot be copied")

    async def next_message(self) -> str | None:
        """Returns the next message to the policy; None if the episode has ended. Raises what the environment raised."""
        if (message := await self._messages.get()) is None:
            await self._running
        return message

    async def answer(self, text: str) -> None:
        await self._answers.put(text)

    async def terminate(self, condition: str) -> None:
        """Ends the exchange: the environment's pending turn is `terminated`. Returns when the episode is scored."""
        self.trace.stop(condition)
        await self._answers.put(None)
        if await self.next_message() is not None:
            raise EpisodeError(f"{self._source.name} asked its agent again after the exchange was terminated")

    async def cancel(self) -> None:
        self._running.cancel()
        with contextlib.suppress(BaseException):
            await self._running

    def metrics(self) -> dict[str, float]:
        rewards = {name: each.score for name, each in self.trace.rewards.items() if each is not None}
        return {**rewards, **{name: value for name, value in self.trace.metrics.items() if value is not None}}

    async def _run(self) -> None:
        from verifiers.v1.episode import Episode

        env, task = self._source.env, self._task
        try:
            if env is None:
                await self.run(task)
                return
            agents = SimpleNamespace(**{self._source.seat: self})
            await env.setup(agents)
            await env.run(task, agents)
            if self.trace is None:
                raise EpisodeError(f"{self._source.name}.run ended without an agent's run")
            await env.finalize(task, Episode(task=self.trace.task, traces=[self.trace], ok=True))
        finally:
            self._messages.put_nowait(None)

    # -- what `Env.run` calls ----------------------------------------------------------------------------------

    async def run(self, task: Any, **_: Any) -> Any:
        """One answer to the task's prompt, scored."""
        async with self.interaction(task):
            await self.turn()
        return self.trace

    @contextlib.asynccontextmanager
    async def interaction(self, task: Any, **_: Any) -> AsyncIterator[_Exchange]:
        """An exchange of several turns; it is scored when the block ends."""
        if self.trace is not None:
            known = "one exchange per episode is supported"
            raise EpisodeError(f"the environment runs its agent several times in one episode; {known}")
        self._task, self.trace = task, _new_trace(task)
        await _invoked(task.setup, trace=self.trace, runtime=None)
        yield self
        self.trace.stop("user_closed")
        await _invoked(task.finalize, trace=self.trace, runtime=None)
        await task.score(self.trace)
        self.trace.ok = True

    async def turn(self, message: Any = None) -> Any:
        """Sends a message (or the task's prompt) to the policy and returns a `Segment` with its answer."""
        from verifiers.v1.agent import Segment
        from verifiers.v1.types import AssistantMessage, content_text

        if self._is_over:
            raise EpisodeError("the exchange is over: a segment was terminated")
        added = list(self._added(message))
        answer = None
        if not self.trace.nodes or not await self._has_stopped():
            for each in added:
                self._append(each)
            texts = (content_text(each.content) for each in added)
            await self._messages.put("\n\n".join(filter(None, texts)))
            answer = await self._answers.get()
        if answer is None:
            self._is_over = True
            return Segment(messages=[], terminated=True)
        reply = AssistantMessage(content=answer)
        self._append(reply, sampled=True)
        return Segment(messages=[reply])

    def _added(self, message: Any) -> Iterator[Any]:
        """Returns the messages that this turn adds to the record."""
        from verifiers.v1.dialects import parse_message
        from verifiers.v1.types import SystemMessage, UserMessage

        data = self._task.data
        if not self.trace.nodes and data.system_prompt is not None:
            yield SystemMessage(content=data.system_prompt)
        given = data.prompt if message is None else message
        if given is None:
            raise EpisodeError("the task has no prompt; its environment must open the exchange with a message")
        for each in [UserMessage(content=given)] if isinstance(given, str) else given:
            yield parse_message(each) if isinstance(each, dict) else each

    def _append(self, message: Any, *, sampled: bool = False) -> None:
        from verifiers.v1.graph import MessageNode

        parent = len(self.trace.nodes) - 1 if self.trace.nodes else None
        self.trace.nodes.append(MessageNode(parent=parent, message=message, sampled=sampled))

    async def _has_stopped(self) -> bool:
        """Whether one of the task's `@stop` functions ends the exchange."""
        for function in self._task.hooks("stop"):
            if await _invoked(function, trace=self.trace, task=self._task.data):
                self.trace.stop(function.__name__)
                return True
        return False


def _new_trace(task: Any) -> Any:
    """Returns an empty record, as the package's agents make it."""
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.state import state_cls
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask

    recorded = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    return Trace(task=recorded, agent=AgentInfo(config=AgentConfig()), state=state_cls(type(task))())


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


def _only_seat(env: Any) -> str:
    from verifiers.v1.configs.agent import agent_config_fields

    seats = list(agent_config_fields(env.config))
    if len(seats) != 1:
        raise SettingsError(
            f"{type(env).__name__} has the agents {', '.join(seats)}; environments of one agent are supported: train that agent "
            "with its Taskset, or write the others into a BaseEnvironment"
        )
    return seats[0]


def _check_serving(env: Any, taskset: Any) -> None:
    from verifiers.v1.env import Env

    if taskset.toolsets(taskset.config):
        raise SettingsError(f"{type(taskset).__name__} shares tool servers, which this adapter does not start")
    if isinstance(env, Env) and type(env).start is not Env.start:
        raise SettingsError(f"{type(env).__name__}.start sets up shared resources, which this adapter does not support")
