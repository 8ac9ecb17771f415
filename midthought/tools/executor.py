"""Runs the calls of a turn concurrently, each under a deadline. A failed call becomes an event that the model reads.

Does not depend on call formats, tokens or rewards.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from midthought.errors import SettingsError
from midthought.tools.arguments import ArgumentsError
from midthought.tools.concurrency import DaemonThreads, TooLateError, contained, settled, within
from midthought.tools.definition import Tool, ToolEpisode, ToolOutput
from midthought.tools.registry import ToolRegistry, as_output, encodable, short_error_text, shortened
from midthought.types import ParsedAction, Task, ToolCall, ToolEvent, ToolOutcome
from midthought.types.turn import as_recorded

_log = logging.getLogger(__name__)

_CUT = " …[cut]"
"""The rollout loop marks results that exceed `inference.max_result_tokens` in the same way."""
_MAX_LINGERING = 4
"""Threads of calls that missed their deadline, per thread of `max_threads`: each keeps its memory until its call returns."""
MAX_RESULT_CHARS = 400_000
"""Longer results are cut here."""
_tools: ContextVar[EpisodeTools | None] = ContextVar("midthought_tools", default=None)
"""The stateful tools of the calling episode. Not a parameter of `answer`, so evaluation arms can override `answer`."""


class _CallFailure(Exception):
    """A failed call: its outcome, and the message for the model."""

    def __init__(self, outcome: ToolOutcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class EpisodeTools:
    """The tool executor's state for one episode. `close` it when the episode has ended, also after an error.

    Calls of one stateful tool run one after the other, in order. If `open` takes longer than the deadline of the call that
    needed it, the next call waits for the same `open`.
    """

    def __init__(self, episode: ToolEpisode, threads: DaemonThreads, close_seconds: float) -> None:
        self._episode = episode
        self._threads = threads
        self._close_seconds = close_seconds
        self._opened: dict[str, tuple[Tool, asyncio.Future[Tool]]] = {}
        """The registered tool, and the tool that its `open` returns."""
        self._turns: dict[str, asyncio.Lock] = {}
        self._is_closed = False

    def turn(self, tool: Tool) -> contextlib.AbstractAsyncContextManager[Any]:
        """Returns a lock that waits for the earlier calls of the tool if it is stateful."""
        if not tool.is_stateful:
            return contextlib.nullcontext()
        return self._turns.setdefault(tool.definition.name, asyncio.Lock())

    async def opened(self, tool: Tool) -> Tool:
        """Returns the tool opened for this episode. Raises what `open` raises; then the next call opens it again."""
        name = tool.definition.name
        if self._is_closed:
            raise RuntimeError("the episode has ended")
        if name not in self._opened or self._opened[name][1].cancelled():
            self._opened[name] = tool, asyncio.ensure_future(contained(self._open(tool)))
        try:
            return await asyncio.shield(self._opened[name][1])
        except Exception:
            self._opened.pop(name, None)
            raise

    async def _open(self, tool: Tool) -> Tool:
        bound = await settled(functools.partial(tool.open, self._episode), self._threads)
        if not isinstance(bound, Tool):
            raise TypeError(f"open returned a {type(bound).__name__}; return the tool for the episode")
        if self._is_closed:  # nobody waits for it any more
            await self._close(tool, bound)
        return bound

    async def close(self) -> None:
        """Closes the opened tools, each within the tool executor's deadline. Never raises: what a tool's `close` raises is
        logged. Cancelling does not interrupt it."""
        self._is_closed = True
        opened, self._opened = self._opened, {}
        if opened:
            await asyncio.shield(asyncio.gather(*(self._end(*each) for each in opened.values())))

    async def _end(self, tool: Tool, opened: asyncio.Future[Tool]) -> None:
        if not opened.done():  # when it is done, it closes what it opened
            await asyncio.wait((opened,), timeout=self._close_seconds)
        elif not opened.cancelled() and opened.exception() is None:
            await self._close(tool, opened.result())

    async def _close(self, tool: Tool, bound: Tool) -> None:
        name = tool.definition.name

        async def close() -> None:
            async with self.turn(tool):
                await settled(bound.close, self._threads)

        if bound is tool:
            return
        try:
            await within(self._close_seconds, close())
        except TooLateError:
            _log.warning("tool %r: close was not done within %g seconds", name, self._close_seconds)
        except Exception as error:
            _log.warning("tool %r: close raised %s: %s", name, type(error).__name__, error)


class _Places:
    """The places for calls of a tool executor on one event loop."""

    def __init__(self, max_concurrency: int, max_threads: int) -> None:
        self._all = asyncio.Semaphore(max_concurrency)
        self._threads = asyncio.Semaphore(max_threads)
        self._by_tool: dict[str, asyncio.Semaphore] = {}

    @contextlib.asynccontextmanager
    async def one(self, tool: Tool) -> AsyncIterator[None]:
        """Waits until a call of this tool may run. The semaphores are always acquired in this order, so calls cannot deadlock."""
        async with contextlib.AsyncExitStack() as stack:
            if tool.max_concurrency is not None:
                own = self._by_tool.setdefault(tool.definition.name, asyncio.Semaphore(tool.max_concurrency))
                await stack.enter_async_context(own)
            if _needs_thread(tool):
                await stack.enter_async_context(self._threads)
            await stack.enter_async_context(self._all)
            yield


def _needs_thread(tool: Tool) -> bool:
    return not inspect.iscoroutinefunction(tool.execute)


class ToolExecutor:
    """Runs the calls of a registry's tools. Evaluation arms (tool off, shuffled, oracle) extend it and override `answer`.

    Limits: `timeout_seconds` per call, from the start of its execution, or the tool's own. At most `max_concurrency` calls
    run at once over all episodes, at most `max_threads` of them in threads (tools with a plain `execute`): a thread needs
    memory, and threads that compute slow down everything, while a waiting coroutine costs almost nothing. A tool's own
    `max_concurrency` is an additional limit. While four times `max_threads` calls that missed their deadline still run, further
    calls that need a thread fail at once (UNAVAILABLE).

    A stateful tool (one that overrides `Tool.open`) has a separate object in every episode (`for_episode`). Its calls in
    one episode run one after the other; `max_concurrency` applies to all episodes together.

    Plain tools run in daemon threads, `async` tools on one background event loop (`concurrency`). Deadlines depend on the clock,
    so missed ones change episodes in deterministic mode, too.

    The rollout loop cuts results to tokens. Raises `SettingsError` if a limit is out of range.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        timeout_seconds: float = 10.0,
        max_concurrency: int = 1024,
        max_threads: int = 128,
    ) -> None:
        if not timeout_seconds > 0:
            raise SettingsError(f"timeout_seconds must be more than 0, not {timeout_seconds}")
        for name, limit in (("max_concurrency", max_concurrency), ("max_threads", max_threads)):
            if not isinstance(limit, int) or limit < 1:
                raise SettingsError(f"{name} must be an integer of 1 or more, not {limit}")
        self.registry = registry
        self.timeout_seconds = timeout_seconds
        self.max_concurrency = max_concurrency
        self.max_threads = max_threads
        self._threads = DaemonThreads("midthought-tool")
        self._places_of: dict[asyncio.AbstractEventLoop, _Places] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Returns what another process can use: no threads and no event loops."""
        return {**vars(self), "_threads": None, "_places_of": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._threads, self._places_of = DaemonThreads("midthought-tool"), {}

    def for_episode(self, episode: ToolEpisode) -> EpisodeTools:
        """Returns the episode's stateful tools: pass them to every `run` of the episode and close them when it has ended."""
        return EpisodeTools(episode, self._threads, self.timeout_seconds)

    async def run(
        self,
        calls: Sequence[ParsedAction],
        task: Task,
        *,
        calls_left: int | None = None,
        tools: EpisodeTools | None = None,
    ) -> list[ToolEvent]:
        """Returns one event per call, in order. Calls beyond `calls_left` are not run; their event says "no calls left".

        `tools` are the stateful tools of the calling episode; None: these calls are an episode of their own. Cancelling
        cancels the running calls.
        """
        if tools is None:
            tools = self.for_episode(ToolEpisode(task=task))
            try:
                return await self.run(calls, task, calls_left=calls_left, tools=tools)
            finally:
                await tools.close()
        num_allowed = len(calls) if calls_left is None else max(calls_left, 0)
        settling = [self._settle(action, task, tools, number < num_allowed) for number, action in enumerate(calls)]
        if len(settling) == 1:
            return [await settling[0]]
        events: list[ToolEvent] = []
        for each in await asyncio.gather(*settling, return_exceptions=True):  # waits for all, also when it is cancelled
            if isinstance(each, BaseException):
                raise each
            events.append(each)
        return events

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        """Runs one valid call: the tool exists, the arguments fit its schema, defaults are filled in. Raise to fail.

        `task` is the task of the calling episode, for arms that answer from the ground truth; a tool gets it only through
        `for_task` and `open`.
        """
        tool, tools = self.registry.get(str(action.tool_name)), _tools.get()
        assert tool is not None
        bound, kind = tool.for_task(task), type(tool).__name__
        if bound.is_stateful and not tool.is_stateful:  # then its calls have no order, and its episodes are continued
            raise TypeError(f"{kind}.for_task returned a stateful tool; override open in {kind}, too")
        if bound.is_stateful and tools is not None:
            bound = await tools.opened(bound)
        execute = functools.partial(bound.execute, **copy.deepcopy(action.parameters))
        return as_output(await settled(execute, self._threads))

    async def _settle(self, action: ParsedAction, task: Task, tools: EpisodeTools, is_allowed: bool) -> ToolEvent:
        started = time.perf_counter()
        outcome = ToolOutcome.OK
        try:
            tool, valid = self._validated(action, is_allowed)
            output = await self._run_call(tool, valid, task, tools)
        except _CallFailure as failure:
            outcome, output = failure.outcome, ToolOutput(str(failure))
        name, is_ok = action.tool_name, outcome is ToolOutcome.OK
        call = ToolCall(tool_name=name, parameters=action.parameters, success=is_ok, result=output.text)
        seconds = time.perf_counter() - started
        return ToolEvent(call=call, outcome=outcome, seconds=seconds, metadata=output.metadata)

    def _validated(self, action: ParsedAction, is_allowed: bool) -> tuple[Tool, ParsedAction]:
        if not is_allowed:
            raise _CallFailure(ToolOutcome.NO_CALLS_LEFT, "no calls left; go on with what you have")
        if not action.success or action.tool_name is None:
            raise _CallFailure(ToolOutcome.MALFORMED, action.error or "no tool is named")
        tool = self.registry.get(action.tool_name)
        if tool is None:
            known = ", ".join(self.registry.names()) or "none"
            name = shortened(action.tool_name)
            raise _CallFailure(ToolOutcome.UNKNOWN_TOOL, f"unknown tool '{name}'; there is: {known}")
        try:
            arguments = self.registry.arguments(action.tool_name, action.parameters)
        except ArgumentsError as error:
            raise _CallFailure(ToolOutcome.BAD_ARGUMENTS, str(error)) from None
        return tool, replace(action, parameters=arguments)

    async def _run_call(self, tool: Tool, action: ParsedAction, task: Task, tools: EpisodeTools) -> ToolOutput:
        """Runs the call within the limits."""
        async with tools.turn(tool), self._places().one(tool):
            num_lingering = self._threads.num_lingering
            if _needs_thread(tool) and num_lingering >= _MAX_LINGERING * self.max_threads:
                message = f"{num_lingering} earlier calls still run after their deadline; go on without it"
                raise _CallFailure(ToolOutcome.UNAVAILABLE, message)
            timeout_seconds = self.timeout_seconds if tool.timeout_seconds is None else tool.timeout_seconds
            try:
                _tools.set(tools)
                output = await within(timeout_seconds, self.answer(action, task))
            except TooLateError:
                message = f"no answer within {timeout_seconds:g} seconds; go on without it"
                raise _CallFailure(ToolOutcome.TIMED_OUT, message) from None
            except Exception as error:
                raise _CallFailure(ToolOutcome.RAISED, short_error_text(error)) from error
        text = output.text
        if len(text) > MAX_RESULT_CHARS:
            text = text[:MAX_RESULT_CHARS] + _CUT
        return replace(output, text=encodable(text), metadata=as_recorded(output.metadata))

    def _places(self) -> _Places:
        loop = asyncio.get_running_loop()
        if loop not in self._places_of:  # other threads may do the same: each line is one operation of the dict
            for closed in [other for other in list(self._places_of) if other.is_closed()]:
                self._places_of.pop(closed, None)
            self._places_of[loop] = _Places(self.max_concurrency, self.max_threads)
        return self._places_of[loop]
