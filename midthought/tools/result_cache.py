"""Cache for results of pure tools: equal calls run once. Does not depend on tools or limits.

Calls that come while a run is in progress wait for it; later ones get the cached result.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ResultCache(Generic[T]):
    """The runs of one event loop, by key. A run ends by itself, also if no call waits for it.

    Results are kept while a `rollout` is open. Exceptions, and outside of a rollout results, too, are shared only by the calls
    that wait for the run; the next call starts another run.
    """

    def __init__(self) -> None:
        self._runs: dict[str, asyncio.Task[T]] = {}
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

    async def get(self, key: str, compute: Callable[[], Coroutine[Any, Any, T]]) -> tuple[asyncio.Task[T], bool]:
        """Returns the ended run and whether it is shared, that is, an earlier call started it."""
        run = self._runs.get(key)
        is_shared = run is not None
        if run is None:
            run = self._runs[key] = asyncio.ensure_future(compute())
            run.add_done_callback(lambda ended: self._finish(key, ended))
        await asyncio.wait((run,))
        return run, is_shared

    def _finish(self, key: str, run: asyncio.Task[T]) -> None:
        has_result = not run.cancelled() and run.exception() is None
        if not (has_result and self._num_rollouts) and self._runs.get(key) is run:
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
