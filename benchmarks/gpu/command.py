"""The command: starts the process that runs the checks, ends it if it hangs, prints a table, writes JSON and Markdown."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.findings import CHECKS, Finding, Outcome, Status, to_markdown, to_text, write_json
from benchmarks.gpu.worker import serve
from benchmarks.table import describe_machine

SECONDS = 540
"""Of the whole command, by default: a machine that is lent for ten minutes also has packages to install."""
MIN_CHECK_SECONDS = 3.0
TIMED_OUT = "stopped: it took longer than its share of the time"
MODELS = ("0.6B", "1.7B", "8B")
TINY_MODELS = ("tiny",)


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 0 if no check failed or broke."""
    arguments = _parse(words)
    out: Path = arguments.out
    machine = _describe(arguments)
    outcomes: list[Outcome] = []

    def write() -> None:
        write_json(out / "gpu.json", machine, outcomes)

    write()
    with Worker(arguments.device, arguments.tiny, tuple(arguments.models)) as worker:
        ends = time.monotonic() + arguments.seconds
        checks = [check for check in CHECKS if check.number in arguments.checks]
        for place, check in enumerate(checks):
            outcomes.append(Outcome(check=check))
            left, weights = ends - time.monotonic(), [each.weight for each in checks[place:]]
            worker.run(outcomes[-1], left * weights[0] / sum(weights), on_finding=write)
            machine["device"] = worker.device_name or machine["device"]
            write()
            print(to_text(outcomes[-1]), flush=True)
    table = "\n".join([*(f"- {name}: {value}" for name, value in machine.items()), "", to_markdown(outcomes), ""])
    (out / "gpu.md").write_text(table, "utf-8")
    counts = {status: sum(outcome.status is status for outcome in outcomes) for status in Status}
    print(f"\n{', '.join(f'{count} {status}' for status, count in counts.items())}; {out}/gpu.json, {out}/gpu.md")
    return int(any(outcome.status in (Status.FAILED, Status.ERROR) for outcome in outcomes))


class Worker:
    """The process of the checks; a new one after a check that broke it."""

    def __init__(self, device: str, is_tiny: bool, model_names: tuple[str, ...]) -> None:
        self._arguments = device, is_tiny, model_names
        self._process: SpawnProcess | None = None
        self._pipe: Connection
        self.device_name = ""
        """As its process says."""

    def run(self, outcome: Outcome, seconds: float, *, on_finding: Any) -> None:
        """Fill in the outcome of its check, which may take so many seconds, the start of a process included."""
        began = time.monotonic()
        if seconds < MIN_CHECK_SECONDS:
            return outcome.end(Status.NOT_RUN, "no time is left", 0.0)
        status, reason = self._run(outcome, began + seconds, on_finding)
        if status is Status.ERROR:
            self._stop(prints_stack=reason == TIMED_OUT)
        outcome.end(status, reason, time.monotonic() - began)

    def _run(self, outcome: Outcome, ends: float, on_finding: Any) -> tuple[Status, str]:
        try:
            if self._process is None:
                self._start()
            self._pipe.send((outcome.check, 0.9 * (ends - time.monotonic())))
            while self._pipe.poll(max(0.0, ends - time.monotonic())):
                message = self._pipe.recv()
                if isinstance(message, str):
                    self.device_name = message
                elif isinstance(message, Finding):
                    outcome.findings.append(message)
                    on_finding()
                else:
                    return message
        except (EOFError, OSError):
            assert self._process is not None
            self._process.join(10.0)
            return Status.ERROR, f"its process ended with exit code {self._process.exitcode}"
        return Status.ERROR, TIMED_OUT

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *self._arguments))
        self._process.start()
        theirs.close()

    def _stop(self, *, prints_stack: bool = False) -> None:
        process, self._process = self._process, None
        if process is None or process.pid is None:
            return
        self._pipe.close()
        if prints_stack:
            os.kill(process.pid, signal.SIGABRT)
            process.join(5.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that vLLM started
        process.join(5.0)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    numbers = [check.number for check in CHECKS]
    titles = "; ".join(f"{check.number} {check.title}" for check in CHECKS)
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
