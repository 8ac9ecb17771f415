"""The command line: `python -m benchmarks real TASK [--seed N] [--model M]`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.real import podcast
from benchmarks.real.measure import NUM_HELD_OUT, RUN, Options, table, train, train_arm
from benchmarks.real.model import packaged_model
from benchmarks.real.tasks import TASKS, RealTask
from benchmarks.table import describe_machine


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks real", description=__doc__)
    parser.add_argument("task", choices=[*sorted(TASKS), podcast.NAME])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="a folder, GGUF file or Hugging Face name; default: SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=Path, help="folder of the figures and runs; default: runs/real/TASK-SEED")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--short", action="store_true", help="two steps, two iterations: to see that it runs")
    parser.add_argument("--no-arms", action="store_true", help="only the run, not the other ways to train")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
    is_podcast = options.task == podcast.NAME
    if is_podcast and device == "cpu" and not options.short:
        parser.error(podcast.NEEDS_GPU)
    chosen = Options(
        model=options.model or packaged_model(),
        seed=options.seed,
        out=options.out or Path("runs/real", f"{options.task}-{options.seed}"),
        settings={"device": device},
        is_short=options.short,
        max_held_out=podcast.NUM_QUESTIONS if is_podcast else NUM_HELD_OUT,
    )
    task = None if is_podcast else TASKS[options.task]
    if options.part and task:
        train(task, chosen) if options.part == RUN else train_arm(task, chosen, options.part)
        return 0
    if options.out is None and chosen.out.exists():
        shutil.rmtree(chosen.out)
    if chosen.out.exists():
        parser.error(f"--out: {chosen.out} exists; delete it, or give another folder")
    chosen.out.mkdir(parents=True)
    began = time.monotonic()
    if task:
        arms = {} if options.no_arms else task.arms
        code = _run_parts(list(arms), task, chosen, [*words], num_processes=2 if device == "cpu" and arms else 1)
    else:
        code = podcast.run(chosen)
    if code:
        return code
    machine = describe_machine(device)
    lines = [
        f"{options.task}, seed {options.seed}, {chosen.num_held_out} held-out tasks, {time.monotonic() - began:.0f} s",
        *(f"- {name}: {value}" for name, value in machine.items()),
        "",
        table(task, chosen.out) if task else podcast.table(chosen.out),
        "",
    ]
    (chosen.out / "table.md").write_text("\n".join(lines), "utf-8")
    print("\n".join(["", *lines, f"Report: {chosen.out / (RUN if task else podcast.RL) / 'report.html'}"]))
    return 0


def _run_parts(arms: Sequence[str], task: RealTask, options: Options, words: list[str], *, num_processes: int) -> int:
    """Runs the main part, and beside it (or after it) the arms, each in a process. Returns the first exit status but 0."""
    num_threads = max(1, (os.cpu_count() or 1) // num_processes)

    def start(part: str) -> subprocess.Popen[bytes]:
        output = None if part == RUN else (options.out / f"{part}.log").open("wb")
        command = [sys.executable, "-m", "benchmarks", "real", *words, "--part", part, "--out", str(options.out)]
        environment = os.environ | {"OMP_NUM_THREADS": str(num_threads)}
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT if output else None)

    main_part = start(RUN)
    for arm in sorted(arms, key=lambda name: task.arms[name] is None):  # those of another policy first
        if num_processes == 1:
            main_part.wait()
        while task.arms[arm] is None and main_part.poll() is None and not (options.out / "figures.json").is_file():
            time.sleep(1)
        if main_part.poll():
            break
        if code := start(arm).wait():
            print((options.out / f"{arm}.log").read_text("utf-8", "replace")[-2000:])
            main_part.terminate()
            return code
    return main_part.wait()
