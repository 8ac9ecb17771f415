"""The stateful tools of one episode: opened by the first call of each, closed with the episode.

Does not depend on call formats or limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import Any

from midthought.tools.concurrency import DaemonThreads, settled
from midthought.tools.deadline import TooLateError, contained, within
from midthought.tools.definition import Tool, ToolEpisode

logger = logging.getLogger(__name__)


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
        return (
            self._turns.setdefault(tool.definition.name, asyncio.Lock())
            if tool.is_stateful
            else contextlib.nullcontext()
        )

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
        """Closes the opened tools, each within the tool executor's deadline.

        Never raises: what a tool's `close` raises is logged. Cancelling does not interrupt it.
        """
        self._is_closed = True
        opened, self._opened = self._opened, {}
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
            logger.warning("tool %r: close was not done within %g seconds", name, self._close_seconds)
        except Exception as error:
            logger.warning("tool %r: close raised %s: %s", name, type(error).__name__, error)
