"""Runs the calls of a turn all at once, each under a deadline; what goes wrong becomes an event that the model reads.

Knows nothing of how calls are written, nor of tokens or rewards.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import math
import random
import time
import weakref
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from midthought.errors import SettingsError
from midthought.tools.arguments import ArgumentsError
from midthought.tools.definition import Tool, ToolOutput
from midthought.tools.registry import ToolRegistry, invoke
from midthought.tools.threads import DaemonThreads
from midthought.types import ParsedAction, Task, ToolCall, ToolEvent, ToolOutcome

_MAX_ERROR_CHARS = 100
_CANCEL_SECONDS = 0.05
"""How long a coroutine may take to end once its deadline has cancelled it."""
_PAUSE_SECONDS = 0.1
"""Mean pause before the first retry; each further one is twice as long."""
_jitter = random.Random()
"""Apart from the global generator, whose draws belong to the run's seed."""


@dataclass(slots=True)
class _Progress:
    """How far one call has got."""

    ends_at: float = math.inf
    """When its deadline is, on the event loop's clock."""
    num_attempts: int = 0


_progress: ContextVar[_Progress] = ContextVar("midthought_call")
"""Of the call that this task answers: `answer` counts its attempts here, where an arm that overrides it need not."""


class _CallFailure(Exception):
    """A call that came to nothing: the outcome, and the words that the model reads."""

    def __init__(self, outcome: ToolOutcome, words: str) -> None:
        super().__init__(words)
        self.outcome = outcome


