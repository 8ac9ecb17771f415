"""Runs a command, and ends it and all it has started when the process that wanted it is gone, killed ones too.

`guarded` gives the command line for that: this very file as a program, which needs nothing but the standard library. It
looks every half a second who its parent is, so it matters neither which thread started it nor who holds a pipe.
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

LOOK_SECONDS = 0.5
END_SECONDS = 5.0
"""How long the command may take to end by itself when nobody wants it any more."""


def guarded(words: Sequence[str]) -> list[str]:
    """The words of a command that must not outlive this process. To be started in a session of its own (`start_new_session`):
    what is left of the command's process group is killed."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]


def main(parent: int, words: Sequence[str]) -> int:
    """Run the command until it ends, handing SIGINT, SIGTERM and SIGHUP on to it; its exit code, as a shell has it."""
    try:
        process = subprocess.Popen(words)
    except OSError as error:
        print(error, file=sys.stderr)
        return 127

    def hand_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hand_on)
    threading.Thread(target=_watch, args=(parent, process), daemon=True).start()
    code = process.wait()
    if os.getppid() != parent:
        os.killpg(0, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _watch(parent: int, process: subprocess.Popen[bytes]) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    time.sleep(END_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
