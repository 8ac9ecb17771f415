"""The `midthought` command in a process of its own, which is forked from a server that has imported torch and transformers.

A new interpreter needs 5 to 10 s of CPU time for these imports. The forked process has its own signals, exit code and output.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
"""Starts processes of any function, not only of the command."""
FORKS.set_forkserver_preload(
    [
        "lancedb",
        "midthought",
        "midthought.memory.service.app",
        "midthought.memory.service.command",
        "midthought.memory.store",
        "midthought.recipes.feedback.train",
        "midthought.recipes.podcast.train",
        "transformers.models.qwen3.modeling_qwen3",
    ]
)


class CommandProcess:
    """`midthought WORDS…` as a process.

    Args:
        words: arguments of the command.
        environment: environment variables; None: this process's own.
        prepare: called in the new process before the command; a function of a module that can be imported.
    """

    def __init__(
        self, *words: str, environment: Mapping[str, str] | None = None, prepare: Callable[[], None] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="midthought-command-")
        variables = dict(os.environ if environment is None else environment)
        self._process = FORKS.Process(
            target=_run, args=(words, variables, os.getcwd(), Path(self._folder.name), prepare)
        )
        self._process.start()

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it. None: it runs."""
        return self._process.exitcode

    @property
    def output(self) -> str:
        """What it has written to standard output so far."""
        return self._read("output")

    @property
    def errors(self) -> str:
        """What it has written to standard error so far."""
        return self._read("errors")

    def send_signal(self, number: signal.Signals) -> None:
        if self._process.is_alive():
            os.kill(self._process.pid, number)

    def wait(self, timeout: float = 600) -> int:
        """Waits for its end. Returns the exit code."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"it runs after {timeout:g} s: {self.output}{self.errors}"
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _read(self, name: str) -> str:
        file = Path(self._folder.name, name)
        return file.read_text("utf-8") if file.exists() else ""


def _run(
    words: tuple[str, ...], environment: dict[str, str], folder: str, streams: Path, prepare: Callable[[], None] | None
) -> None:
    import torch

    from midthought.cli import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(streams / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", torch.get_num_threads())))
    if prepare is not None:
        prepare()
    sys.argv = ["midthought", *words]
    main()


def run_and_kill(
    function: Callable[..., object], *arguments: object, kill_after: float | None = None
) -> tuple[bool, float]:
    """Runs `function(*arguments, started)` in a process of its own, and kills it this long after it has set the event `started`.
    None: waits for its end.

    Returns:
        Whether it was killed before its end, and its seconds since `started`.
    """
    started = FORKS.Event()
    process = FORKS.Process(target=function, args=(*arguments, started))
    process.start()
    assert started.wait(60)
    began = time.monotonic()
    process.join(kill_after)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == -signal.SIGKILL, time.monotonic() - began


def is_running(marker: str) -> bool:
    """Whether a process has this on its command line (on Linux; False on other systems)."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (process / "cmdline").read_bytes():
                return True
    return False
