"""Whether a tool that failed again and again is asked at all. Knows exceptions and a clock; no tool, call or result.

Only signs of a dead tool count: too late, refused or broken connections. Any other error is an answer: the tool lives.
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
    """The tool is not asked at present."""


class CircuitBreaker:
    """Of one tool. Closed: it is asked. Open, after `max_failures` in a row: it is left alone for `pause_seconds`, and
    then one call is let through on trial. An answer, of whichever call, closes it; a trial that fails begins the pause
    anew; one that is cancelled says nothing, and the next call is the trial. Safe for threads.

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
        """In a row, over all calls."""
        self._opened_at: float | None = None
        self._is_tried = False

    def refuses(self) -> bool:
        """Whether a call that came now would be refused."""
        opened_at = self._opened_at
        return opened_at is not None and (self._is_tried or self._clock() - opened_at < self._pause_seconds)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Stands around one call, and learns from what it raises. RefusedError where the tool is to be left alone."""
        with self._lock:
            if self.refuses():
                raise RefusedError
            is_trial = self._is_tried = self._opened_at is not None
        try:
            yield
        except Exception as error:
            self._learn(error, is_trial)
            raise
        else:
            self._learn(None, is_trial)
        finally:
            if is_trial:
                self._is_tried = False

    def _learn(self, error: Exception | None, is_trial: bool) -> None:
        is_failure = error is not None and is_sign_of_death(error)
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
                "tool %r has failed %d times in a row and is not asked for %g seconds; the last time: %s",
                self._name,
                self._num_failures,
                self._pause_seconds,
                error,
            )
        elif was_open and not is_open:
            logger.warning("tool %r answers again", self._name)


def is_sign_of_death(error: BaseException) -> bool:
    """Whether this exception, or one that it was raised from, says that nobody was reached or answered in time.

    What a tool raises about a question (ValueError, KeyError, FileNotFoundError, …) does not.
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
            if error.__context__ is not None:  # urllib and requests raise theirs while they handle the first
                left.append(error.__context__)
        if error.__cause__ is not None:
            left.append(error.__cause__)
    return False
