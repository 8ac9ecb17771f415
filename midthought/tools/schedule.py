"""Runs the calls of a turn all at once, each under a deadline; what goes wrong becomes an event that the model reads.

Knows nothing of how calls are written, nor of tokens or rewards.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from midthought.tools.definition import ToolOutput
from midthought.tools.registry import ArgumentsError, ToolRegistry, as_output
from midthought.tools.threads import DaemonThreads
from midthought.types import ParsedAction, Task, ToolCall, ToolEvent, ToolOutcome

_MAX_ERROR_CHARS = 100
_CANCEL_SECONDS = 0.05
"""How long a coroutine may take to end once its deadline has cancelled it."""


class _CallFailure(Exception):
    """A call that came to nothing: the outcome, and the words that the model reads."""

    def __init__(self, outcome: ToolOutcome, words: str) -> None:
        super().__init__(words)
        self.outcome = outcome


class Toolbox:
    """Answers calls from a registry. Evaluation arms (tool off, shuffled, oracle) extend it and override `answer`.

    `timeout_seconds` counts from when a call begins to run; at most `max_concurrency` run at once, over all episodes,
    the others wait. Results are shortened by the rollout loop, which knows tokens.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        timeout_seconds: float = 10.0,
        max_concurrency: int = 16,
    ) -> None:
        self.registry = registry
        self.timeout_seconds = timeout_seconds
        self.max_concurrency = max_concurrency
        self._threads = DaemonThreads("midthought-tool")
        self._num_deaf = 0
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
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
        assert action.tool_name is not None
        tool = self.registry.get(action.tool_name)
        assert tool is not None
        execute = functools.partial(tool.execute, **action.parameters)
        result = execute() if inspect.iscoroutinefunction(tool.execute) else await self._threads.run(execute)
        return as_output(await result if inspect.isawaitable(result) else result)

    async def _settle(self, action: ParsedAction, task: Task, is_allowed: bool) -> ToolEvent:
        begun = time.perf_counter()
        metadata: Mapping[str, Any] = {}
        try:
            sound = self._checked(action, is_allowed)
            async with self._slot():
                output = await self._before_deadline(self.answer(sound, task))
            outcome, metadata = ToolOutcome.OK, output.metadata
            words = _encodable(output.text)
        except _CallFailure as failure:
            outcome, words = failure.outcome, str(failure)
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

    def _slot(self) -> asyncio.Semaphore:
        """Semaphores belong to one event loop; a toolbox may outlive several."""
        loop = asyncio.get_running_loop()
        if loop not in self._slots:
            self._slots[loop] = asyncio.Semaphore(self.max_concurrency)
        return self._slots[loop]

    async def _before_deadline(self, answer: Coroutine[Any, Any, ToolOutput]) -> ToolOutput:
        """`asyncio.wait_for` would wait for a coroutine that refuses to be cancelled; this gives it up."""
        running = asyncio.ensure_future(answer)
        running.add_done_callback(_look_at)
        try:
            await asyncio.wait({running}, timeout=self.timeout_seconds)
            is_late = not running.done()
            if is_late:
                running.cancel()
                await asyncio.wait({running}, timeout=_CANCEL_SECONDS)
                self._num_deaf += not running.done()
        finally:
            running.cancel()
        if is_late:
            words = f"no answer within {self.timeout_seconds:g} seconds; go on without it"
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
