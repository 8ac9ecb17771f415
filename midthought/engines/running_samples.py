"""The samples of an engine that are running: at most one per episode, and `close` of the episode cancels it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from midthought.errors import EngineError
from midthought.types import Completion


class RunningSamples:
    """Tasks of running samples, by episode. Does not depend on how an engine samples."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[Completion]] = {}

    def require_free(self, episode: int, token_ids: Sequence[int]) -> None:
        """Raises `EngineError` if there is nothing to continue, or the episode is being sampled already."""
        if not token_ids:
            raise EngineError(f"episode {episode}: nothing to continue; give at least one token id")
        if episode in self._tasks:
            raise EngineError(f"episode {episode} is being sampled already; await its completion first")

    async def run(self, episode: int, sample: Coroutine[Any, Any, Completion]) -> Completion:
        """Returns the completion of a free episode. Cancelling the caller, or `cancel`, cancels the sample."""
        task = asyncio.ensure_future(sample)
        self._tasks[episode] = task
        try:
            return await task
        finally:
            del self._tasks[episode]

    def cancel(self, episode: int) -> None:
        """Cancels the episode's sample, if one is running."""
        if episode in self._tasks:
            self._tasks[episode].cancel()
