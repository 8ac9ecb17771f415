"""Cache for results of pure tools: equal calls run once. Does not depend on tools or limits.

Calls that come while a run is in progress wait for it; later ones get the cached result.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Run(Generic[T]):
    task: asyncio.Task[T]
    num_waiting: int = 0


class ResultCache(Generic[T]):
    """The runs of one event loop, by key. A run is cancelled only when nobody waits for it any more.

    Results that satisfy `is_cacheable` are kept while a `rollout` is open. Other results and exceptions, and all of them
    outside of a rollout, are shared only by the calls that wait for the run; the next call starts another run.
    """

    def __init__(self, is_cacheable: Callable[[T], bool]) -> None:
        self._is_cacheable = is_cacheable
        self._runs: dict[str, _Run[T]] = {}
        """In progress or finished."""
        self._num_rollouts = 0

    @contextlib.contextmanager
    def rollout(self) -> Iterator[None]:
        """Keeps results until the last of all simultaneous rollouts has ended."""
        self._num_rollouts += 1
        try:
            yield
        finally:
            self._num_rollouts -= 1
            if not self._num_rollouts:
                self._runs.clear()

    async def get(self, key: str, compute: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, bool]:
        """Returns the result and whether it is shared, that is, an earlier call started the run. All callers get the same
        object."""
        run = self._runs.get(key)
        is_shared = run is not None
        if run is None:
            run = self._runs[key] = _Run(asyncio.ensure_future(compute()))
            run.task.add_done_callback(lambda task: self._finish(key, run))
        if not run.task.done():
            run.num_waiting += 1
            try:
                await asyncio.wait((run.task,))
            finally:
                run.num_waiting -= 1
                if not run.num_waiting and not run.task.done():
                    self._remove(key, run)
                    run.task.cancel()
                    await asyncio.wait((run.task,))
        return run.task.result(), is_shared

    def _finish(self, key: str, run: _Run[T]) -> None:
        task = run.task
        has_result = not task.cancelled() and task.exception() is None and self._is_cacheable(task.result())
        if not (has_result and self._num_rollouts):
            self._remove(key, run)

    def _remove(self, key: str, run: _Run[T]) -> None:
        if self._runs.get(key) is run:
            del self._runs[key]


def key_of(name: str, arguments: Mapping[str, Any]) -> str | None:
    """Returns the same text for equal calls, in any order of arguments; None if the arguments are not JSON throughout.

    >>> key_of("look", {"k": 1, "query": "tide"})
    'look{"k": 1, "query": "tide"}'
    >>> key_of("look", {"k": {1: "one"}})  # as JSON, the key would be "1"
    """
    try:
        text = json.dumps(arguments, sort_keys=True)
        return name + text if json.loads(text) == arguments else None
    except (TypeError, ValueError, RecursionError):
        return None
