"""`python -m benchmarks.algorithms`: every algorithm on the demo task, from one warm-up per seed, with equal episodes.

For each seed, a warm-up on demonstrations of mixed habits is run once, then each algorithm trains that policy with the same
settings besides its own preset (`training.algorithm`). `TEACHER` is the policy of the control arm: the same model after clean
demonstrations. Finished runs are not repeated, so the command continues after a stop. `--table` only prints what was measured.
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
    "clip_cov": [],
    "kl_cov": [],
    "rft": [],
    "online_dpo": [],
    "distillation": [f"training.teacher={TEACHER}"],
    "gkd": [f"training.teacher={TEACHER}"],
    "sdpo": ["training.self_teacher_update_rate=0.05"],
    "sdpo_topk": ["training.self_teacher_update_rate=0.05"],
}
"""Names of `training.algorithm`, and what each needs besides."""
CLEAN = ["warmup.ask_short=0", "warmup.give_up=0", "warmup.misread=0", "warmup.needless_ask=0"]
COLUMNS = (
    ("sampled", "after.sampled_exact_match"),
    ("greedy", "after.exact_match"),
    ("calls if needed", "after.call_rate_needed"),
    ("calls if not", "after.call_rate_needless"),
    ("entropy", "entropy"),
    ("seconds", "seconds.ppo"),
)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help=f"any of {', '.join(METHODS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/algorithms"))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of all runs")
    parser.add_argument("--table", action="store_true", help="print what has been measured, run nothing")
    arguments = parser.parse_args(words)
    methods = arguments.methods or list(METHODS)
    if unknown := sorted(set(methods) - METHODS.keys()):
        parser.error(f"unknown method {unknown[0]!r}; there is: {', '.join(METHODS)}")
    if not arguments.table:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for seed in arguments.seeds:
                list(pool.map(lambda job: run(*job), warmups(arguments.out, seed, arguments.set)))
            jobs = [
                reinforcement(arguments.out, method, seed, arguments.set)
                for seed in arguments.seeds
                for method in methods
            ]
            for failed in filter(None, pool.map(lambda job: run(*job), jobs)):
                print(failed, file=sys.stderr)
    print(table(arguments.out, methods, arguments.seeds))


Job = tuple[Path, list[str]]
"""A run folder and the words after `midthought train podcast --run FOLDER`."""


def warmups(out: Path, seed: int, settings: Sequence[str]) -> list[Job]:
    common = ["--stage", "sft", f"training.seed={seed}", *settings]
    return [(out / f"warmup-{seed}", common), (out / f"teacher-{seed}", [*common, *CLEAN])]


def reinforcement(out: Path, method: str, seed: int, settings: Sequence[str]) -> Job:
    own = [word.replace(TEACHER, str(out / f"teacher-{seed}")) for word in METHODS[method]]
    words = ["--stage", "rl", "--from", str(out / f"warmup-{seed}"), f"training.seed={seed}"]
    return out / f"{method}-{seed}", [*words, f"training.algorithm={method}", *settings, *own]


def run(folder: Path, words: list[str]) -> str | None:
    """Runs or resumes a run whose summary is not there. Returns the message of a run that failed."""
    if (folder / "summary.json").exists():
        return None
    command = [sys.executable, "-m", "midthought.cli", "train", "podcast", "--run", str(folder)]
    command += ["--resume"] if (folder / "progress.json").exists() else words
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    with log.open("a") as lines:
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=lines, stderr=lines)
    return f"{folder.name} ended with exit code {done.returncode}; its output is in {log}" if done.returncode else None


def table(out: Path, methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Markdown: the mean of each metric over the seeds that are done, for sampled exact match every seed as well."""
    headings = ["", *(title for title, _ in COLUMNS), "sampled, by seed"]
    lines = [f"| {' | '.join(headings)} |", "| --- " * len(headings) + "|"]
    key = f"before.{COLUMNS[0][1].removeprefix('after.')}"
    before = [row[key] for row in (metrics(out / f"{methods[0]}-{seed}") for seed in seeds) if key in row]
    if before:
        lines.append(f"| after the warm-up | {mean(before)} |" + " |" * (len(headings) - 3) + f" {numbers(before)} |")
    for method in methods:
        rows = [row for row in (metrics(out / f"{method}-{seed}") for seed in seeds) if row]
        if rows:
            means = [mean([row.get(key) for row in rows]) for _, key in COLUMNS]
            sampled = [row[COLUMNS[0][1]] for row in rows]
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


def mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    value = statistics.fmean(known)
    return f"{value:.0f}" if value > 10 else f"{value:.3f}"


def numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


if __name__ == "__main__":
    main()
