"""Cost of `checkpoint.record_episodes`: the same short podcast run with and without it, in turn.

`python -m benchmarks.recording WARMUP OUT --rounds 3` starts each run from the run folder WARMUP and prints the CPU seconds of
the whole process (user and system, all threads) and the wall seconds of the training iterations. Repeated runs compute the same.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

SETTINGS = (
    "training.algorithm=grpo",
    "training.group_size=8",
    "training.batch_size=64",
    "training.mini_batch_size=32",
    "training.num_train_iters=10",
    "training.validate_every=100",
    "inference.deterministic=true",
    "questions.num_train=200",
    "questions.num_test=8",
    "questions.num_test_no_memory=4",
    "evaluation.sampled=false",
    "memory.search=full_text",
)


def run(words: list[str], folder: Path) -> tuple[float, float]:
    """Returns CPU seconds of the process, and wall seconds of its training iterations."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-m",
        "midthought",
        "train",
        "podcast",
        "--stage",
        "rl",
        "--run",
        str(folder),
        "--quiet",
    ]
    subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    wall = sum(row["time/seconds"] for row in rows if row["stage"] == "ppo")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("warmup", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("words", nargs="*", help="further settings")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=16)
    arguments = parser.parse_intermixed_args()
    words = ["--from", str(arguments.warmup), *SETTINGS, *arguments.words]
    cpu: dict[int, list[float]] = {0: [], arguments.episodes: []}
    wall: dict[int, list[float]] = {0: [], arguments.episodes: []}
    for number in range(arguments.rounds):
        for count in cpu if number % 2 == 0 else reversed(cpu):
            folder = arguments.out / f"record-{count}"
            shutil.rmtree(folder, ignore_errors=True)
            seconds = run([*words, f"checkpoint.record_episodes={count}"], folder)
            cpu[count].append(seconds[0])
            wall[count].append(seconds[1])
            print(f"record_episodes={count}: {seconds[0]:.1f} CPU s, {seconds[1]:.1f} s of iterations", flush=True)
    for name, found in (("CPU seconds of the process", cpu), ("seconds of the iterations", wall)):
        ratios = [one / other - 1 for one, other in zip(found[arguments.episodes], found[0], strict=True)]
        print(
            f"{name}: {100 * statistics.median(ratios):+.1f} % (median; {', '.join(f'{100 * each:+.1f}' for each in ratios)})"
        )


if __name__ == "__main__":
    main()
