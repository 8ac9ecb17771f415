"""The main job with its control arm, for one seed and one set of transcripts; the figures of docs/benchmarks.md.

An interrupted measurement goes on where it stopped. `--table` prints the figures of all measured seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROWS = (
    ("exact match after PPO, greedy", "after.exact_match"),
    ("before PPO, greedy", "before.exact_match"),
    ("after PPO, sampled at temperature 1", "after.sampled_exact_match"),
    ("before PPO, sampled at temperature 1", "before.sampled_exact_match"),
    ("control arm, greedy", "control.exact_match"),
    ("oracle results, before PPO", "before.oracle.exact_match"),
    ("oracle results, after PPO", "after.oracle.exact_match"),
    ("tool off", "after.tool_off.exact_match"),
    ("results shuffled", "after.shuffled.exact_match"),
    ("best constant guess", "after.constant_guess"),
    ("answer in the prompt: exact match", "after.no_memory.exact_match"),
    ("calls where memory is needed", "after.call_rate_needed"),
    ("calls where it is not", "after.call_rate_needless"),
    ("factor: called", "after.factors.called"),
    ("factor: query is the quote", "after.factors.exact_query"),
    ("factor: evidence retrieved", "after.factors.retrieved"),
    ("factor: answer read", "after.factors.read"),
    ("recall@1, full text", "retrieval.full_text.recall@1"),
    ("recall@3, full text", "retrieval.full_text.recall@3"),
    ("recall@1, vectors", "retrieval.vector.recall@1"),
    ("recall@3, vectors", "retrieval.vector.recall@3"),
    ("recall@1, hybrid", "retrieval.hybrid.recall@1"),
    ("recall@3, hybrid", "retrieval.hybrid.recall@3"),
    ("questions", "num_questions"),
    ("seconds", "seconds"),
    ("peak RSS, MiB", "peak_rss_mib"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=None, help="folder of transcripts; the sample episodes by default")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--table", action="store_true", help="print the table of what has been measured, run nothing")
    arguments = parser.parse_args()
    name = arguments.data.resolve().name if arguments.data else "sample"
    if not arguments.table:
        measure(arguments.runs / f"measure-{name}-{arguments.seed}", arguments.seed, arguments.data)
    print(table(arguments.runs, name))


def measure(run: Path, seed: int, data: Path | None) -> None:
    """Run the job unless its summary is there."""
    if (run / "summary.json").exists():
        return
    command = [sys.executable, "-m", "midthought.cli", "train", "podcast", "--run", str(run)]
    if (run / "progress.json").exists():
        command.append("--resume")
    else:
        command += [f"training.seed={seed}", "evaluation.control_arm=true"]
        if data:
            command.append(f"memory.transcripts={data}")
    subprocess.run(command, check=True)


def table(runs: Path, name: str) -> str:
    """Markdown: each figure for each seed, and its mean."""
    summaries = [json.loads(path.read_text()) for path in sorted(runs.glob(f"measure-{name}-*/summary.json"))]
    if not summaries:
        return f"nothing has been measured on {name!r} yet"
    seeds = " | ".join(f"seed {summary['seed']}" for summary in summaries)
    lines = [f"| {name} | mean | {seeds} |", "| --- " * (len(summaries) + 2) + "|"]
    for title, key in ROWS:
        values = [summary.get(key) for summary in summaries]
        known = [value for value in values if value is not None]
        mean = statistics.fmean(known) if known else None
        lines.append(f"| {title} | {' | '.join(map(cell, [mean, *values]))} |")
    return "\n".join(lines)


def cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) > 1.5 else f"{value:.3f}"


if __name__ == "__main__":
    main()
