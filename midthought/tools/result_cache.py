"""Equal calls of pure tools are run once: those who ask meanwhile wait for the same run, later ones get what was kept.

Knows neither tools nor limits: a run is a coroutine, a call is a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_MAX_KEPT = 4096
"""Results of one rollout; what was asked for longest ago is forgotten first."""


@dataclass(slots=True)
class _Run(Generic[T]):
    task: asyncio.Task[T]
    num_waiting: int = 0


class ResultCache(Generic[T]):
    """The runs of one event loop. Results for which `is_kept` says yes are kept as long as a `rollout` is open; without
    one, only who asks while a run is under way shares it. Whatever else comes of a run, its waiters share it and the next
    one who asks begins another. A run ends early only when nobody waits for it any more.
    """

    def __init__(self, is_kept: Callable[[T], bool], *, max_kept: int = _MAX_KEPT) -> None:
        self._is_kept = is_kept
        self._max_kept = max_kept
        self._runs: OrderedDict[str, _Run[T]] = OrderedDict()
        """In the order of asking, under way or kept."""
        self._num_rollouts = 0

    @contextlib.contextmanager
    def rollout(self) -> Iterator[None]:
        """Keep results until the last rollout that is open at the same time has ended."""
        self._num_rollouts += 1
        try:
            yield
        finally:
            self._num_rollouts -= 1
            if not self._num_rollouts:
                self._runs.clear()

    async def ask(self, key: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, bool]:
        """The result, and whether it is shared: somebody else had asked before. The same object for all who ask."""
        run = self._runs.get(key)
        is_shared = run is not None
        if run is None:
            run = self._begun(key, begin())
        else:
            self._runs.move_to_end(key)
        if not run.task.done():
            await self._wait(key, run)
        return run.task.result(), is_shared

    def _begun(self, key: str, coroutine: Coroutine[Any, Any, T]) -> _Run[T]:
        run = self._runs[key] = _Run(asyncio.ensure_future(coroutine))
        run.task.add_done_callback(lambda task: self._ended(key, run))
        if len(self._runs) > self._max_kept:
            self._runs.popitem(last=False)
        return run

    async def _wait(self, key: str, run: _Run[T]) -> None:
        run.num_waiting += 1
        try:
            await asyncio.wait((run.task,))
        finally:
            run.num_waiting -= 1
            if not run.num_waiting and not run.task.done():
                self._forget(key, run)
                run.task.cancel()
                await asyncio.wait((run.task,))

    def _ended(self, key: str, run: _Run[T]) -> None:
        task = run.task
        is_good = not task.cancelled() and task.exception() is None and self._is_kept(task.result())
        if not (is_good and self._num_rollouts):
            self._forget(key, run)

    def _forget(self, key: str, run: _Run[T]) -> None:
        if self._runs.get(key) is run:
            del self._runs[key]


def key_of(name: str, arguments: Mapping[str, Any]) -> str | None:
    """The same text for the same call, whatever the order of the arguments; None where they are not JSON throughout.

    >>> key_of("look", {"k": 1, "query": "tide"})
    'look{"k": 1, "query": "tide"}'
    >>> key_of("look", {"k": {1: "one"}})  # JSON would say "1"
    """
    try:
        text = json.dumps(arguments, sort_keys=True)
        return name + text if json.loads(text) == arguments else None
    except (TypeError, ValueError, RecursionError):
        return None
