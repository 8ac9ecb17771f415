"""Runs the calls of a turn all at once, each under a deadline; what goes wrong becomes an event that the model reads.

Knows nothing of how calls are written, nor of tokens or rewards.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import itertools
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from midthought.errors import SettingsError
from midthought.tools.arguments import ArgumentsError
from midthought.tools.circuit_breaker import CircuitBreaker, RefusedError
from midthought.tools.concurrency import Places
from midthought.tools.deadline import TooLateError, within
from midthought.tools.definition import Tool, ToolEpisode, ToolOutput
from midthought.tools.episode_tools import EpisodeTools
from midthought.tools.registry import ToolRegistry, invoke, words_of
from midthought.tools.result_cache import ResultCache, key_of
from midthought.tools.threads import DaemonThreads
from midthought.types import ParsedAction, Task, ToolCall, ToolEvent, ToolOutcome

_MAX_ERROR_CHARS = 100
_CUT = " …[cut]"
"""As the rollout loop marks a result that it shortens to the tokens that the model may read."""
_RETRY_SECONDS = 0.1
"""Mean pause before the first retry; each further one is twice as long."""
_jitter = random.Random()
"""Apart from the global generator, whose draws belong to the run's seed."""


@dataclass(slots=True)
class _Progress:
    """How far one call has got."""

    ends_at: float = math.inf
    """When its deadline is, on the event loop's clock."""
    num_attempts: int = 0
    tools: EpisodeTools | None = None
    """The stateful tools of the episode that calls."""


_progress: ContextVar[_Progress] = ContextVar("midthought_call")
"""Of the call that this task answers: `answer` counts its attempts here, where an arm that overrides it need not."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a call came to, whoever reads it."""

    outcome: ToolOutcome
    words: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.outcome is ToolOutcome.OK


class _CallFailure(Exception):
    """A call that came to nothing: the outcome, and the words that the model reads."""

    def __init__(self, outcome: ToolOutcome, words: str) -> None:
        super().__init__(words)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class _Caller:
    """Who asks: the task, and the stateful tools of the episode."""

    task: Task
    tools: EpisodeTools


@dataclass(frozen=True, slots=True)
class _OnLoop:
    """What belongs to one event loop; a tool executor may outlive several."""

    places: Places
    result_cache: ResultCache[_Answer]


