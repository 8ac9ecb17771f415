"""Mathematical comparison (math-verify) in worker processes, which are killed when they exceed the time limit.

Thread-safe. The program of the workers is `math_worker`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import selectors
import subprocess
import sys
from pathlib import Path

from midthought.config.references import require_installed
from midthought.errors import EngineError

START_SECONDS = 300.0
"""Time limit of a worker's start; a slow machine needs long to import a computer algebra system."""
NUM_WORKERS = 2
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR")
"""Environment variables that the workers get: what Python needs, and no key of this process."""

_PROGRAM = Path(__file__).with_name("math_worker.py")


class MathWorkerPool:
    """Up to `NUM_WORKERS` worker processes, started on first use and reused."""

    def __init__(self) -> None:
        self._begin()
        atexit.register(self._end)
        if hasattr(os, "register_at_fork"):  # a fork must not talk to its parent's workers
            os.register_at_fork(after_in_child=self._begin)

    def are_equal(self, answer: str, truth: str, timeout_seconds: float, *, as_wholes: bool = False) -> bool:
        """Whether math-verify finds the last expression of `answer` equal to that of `truth`; False without a verdict.

        `as_wholes`: what it cannot read in whole has no expression; units are names.
        `timeout_seconds` counts from when a worker is free. Raises `MissingExtraError` without math-verify, `EngineError` if
        the worker cannot start.
        """
        worker = self._slots.get()
        try:
            if worker is None or worker.has_ended:
                worker = _Worker()
            verdict = worker.ask([answer, truth, timeout_seconds, as_wholes], timeout_seconds)
        except BaseException:
            if worker is not None:
                worker.end()
            raise
        finally:
            self._slots.put(worker)
        return bool(verdict)

    def _begin(self) -> None:
        self._slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(NUM_WORKERS):
            self._slots.put(None)

    def _end(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                if (worker := self._slots.get_nowait()) is not None:
                    worker.end()


class _Worker:
    def __init__(self) -> None:
        require_installed("math", "math_verify")
        # -P: the folder of the program must not hide packages; a fixed hash seed gives every worker the same verdicts
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"PYTHONHASHSEED": "0"},
            text=True,
            encoding="ascii",
        )
        if self._reply(START_SECONDS) != "ready":
            raise EngineError(f"math-verify does not start; to see why: {sys.executable} -P {_PROGRAM}")

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, request: object, timeout_seconds: float) -> object:
        """Returns the reply; None, and the process has ended, if it exceeded the time limit or died."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died: the reply is missing too
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._reply(timeout_seconds)

    def end(self) -> None:
        self._process.kill()
        with contextlib.suppress(OSError):  # input that it never read
            self._process.communicate()

    def _reply(self, timeout_seconds: float) -> object:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(timeout_seconds) else ""
        if line.endswith("\n"):
            return json.loads(line)
        self.end()
        return None
