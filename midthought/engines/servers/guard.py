"""Runs a command, and ends it with all its processes when the parent process is gone, even if that was killed.

`guarded` returns the command line for that: it runs this file as a program, with the standard library only. Every half second
it checks whether its parent has changed, so it does not depend on threads or pipes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

POLL_SECONDS = 0.5
TERMINATE_SECONDS = 5.0
"""Time for the command to terminate by itself before it is killed."""


def guarded(words: Sequence[str]) -> list[str]:
    """Returns a command line that does not outlive this process.

    Start it with `start_new_session`, because the rest of its process group is killed.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]


def main(parent: int, words: Sequence[str]) -> int:
    """Runs the command until it ends or the parent is gone. Returns its exit code as a shell would."""
    try:
        process = subprocess.Popen(words)
    except OSError as error:
        print(error, file=sys.stderr)
        return 127
    threading.Thread(target=_watch, args=(parent, process), daemon=True).start()
    code = wait(process)
    if os.getppid() != parent:
        os.killpg(0, signal.SIGKILL)
    return code


def wait(process: subprocess.Popen[bytes]) -> int:
    """Forwards SIGINT, SIGTERM and SIGHUP to the process until it ends. Returns its exit code as a shell would."""

    def forward_signal(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, forward_signal) for number in numbers]
    try:
        code = process.wait()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _watch(parent: int, process: subprocess.Popen[bytes]) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    time.sleep(TERMINATE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
