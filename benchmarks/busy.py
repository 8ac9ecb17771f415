"""Part `busy`: a small model's work with threads that sleep after microseconds of waiting (ours) against torch's default, threads
that spin for milliseconds; alone, and beside a process that computes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from benchmarks.options import Options
from benchmarks.reciter import Reciter
from benchmarks.systems import OurSampling, make_engine
from benchmarks.table import Row
from benchmarks.timing import Timings
from benchmarks.work import Shape, Work

PART = "busy"
SYSTEMS: dict[str, dict[str, str]] = {"ours": {"GOMP_SPINCOUNT": "1000"}, "torch's default": {}}
"""Variables of the environment. A worker imports torch before midthought, which sets the variable."""
QUICK = Shape(num_episodes=3, num_prompt=40, num_span=12, num_result=24)
NUM_ROWS = 16


def measure(options: Options) -> Iterator[Row]:
    for size in options.sizes:
        for where, num_others, at_least in (("alone", 0, 0.9), ("beside one busy process", 1, 1.5)):
            with ExitStack() as stack:
                workers = {name: stack.enter_context(_worker(size, name, options.quick)) for name in SYSTEMS}
                for _ in range(num_others):
                    other = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
                    stack.callback(other.kill)
                seconds: dict[str, list[float]] = {name: [] for name in SYSTEMS}
                for number in range(options.num_rounds):
                    for name in list(SYSTEMS)[:: 1 if number % 2 else -1]:
                        seconds[name].append(_run(workers[name]))
            timings = Timings(seconds)
            yield Row(
                part=PART,
                setting=f"{size}, {os.cpu_count()} cores",
                figure=f"{where}: time with torch's default, divided by ours",
                value=timings.per_round(lambda each: each["torch's default"] / each["ours"]),
                at_least=at_least,
                seconds=timings.medians(*SYSTEMS),
            )


@contextmanager
def _worker(size: str, system: str, quick: bool) -> Iterator[subprocess.Popen[str]]:
    """A process that does the work whenever it reads a line, and writes the seconds."""
    command = [sys.executable, "-m", "benchmarks.busy", size, str(int(quick))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment | SYSTEMS[system],
    )
    try:
        _run(process)  # the first time is not counted
        yield process
    finally:
        process.kill()
        process.wait()


def _run(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def work(size: str, *, quick: bool) -> None:
    """Samples one batch of episodes and computes one gradient, once per line of stdin."""
    shape = QUICK if quick else Shape()
    reciter = Reciter(size, "in_thought", num_span=shape.num_span, device="cpu", dtype=torch.float32)
    sampling = OurSampling(reciter, make_engine(reciter, shape))
    rows = torch.randint(0, 100, (NUM_ROWS, shape.num_prompt))
    for number, _ in enumerate(sys.stdin):
        sampling.prepare(Work(reciter, shape, number))
        began = time.perf_counter()
        sampling.run()
        reciter.model(input_ids=rows).logits.logsumexp(-1).mean().backward()
        reciter.model.zero_grad()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    work(sys.argv[1], quick=sys.argv[2] == "1")
