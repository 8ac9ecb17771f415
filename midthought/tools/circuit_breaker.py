"""Stops calls to a tool that fails repeatedly. Depends only on exceptions and a clock.

Only missed deadlines and failed connections count as failures. Any other error is an answer of a working tool.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

_UNREACHABLE = frozenset({errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH})


class RefusedError(Exception):
    """The tool is not called at present."""


class CircuitBreaker:
    """Circuit breaker of one tool. Thread-safe.

    Closed: calls run. Open, after `max_failures` consecutive failures: calls are refused for `pause_seconds`, then one
    trial call runs. Any call that is answered closes it. A failed trial restarts the pause; if a trial is cancelled, the
    next call is the trial.

    >>> circuit_breaker = CircuitBreaker("look", max_failures=1, pause_seconds=60.0)
    >>> with contextlib.suppress(ConnectionError), circuit_breaker.call():
    ...     raise ConnectionRefusedError
    >>> circuit_breaker.refuses()
    True
    """

    def __init__(
        self, name: str, *, max_failures: float, pause_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._max_failures = max_failures
        self._pause_seconds = pause_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._num_failures = 0
        """Consecutive failures over all calls."""
        self._opened_at: float | None = None
        self._has_trial = False

    def refuses(self) -> bool:
        """Returns whether a call would be refused now."""
        opened_at = self._opened_at
        return opened_at is not None and (self._has_trial or self._clock() - opened_at < self._pause_seconds)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Wraps one call and counts its failure or success. Raises `RefusedError` if the tool must not be called now."""
        with self._lock:
            if self.refuses():
                raise RefusedError
            is_trial = self._has_trial = self._opened_at is not None
        try:
            yield
        except Exception as error:
            self._record(error, is_trial)
            raise
        else:
            self._record(None, is_trial)
        finally:
            if is_trial:
                self._has_trial = False

    def _record(self, error: Exception | None, is_trial: bool) -> None:
        is_failure = error is not None and is_unreachable(error)
        with self._lock:
            was_open = self._opened_at is not None
            self._num_failures = self._num_failures + 1 if is_failure else 0
            if not is_failure:
                self._opened_at = None
            elif is_trial if was_open else self._num_failures >= self._max_failures:
                self._opened_at = self._clock()
            is_open = self._opened_at is not None
        if is_open and not was_open:
            logger.warning(
                "tool %r has failed %d times in a row and is not called for %g seconds; the last error: %s",
                self._name,
                self._num_failures,
                self._pause_seconds,
                error,
            )
        elif was_open and not is_open:
            logger.warning("tool %r answers again", self._name)


def is_unreachable(error: BaseException) -> bool:
    """Returns whether this exception, or one of its causes, means that there was no connection or no answer in time.

    Errors about a question (ValueError, KeyError, FileNotFoundError, …) do not count.
    """
    left: list[BaseException] = [error]
    seen: set[int] = set()
    while left:
        error = left.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
            return True
        if isinstance(error, BaseExceptionGroup):
            left += error.exceptions
        if isinstance(error, OSError):
            if error.errno in _UNREACHABLE:
                return True
            if error.__context__ is not None:  # urllib and requests raise their own error while they handle the first
                left.append(error.__context__)
        if error.__cause__ is not None:
            left.append(error.__cause__)
    return False
