"""Delays Ctrl-C until the end of a step, so that saved files are complete."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

_TOLD = (
    b"\nStopping after the present step. A second signal stops at once: what came after the last checkpoint is lost.\n"
)


class StopRequest:
    """While active, the first Ctrl-C (or SIGTERM) only sets `requested`; the second one interrupts at once. Can be nested.

    >>> with StopRequest() as stop:
    ...     signal.raise_signal(signal.SIGINT)
    ...     stop.requested
    True
    """

    def __init__(self) -> None:
        self.requested = False
        self._num_open = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._num_open += 1
        if self._num_open == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._num_open -= 1
        if self._num_open == 0:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        with suppress(OSError):
            os.write(2, _TOLD)  # a print could interrupt another one

    def check(self) -> None:
        """Raises KeyboardInterrupt if a stop was requested. Call it between steps, after saving."""
        if self.requested:
            raise KeyboardInterrupt
