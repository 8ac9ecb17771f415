"""`python -m benchmarks.algorithms`: every algorithm on the demo task, from one warm-up per seed, with equal episodes.

For each seed, a warm-up on demonstrations of mixed habits is run once, then each algorithm trains that policy with the same
settings besides its own preset (`training.algorithm`). `TEACHER` is the policy of the control arm: the same model after clean
demonstrations. Finished runs are not repeated, so the command continues after a stop. `--table` only prints what was measured.
`--recipe feedback ppo grpo rft` compares on the feedback recipe.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TEACHER = "TEACHER"
METHODS: dict[str, list[str]] = {
    "ppo": [],
    "grpo": [],
    "dr_grpo": [],
    "rloo": [],
    "reinforce_plus_plus": [],
    "gspo": [],
    "cispo": [],
    "sapo": [],
    "dppo_tv": [],
    "gmpo": [],
    "rft": [],
    "distillation": [f"training.teacher={TEACHER}"],
}
"""Names of `training.algorithm`, and what each needs besides."""
CLEAN = {
    "podcast": ["warmup.habits=clean"],
    "feedback": ["sft.ask_hard=1", "sft.ask_easy=0", "sft.ask_again=1", "sft.practice_share=0"],
}
"""Settings of the clean demonstrations, by recipe."""
_SHARED_COLUMNS = (
    ("greedy", "after.exact_match"),
    ("calls if needed", "after.call_rate_needed"),
    ("calls if not", "after.call_rate_needless"),
    ("entropy", "entropy"),
    ("seconds, fastest seed", "seconds.rl"),
)
COLUMNS = {
    "podcast": (("sampled", "after.sampled.exact_match"), *_SHARED_COLUMNS),
    "feedback": (("sampled", "after.sampled.exact_match"), *_SHARED_COLUMNS),
}
"""Titles and metrics of the table, by recipe; calls of the feedback recipe are needed if the first answer is wrong. Means over
the seeds, but the smallest number of seconds, because other jobs may have slowed some runs down."""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help=f"any of {', '.join(METHODS)}; all by default")
    parser.add_argument("--recipe", choices=sorted(COLUMNS), default="podcast")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--out", type=Path, help="default: runs/algorithms-RECIPE")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of all runs")
    parser.add_argument("--table", action="store_true", help="print what has been measured, run nothing")
    arguments = parser.parse_args(words)
    methods = arguments.methods or list(METHODS)
    if unknown := sorted(set(methods) - METHODS.keys()):
        parser.error(f"unknown method {unknown[0]!r}; there is: {', '.join(METHODS)}")
    comparison = Comparison(
        arguments.recipe, arguments.out or Path(f"runs/algorithms-{arguments.recipe}"), methods, arguments.set
    )
    if not arguments.table:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for jobs in (comparison.warmups, comparison.runs):
                todo = [job for seed in arguments.seeds for job in jobs(seed)]
                for failed in filter(None, pool.map(lambda job: comparison.run(*job), todo)):
                    print(failed, file=sys.stderr)
    print(comparison.table(arguments.seeds))


Job = tuple[Path, list[str]]
"""A run folder and the words after `midthought train RECIPE --run FOLDER`."""


@dataclass(frozen=True)
class Comparison:
    """Methods on one recipe. `settings` are of all runs, which are in folders below `out`."""

    recipe: str
    out: Path
    methods: Sequence[str]
    settings: Sequence[str] = ()

    def warmups(self, seed: int) -> list[Job]:
        """Returns the warm-up that all methods start from, and the teacher's if a method has one."""
        common = ["--stage", "sft", f"training.seed={seed}", *self.settings]
        jobs = [(self.out / f"warmup-{seed}", common)]
        if any(TEACHER in word for method in self.methods for word in METHODS[method]):
            jobs.append((self.out / f"teacher-{seed}", [*common, *CLEAN[self.recipe]]))
        return jobs

    def runs(self, seed: int) -> list[Job]:
        """Returns the run of every method."""
        start = ["--stage", "rl", "--from", str(self.out / f"warmup-{seed}"), f"training.seed={seed}"]
        teacher = str(self.out / f"teacher-{seed}")
        jobs = []
        for method in self.methods:
            own = [word.replace(TEACHER, teacher) for word in METHODS[method]]
            words = [*start, f"training.algorithm={method}", *self.settings, *own]
            jobs.append((self.out / f"{method}-{seed}", words))
        return jobs

    def run(self, folder: Path, words: list[str]) -> str | None:
        """Runs or resumes a run whose summary is not there. Returns the message of a run that failed."""
        if (folder / "summary.json").exists():
            return None
        command = [sys.executable, "-m", "midthought", "train", self.recipe, "--run", str(folder)]
        command += ["--resume"] if (folder / "progress.json").exists() else words
        folder.parent.mkdir(parents=True, exist_ok=True)
        log = folder.with_suffix(".log")
        with log.open("a") as lines:
            done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=lines, stderr=lines)
        failed = f"{folder.name} ended with exit code {done.returncode}; its output is in {log}"
        return failed if done.returncode else None

    def table(self, seeds: Sequence[int]) -> str:
        """Markdown: the mean of each metric over the seeds that are done, for sampled exact match every seed as well."""
        columns = COLUMNS[self.recipe]
        headings = ["", *(title for title, _ in columns), "sampled, by seed"]
        lines = [f"| {' | '.join(headings)} |", "| --- " * len(headings) + "|"]
        key = f"before.{columns[0][1].removeprefix('after.')}"
        first = self.methods[0]
        before = [row[key] for row in (metrics(self.out / f"{first}-{seed}") for seed in seeds) if key in row]
        if before:
            lines.append(
                f"| after the warm-up | {mean(before)} |" + " |" * (len(headings) - 3) + f" {numbers(before)} |"
            )
        for method in self.methods:
            rows = [row for row in (metrics(self.out / f"{method}-{seed}") for seed in seeds) if row]
            if rows:
                found = [(key, [row[key] for row in rows if row.get(key) is not None]) for _, key in columns]
                means = [mean([min(values)] if "seconds" in key and values else values) for key, values in found]
                sampled = [row[columns[0][1]] for row in rows]
                lines.append(f"| `{method}` | {' | '.join(means)} | {numbers(sampled)} |")
        return "\n".join(lines)


def metrics(folder: Path) -> dict[str, float]:
    """Returns the summary of a run with the entropy of its last iteration; empty if the run is not done."""
    path = folder / "summary.json"
    if not path.exists():
        return {}
    rows = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    entropies = [row["entropy"] for row in rows if row.get("stage") == "ppo" and row.get("entropy") is not None]
    return {**json.loads(path.read_text("utf-8")), **({"entropy": entropies[-1]} if entropies else {})}


def mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    value = statistics.fmean(values)
    return f"{value:.0f}" if value > 10 else f"{value:.3f}"


def numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


if __name__ == "__main__":
    main()
