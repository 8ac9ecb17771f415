"""The command line: `python -m benchmarks real TASK [--seed N] [--model M]`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.real import podcast
from benchmarks.real.measure import FIGURES, NUM_HELD_OUT, RUN, Options, table, train, train_arm
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
    num_questions = podcast.NUM_ON_CPU if device == "cpu" else podcast.NUM_QUESTIONS
    chosen = Options(
        model=options.model or packaged_model(),
        seed=options.seed,
        out=options.out or Path("runs/real", f"{options.task}-{options.seed}"),
        settings={"device": device},
        is_short=options.short,
        max_held_out=num_questions if is_podcast else NUM_HELD_OUT,
    )
    task = None if is_podcast else TASKS[options.task]
    if options.part and task:
        train(task, chosen) if options.part == RUN else train_arm(task, chosen, options.part)
        return 0
    if chosen.out.exists():
        parser.error(
            f"{chosen.out} holds an earlier measurement or other files; delete it, or give another folder: --out"
        )
    chosen.out.mkdir(parents=True)
    began = time.monotonic()
    arms = task.arms if task and not options.no_arms else {}
    num_processes = 2 if device == "cpu" and arms else 1
    num_threads = max(1, len(os.sched_getaffinity(0)) // num_processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(num_threads))
    is_parallel = num_processes > 1
    code = _run_parts(list(arms), task, chosen, [*words], is_parallel=is_parallel) if task else podcast.run(chosen)
    if code:
        return code
    machine = describe_machine(device) | {"threads": f"{os.environ['OMP_NUM_THREADS']} in each of {num_processes}"}
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


def _run_parts(arms: Sequence[str], task: RealTask, options: Options, words: list[str], *, is_parallel: bool) -> int:
    """Runs the main part, and beside it (or after it) the arms, each in a process. Returns the first exit status but 0."""
    parts: list[subprocess.Popen[bytes]] = []

    def start(part: str) -> subprocess.Popen[bytes]:
        output = None if part == RUN else (options.out / f"{part}.log").open("wb")
        command = [sys.executable, "-m", "benchmarks", "real", *words, "--part", part, "--out", str(options.out)]
        parts.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT if output else None))
        return parts[-1]

    main_part, code = start(RUN), 0
    try:
        for arm in sorted(
            arms, key=lambda name: task.arms[name] is None
        ):  # arms that need no policy of the main part first
            if not is_parallel:
                main_part.wait()
            while task.arms[arm] is None and main_part.poll() is None and not (options.out / FIGURES).is_file():
                time.sleep(1)
            if main_part.poll():
                break
            if failed := start(arm).wait():
                code = code or failed
                print((options.out / f"{arm}.log").read_text("utf-8", "replace")[-2000:])
        return main_part.wait() or code
    finally:
        for part in parts:
            part.terminate()