class Toolbox:
    """Answers calls from a registry. Evaluation arms (tool off, shuffled, oracle) extend it and override `answer`.

    `timeout_seconds` counts from when a call begins to run; at most `max_concurrency` run at once, over all episodes,
    the others wait. A tool's own `timeout_seconds` takes the place of this one, its `max_concurrency` is a second limit.

    A call that raised is run again, after a short pause and within its deadline, where the tool says that this does no
    harm: `tool.retries` times, or `retries` times where the tool is `pure`. `metadata["num_attempts"]` of the event
    then says how often it ran. Results are shortened by the rollout loop, which knows tokens.

    SettingsError where a limit makes no sense.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        timeout_seconds: float = 10.0,
        max_concurrency: int = 16,
        retries: int = 0,
    ) -> None:
        if not timeout_seconds > 0:
            raise SettingsError(f"timeout_seconds must be more than 0, not {timeout_seconds}")
        if max_concurrency < 1:
            raise SettingsError(f"max_concurrency must be 1 or more, not {max_concurrency}")
        if retries < 0:
            raise SettingsError(f"retries must be 0 or more, not {retries}")
        self.registry = registry
        self.timeout_seconds = timeout_seconds
        self.max_concurrency = max_concurrency
        self.retries = retries
        self._threads = DaemonThreads("midthought-tool")
        self._num_deaf = 0
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]]
        self._slots = weakref.WeakKeyDictionary()

    @property
    def num_abandoned(self) -> int:
        """Calls that went on after their deadline: threads left behind, and coroutines that would not be cancelled."""
        return self._threads.num_abandoned + self._num_deaf

    async def run(self, calls: Sequence[ParsedAction], task: Task, *, calls_left: int | None = None) -> list[ToolEvent]:
        """One event per call, in order. Calls beyond `calls_left` are not run but answered with "no calls left"."""
        num_allowed = len(calls) if calls_left is None else max(calls_left, 0)
        return list(
            await asyncio.gather(
                *(self._settle(action, task, number < num_allowed) for number, action in enumerate(calls))
            )
        )

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        """Answer one call that has been found sound: the tool is known, the arguments fit, defaults are filled in.

        Raise to fail. `task` is whose call it is, for arms that answer from the ground truth; tools never see it.
        """
        tool = self._tool(action)
        own_retries = self.retries if tool.pure else 0
        num_retries = own_retries if tool.retries is None else tool.retries
        progress = _progress.get(_Progress())
        for num_failed in itertools.count():
            progress.num_attempts += 1
            try:
                return await invoke(tool, copy.deepcopy(action.parameters), self._threads)
            except Exception:
                pause_seconds = _PAUSE_SECONDS * 2**num_failed * _jitter.uniform(0.5, 1.5)
                would_be_late = asyncio.get_running_loop().time() + pause_seconds >= progress.ends_at
                if num_failed >= num_retries or would_be_late:
                    raise
            await asyncio.sleep(pause_seconds)
        raise AssertionError("unreachable: the loop has no end")

    async def _settle(self, action: ParsedAction, task: Task, is_allowed: bool) -> ToolEvent:
        begun = time.perf_counter()
        progress = _Progress()
        _progress.set(progress)
        metadata: Mapping[str, Any] = {}
        try:
            sound = self._checked(action, is_allowed)
            tool = self._tool(sound)
            async with self._slot(tool):
                output = await self._before_deadline(self.answer(sound, task), tool, progress)
            outcome, metadata = ToolOutcome.OK, output.metadata
            words = _encodable(output.text)
        except _CallFailure as failure:
            outcome, words = failure.outcome, str(failure)
        if progress.num_attempts > 1:
            metadata = {**metadata, "num_attempts": progress.num_attempts}
        call = ToolCall(
            tool_name=action.tool_name,
            parameters=action.parameters,
            success=outcome is ToolOutcome.OK,
            result=words,
        )
        return ToolEvent(call=call, outcome=outcome, seconds=time.perf_counter() - begun, metadata=metadata)

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

    @contextlib.asynccontextmanager
    async def _slot(self, tool: Tool) -> AsyncIterator[None]:
        """A place among the calls of this tool, if those are limited, then one among all."""
        async with contextlib.AsyncExitStack() as places:
            if tool.max_concurrency is not None:
                await places.enter_async_context(self._semaphore(tool.definition.name, tool.max_concurrency))
            await places.enter_async_context(self._semaphore("", self.max_concurrency))
            yield

    def _semaphore(self, tool_name: str, limit: int) -> asyncio.Semaphore:
        """Semaphores belong to one event loop; a toolbox may outlive several."""
        semaphores = self._slots.setdefault(asyncio.get_running_loop(), {})
        return semaphores.setdefault(tool_name, asyncio.Semaphore(limit))

    async def _before_deadline(
        self, answer: Coroutine[Any, Any, ToolOutput], tool: Tool, progress: _Progress
    ) -> ToolOutput:
        """`asyncio.wait_for` would wait for a coroutine that refuses to be cancelled; this gives it up."""
        timeout_seconds = self.timeout_seconds if tool.timeout_seconds is None else tool.timeout_seconds
        progress.ends_at = asyncio.get_running_loop().time() + timeout_seconds
        running = asyncio.ensure_future(answer)
        running.add_done_callback(_look_at)
        try:
            await asyncio.wait({running}, timeout=timeout_seconds)
            is_late = not running.done()
            if is_late:
                running.cancel()
                await asyncio.wait({running}, timeout=_CANCEL_SECONDS)
                self._num_deaf += not running.done()
        finally:
            running.cancel()
        if is_late:
            words = f"no answer within {timeout_seconds:g} seconds; go on without it"
            raise _CallFailure(ToolOutcome.TIMED_OUT, words)
        if running.cancelled():
            raise _CallFailure(ToolOutcome.RAISED, "cancelled by the tool")
        if (error := running.exception()) is not None:
            raise _CallFailure(ToolOutcome.RAISED, _shortened(str(error)) or type(error).__name__) from error
        return running.result()


def _look_at(future: asyncio.Future[Any]) -> None:
    """Ask for the exception, so that asyncio does not report it as never looked at."""
    if not future.cancelled():
        future.exception()


def _shortened(text: str) -> str:
    return _encodable(" ".join(text.split())[:_MAX_ERROR_CHARS])


def _encodable(text: str) -> str:
    """Lone surrogates, which no file and no tokenizer can hold, become question marks."""
    return text.encode(errors="replace").decode()