class ToolExecutor:
    """Answers calls from a registry. Evaluation arms (tool off, shuffled, oracle) extend it and override `answer`.

    `timeout_seconds` counts from when a call begins to run; at most `max_concurrency` run at once, over all episodes,
    the others wait. Of those at most `max_threads` are calls of plain tools: a waiting coroutine costs next to nothing, a
    thread some memory, and one that computes slows down all. A tool's own `timeout_seconds` takes the place of this
    one, its `max_concurrency` is one more limit.

    A call that raised is run again, after a short pause and within its deadline, where the tool says that this does no
    harm: `tool.retries` times, or `retries` times where the tool is `pure`. `metadata["num_attempts"]` of the event
    then says how often it ran. Results are shortened by the rollout loop, which knows tokens.

    Equal calls of a `pure` tool are run once while the first is under way, and within a `rollout` once in all, whichever
    episode asks: the answer depends on the arguments alone. The event of who did not ask first has `metadata["shared"]`.
    A failure is shared by those who waited for it, and then asked again. Arms answer by task, so theirs are not shared.

    A stateful tool (it overrides `Tool.open`) has an object of its own in every episode (`for_episode`). Its calls in one
    episode run one after the other; `max_concurrency` is still of all episodes.

    After `max_failures` calls in a row that were too late or found no connection, a tool counts as dead: calls are answered
    at once (UNAVAILABLE), and every `pause_seconds` one is tried. None: it is asked for ever. Any other error is an
    answer. Deadlines and pauses go by the clock: in deterministic mode, too, a tool that fails so gives other episodes.

    SettingsError where a limit makes no sense.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        timeout_seconds: float = 10.0,
        max_concurrency: int = 1024,
        max_threads: int = 128,
        retries: int = 0,
        max_failures: int | None = 8,
        pause_seconds: float = 10.0,
        max_result_chars: int = 400_000,
    ) -> None:
        for name, seconds in (("timeout_seconds", timeout_seconds), ("pause_seconds", pause_seconds)):
            if not seconds > 0:
                raise SettingsError(f"{name} must be more than 0, not {seconds}")
        limits = {"max_concurrency": max_concurrency, "max_threads": max_threads, "max_result_chars": max_result_chars}
        for name, limit in limits.items():
            if limit < 1:
                raise SettingsError(f"{name} must be 1 or more, not {limit}")
        if retries < 0:
            raise SettingsError(f"retries must be 0 or more, not {retries}")
        if max_failures is not None and max_failures < 1:
            raise SettingsError(f"max_failures must be 1 or more, or None for never, not {max_failures}")
        self.registry = registry
        self.timeout_seconds = timeout_seconds
        self.max_concurrency = max_concurrency
        self.max_threads = max_threads
        self.retries = retries
        self.max_failures = max_failures
        self.pause_seconds = pause_seconds
        self.max_result_chars = max_result_chars
        self._threads = DaemonThreads("midthought-tool")
        self._num_deaf = 0
        self._breakers: dict[str, CircuitBreaker] = {}
        self._on_loops: dict[asyncio.AbstractEventLoop, _OnLoop] = {}

    @property
    def num_abandoned(self) -> int:
        """Calls that went on after nobody waited: threads left behind, and coroutines that would not be cancelled."""
        return self._threads.num_abandoned + self._num_deaf

    @contextlib.contextmanager
    def rollout(self) -> Iterator[None]:
        """Keep the results of pure calls on this event loop until the rollout ends, and no longer: what a tool reads may
        change from one to the next."""
        with self._on_loop().result_cache.rollout():
            yield

    def for_episode(self, episode: ToolEpisode) -> EpisodeTools:
        """What every `run` of this episode is given, and is closed when the episode has ended: its stateful tools."""
        return EpisodeTools(episode, self._threads, self.timeout_seconds)

    async def run(
        self,
        calls: Sequence[ParsedAction],
        task: Task,
        *,
        calls_left: int | None = None,
        tools: EpisodeTools | None = None,
    ) -> list[ToolEvent]:
        """One event per call, in order. Calls beyond `calls_left` are not run but answered with "no calls left".

        `tools` are the stateful ones of the episode that calls; None: these calls are an episode of their own. Cancelling it
        cancels those that run, unless another episode waits for the same one.
        """
        if tools is None:
            tools = self.for_episode(ToolEpisode(task=task))
            try:
                return await self.run(calls, task, calls_left=calls_left, tools=tools)
            finally:
                await tools.close()
        num_allowed = len(calls) if calls_left is None else max(calls_left, 0)
        caller = _Caller(task, tools)
        settling = [self._settle(action, caller, number < num_allowed) for number, action in enumerate(calls)]
        if len(settling) == 1:
            return [await settling[0]]
        if not settling:
            return []
        running = [asyncio.ensure_future(one) for one in settling]
        try:
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
            for one in ended:
                one.result()
            return [one.result() for one in running]
        finally:
            cancelled = [one for one in running if one.cancel()]  # they end with this one, or with one that broke
            if cancelled:
                await asyncio.wait(cancelled)

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        """Answer one call that has been found sound: the tool is known, the arguments fit, defaults are filled in.

        Raise to fail. `task` is whose call it is, for arms that answer from the ground truth; a tool sees it through
        `for_task` and `open` only.
        """
        tool = self._tool(action)
        own_retries = self.retries if tool.pure else 0
        num_retries = own_retries if tool.retries is None else tool.retries
        progress = _progress.get(_Progress())
        for num_failed in itertools.count():
            progress.num_attempts += 1
            try:
                bound = tool.for_task(task)
                if tool.is_stateful and progress.tools is not None:
                    bound = await progress.tools.opened(
                        tool, self._circuit_breaker(tool.definition.name), progress.ends_at
                    )
                return await invoke(bound, copy.deepcopy(action.parameters), self._threads, registered=tool)
            except RefusedError:
                raise
            except Exception:
                pause_seconds = _RETRY_SECONDS * 2**num_failed * _jitter.uniform(0.5, 1.5)
                would_be_late = asyncio.get_running_loop().time() + pause_seconds >= progress.ends_at
                if num_failed >= num_retries or would_be_late:
                    raise
            await asyncio.sleep(pause_seconds)
        raise AssertionError("unreachable: the loop has no end")

    async def _settle(self, action: ParsedAction, caller: _Caller, is_allowed: bool) -> ToolEvent:
        begun = time.perf_counter()
        try:
            sound = self._checked(action, is_allowed)
        except _CallFailure as failure:
            answer = _Answer(failure.outcome, str(failure))
        else:
            answer = await self._answered(sound, caller)
        call = ToolCall(
            tool_name=action.tool_name,
            parameters=action.parameters,
            success=answer.is_good,
            result=answer.words,
        )
        seconds = time.perf_counter() - begun
        return ToolEvent(call=call, outcome=answer.outcome, seconds=seconds, metadata=answer.metadata)

    def _checked(self, action: ParsedAction, is_allowed: bool) -> ParsedAction:
        if not is_allowed:
            raise _CallFailure(ToolOutcome.NO_CALLS_LEFT, "no calls left; go on with what you have")
        if not action.success or action.tool_name is None:
            raise _CallFailure(ToolOutcome.MALFORMED, action.error or "no tool is named")
        if self.registry.get(action.tool_name) is None:
            known = ", ".join(self.registry.names()) or "none"
            name = _shortened(action.tool_name)
            raise _CallFailure(ToolOutcome.UNKNOWN_TOOL, f"unknown tool '{name}'; there is: {known}")
        try:
            arguments = self.registry.arguments(action.tool_name, action.parameters)
        except ArgumentsError as error:
            raise _CallFailure(ToolOutcome.BAD_ARGUMENTS, str(error)) from None
        return replace(action, parameters=arguments)

    def _tool(self, action: ParsedAction) -> Tool:
        assert action.tool_name is not None
        tool = self.registry.get(action.tool_name)
        assert tool is not None
        return tool

    async def _answered(self, action: ParsedAction, caller: _Caller) -> _Answer:
        """Run the call, or share in an equal one."""
        tool = self._tool(action)
        is_arm = type(self).answer is not ToolExecutor.answer
        key = key_of(tool.definition.name, action.parameters) if tool.pure and not is_arm else None
        if key is None:
            return await self._once(action, caller)
        begin = functools.partial(self._once, action, caller)
        answer, is_shared = await self._on_loop().result_cache.ask(key, begin)
        try:
            metadata = copy.deepcopy(dict(answer.metadata))
        except Exception:
            words = f"the metadata of {tool.definition.name!r} cannot be copied; let it hold JSON values only"
            return _Answer(ToolOutcome.RAISED, words)
        return replace(answer, metadata={**metadata, "shared": True} if is_shared else metadata)

    async def _once(self, action: ParsedAction, caller: _Caller) -> _Answer:
        """Run the call, retries included."""
        progress = _Progress(tools=caller.tools)
        try:
            async with caller.tools.turn(self._tool(action)):
                output = await self._run_in_place(action, caller.task, progress)
            words = output.text
            if len(words) > self.max_result_chars:
                words = words[: self.max_result_chars] + _CUT
            answer = _Answer(ToolOutcome.OK, _encodable(words), output.metadata)
        except _CallFailure as failure:
            answer = _Answer(failure.outcome, str(failure))
        if progress.num_attempts > 1:
            answer = replace(answer, metadata={**answer.metadata, "num_attempts": progress.num_attempts})
        return answer

    async def _run_in_place(self, action: ParsedAction, task: Task, progress: _Progress) -> ToolOutput:
        """A stateful tool is an object of its own in every episode: one that is dead says nothing of the others. Its breaker
        counts only whether it could be opened."""
        tool = self._tool(action)
        circuit_breaker = None if tool.is_stateful else self._circuit_breaker(tool.definition.name)
        try:
            if circuit_breaker is not None and circuit_breaker.refuses():
                raise RefusedError
            async with self._on_loop().places.take(tool):
                with circuit_breaker.call() if circuit_breaker is not None else contextlib.nullcontext():
                    return await self._before_deadline(action, task, tool, progress)
        except RefusedError:
            words = f"{tool.definition.name!r} is out of order at present; go on without it"
            raise _CallFailure(ToolOutcome.UNAVAILABLE, words) from None

    def _on_loop(self) -> _OnLoop:
        loop = asyncio.get_running_loop()
        if loop not in self._on_loops:
            for closed in [other for other in list(self._on_loops) if other.is_closed()]:
                self._on_loops.pop(closed, None)
            places = Places(max_concurrency=self.max_concurrency, max_threads=self.max_threads)
            self._on_loops[loop] = _OnLoop(places, ResultCache(lambda answer: answer.is_good))
        return self._on_loops[loop]

    def _circuit_breaker(self, name: str) -> CircuitBreaker:
        if name not in self._breakers:
            max_failures = math.inf if self.max_failures is None else self.max_failures
            new = CircuitBreaker(name, max_failures=max_failures, pause_seconds=self.pause_seconds)
            self._breakers.setdefault(name, new)
        return self._breakers[name]

    async def _before_deadline(self, action: ParsedAction, task: Task, tool: Tool, progress: _Progress) -> ToolOutput:
        timeout_seconds = self.timeout_seconds if tool.timeout_seconds is None else tool.timeout_seconds
        progress.ends_at = asyncio.get_running_loop().time() + timeout_seconds
        try:
            return await within(timeout_seconds, self._counted(action, task, progress), on_deaf=self._count_deaf)
        except TooLateError:
            words = f"no answer within {timeout_seconds:g} seconds; go on without it"
            raise _CallFailure(ToolOutcome.TIMED_OUT, words) from TimeoutError()
        except RefusedError:
            raise
        except Exception as error:
            raise _CallFailure(ToolOutcome.RAISED, _words_of(error)) from error

    async def _counted(self, action: ParsedAction, task: Task, progress: _Progress) -> ToolOutput:
        _progress.set(progress)
        return await self.answer(action, task)

    def _count_deaf(self) -> None:
        self._num_deaf += 1


def _words_of(error: Exception) -> str:
    try:
        return _shortened(words_of(error)) or type(error).__name__
    except Exception:  # of its own __str__
        return type(error).__name__


def _shortened(text: str) -> str:
    return _encodable(" ".join(text[: 100 * _MAX_ERROR_CHARS].split())[:_MAX_ERROR_CHARS])


def _encodable(text: str) -> str:
    """Lone surrogates, which no file and no tokenizer can hold, become question marks."""
    return text.encode(errors="replace").decode()
