"""The command: starts the process that runs the checks, ends it if it hangs, prints a table, writes JSON and Markdown."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.findings import CHECKS, Finding, Outcome, Status, to_markdown, to_summary, to_text, write_json
from benchmarks.gpu.worker import serve
from benchmarks.table import describe_machine

SECONDS = 540
"""Of the whole command, by default: a machine that is lent for ten minutes also has packages to install."""
MIN_CHECK_SECONDS = 1.0
MIN_OVERRUN_SECONDS = 20.0
"""A check that is over its share leaves out what it has not started. It is ended at twice its share, at least so much later:
a new process takes longer than most checks."""
END_SECONDS = 1.0
"""To end the process before the whole time is over."""
TIMED_OUT = "stopped: it took much longer than its share of the time"
TIME_IS_OVER = "stopped: the time of the whole command is over"
MODELS = ("0.6B", "1.7B", "8B")
TINY_MODELS = ("tiny",)


def main(words: Sequence[str] | None = None, *, began: float | None = None) -> int:
    """The exit code: 0 if no check failed or broke. `began`: when the command began, before imports, on the clock
    `time.monotonic`."""
    arguments = _parse(words)
    ends = (time.monotonic() if began is None else began) + arguments.seconds
    out: Path = arguments.out
    machine = _describe(arguments)
    outcomes: list[Outcome] = []

    def write() -> None:
        write_json(out / "gpu.json", machine, outcomes)

    write()
    with Worker(arguments.device, arguments.tiny, tuple(arguments.models), ends=ends) as worker:
        checks = [check for check in CHECKS if check.number in arguments.checks]
        for place, check in enumerate(checks):
            worker.start()
            machine |= {"device": worker.device_name or machine["device"], "start seconds": worker.start_seconds}
            outcomes.append(Outcome(check=check))
            left, weights = ends - time.monotonic(), [each.weight for each in checks[place:]]
            worker.run(outcomes[-1], left * weights[0] / sum(weights), on_finding=write)
            write()
            print(to_text(outcomes[-1]), flush=True)
    table = "\n".join([*(f"- {name}: {value}" for name, value in machine.items()), "", to_markdown(outcomes), ""])
    (out / "gpu.md").write_text(table, "utf-8")
    print(to_summary(outcomes))
    print(f"seconds to start a process of the checks: {worker.start_seconds}; {out}/gpu.json, {out}/gpu.md")
    return int(any(outcome.status in (Status.FAILED, Status.ERROR) for outcome in outcomes))


class Worker:
    """The process of the checks; a new one after a check that broke it.

    Args:
        ends: when the whole time is over, on the clock `time.monotonic`.
    """

    def __init__(self, device: str, is_tiny: bool, model_names: tuple[str, ...], *, ends: float = math.inf) -> None:
        self._arguments = device, is_tiny, model_names
        self._ends = ends - END_SECONDS
        self._process: SpawnProcess | None = None
        self._pipe: Connection
        self.device_name = ""
        """As its process says."""
        self.start_seconds: list[float] = []
        """Of each process: imports and the device's initialization. No check is charged for them."""

    def start(self) -> None:
        """Starts the process and waits until it is ready. Does nothing if there is one, or no time."""
        if self._process is not None or time.monotonic() > self._ends:
            return
        began = time.monotonic()
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *self._arguments))
        self._process.start()
        theirs.close()
        with contextlib.suppress(EOFError, OSError):  # `run` reports a process that has ended
            if self._poll(self._ends):
                self.device_name = self._pipe.recv().device_name
        self.start_seconds.append(round(time.monotonic() - began, 1))

    def run(self, outcome: Outcome, seconds: float, *, on_finding: Callable[[], None]) -> None:
        """Fills in the outcome of its check, whose share of the time is so many seconds."""
        if seconds < MIN_CHECK_SECONDS:
            return outcome.end(Status.NOT_RUN, "no time is left", 0.0)
        self.start()
        began = time.monotonic()
        status, reason = self._run(outcome, seconds, on_finding)
        if status is Status.ERROR:
            self._stop(prints_stack=reason in (TIMED_OUT, TIME_IS_OVER))
        outcome.end(status, reason, time.monotonic() - began)

    def _run(self, outcome: Outcome, seconds: float, on_finding: Callable[[], None]) -> tuple[Status, str]:
        now = time.monotonic()
        ends = min(self._ends, now + max(2.0 * seconds, seconds + MIN_OVERRUN_SECONDS))
        try:
            self._pipe.send((outcome.check, min(seconds, 0.9 * (ends - now))))
            while self._poll(ends):
                message = self._pipe.recv()
                if not isinstance(message, Finding):
                    return message
                outcome.findings.append(message)
                on_finding()
        except (EOFError, OSError):
            assert self._process is not None
            self._process.join(10.0)
            return Status.ERROR, f"its process ended with exit code {self._process.exitcode}"
        return Status.ERROR, TIME_IS_OVER if ends == self._ends else TIMED_OUT

    def _poll(self, ends: float) -> bool:
        seconds = max(0.0, ends - time.monotonic())
        return self._pipe.poll(None if math.isinf(seconds) else seconds)

    def _stop(self, *, prints_stack: bool = False) -> None:
        process, self._process = self._process, None
        if process is None or process.pid is None:
            return
        self._pipe.close()
        if prints_stack:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR1)
            process.join(0.5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that vLLM started
        process.kill()  # if it had no group of its own yet
        process.join(5.0)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    titles = "; ".join(f"{check.number} {check.title}" for check in CHECKS)
    numbers = sorted(check.number for check in CHECKS)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: to see that every check runs")
    parser.add_argument("--checks", nargs="+", type=int, default=numbers, choices=numbers, help=titles)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="shapes of Qwen3; all three by default")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for the whole command ({SECONDS})")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder for gpu.json and gpu.md")
    arguments = parser.parse_args(words)
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; to see that the checks run on a CPU, give: --device cpu --tiny")
    if arguments.models and arguments.tiny:
        parser.error("--tiny has a model of its own; leave out --models or --tiny")
    order = TINY_MODELS if arguments.tiny else MODELS
    arguments.models = [name for name in order if name in (arguments.models or order)]
    return arguments


def _describe(arguments: argparse.Namespace) -> dict[str, Any]:
    machine = describe_machine("cpu")  # this process leaves the GPU to the checks
    machine["device"] = arguments.device
    machine |= {"date": datetime.now(UTC).date().isoformat(), "models": ", ".join(arguments.models)}
    return machine | {"tiny": arguments.tiny, "seconds": arguments.seconds}
