"""Runs a recipe's whole job for one seed, with control arms: the podcast recipe on one set of transcripts, or feedback.

These are the figures of docs/measured.md. An interrupted measurement can be resumed, and arms can be added
to a finished one. `--table` prints the figures of all measured seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PODCAST_ROWS = (
    ("exact match after PPO, greedy", "after.exact_match"),
    ("before PPO, greedy", "before.exact_match"),
    ("seconds of PPO, without validation", "train_seconds"),
    ("after PPO, sampled at temperature 1", "after.sampled.exact_match"),
    ("before PPO, sampled at temperature 1", "before.sampled.exact_match"),
    ("control arm, greedy", "arms.clean.exact_match"),
    ("oracle results, before PPO", "before.oracle.exact_match"),
    ("oracle results, after PPO", "after.oracle.exact_match"),
    ("tool off", "after.tool_off.exact_match"),
    ("results shuffled", "after.shuffled.exact_match"),
    ("best constant guess", "after.constant_guess"),
    ("answer in the prompt: exact match", "after.no_memory.exact_match"),
    ("calls if memory is needed", "after.call_rate_needed"),
    ("calls if memory is not needed", "after.call_rate_needless"),
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
FEEDBACK_ROWS = (
    ("final accuracy after RL", "after.exact_match"),
    ("… sampled at temperature 1", "after.sampled.exact_match"),
    ("seconds of RL, without validation", "train_seconds"),
    ("… over its first try", "after.exact_match - after.first_try"),
    ("… over the same policy, retry only", "after.exact_match - after.none.exact_match"),
    ("… over after SFT", "after.exact_match - before.exact_match"),
    ("… over the same policy, wrong feedback", "after.exact_match - after.wrong.exact_match"),
    ("first try after RL", "after.first_try"),
    ("… over after SFT", "after.first_try - before.first_try"),
    ("first try after SFT, easy", "before.first_try_of.easy"),
    ("first try after SFT, hard", "before.first_try_of.hard"),
    ("first try after RL, easy", "after.first_try_of.easy"),
    ("first try after RL, hard", "after.first_try_of.hard"),
    ("calls if its first answer is wrong", "after.call_rate_needed"),
    ("calls if it is right", "after.call_rate_needless"),
    ("continues after a right answer was confirmed", "after.goes_on_after_right"),
    ("calls if its first answer is wrong, after SFT", "before.call_rate_needed"),
    ("calls if it is right, after SFT", "before.call_rate_needless"),
    ("wrong → right", "after.wrong_to_right"),
    ("right → wrong", "after.right_to_wrong"),
    ("problems", "num_questions"),
    ("seconds", "seconds"),
    ("peak RSS, MiB", "peak_rss_mib"),
)
ROWS = {"podcast": PODCAST_ROWS, "feedback": FEEDBACK_ROWS}
ARMS = {"podcast": ["clean"], "feedback": []}
"""Control arms that are trained by default."""
ARM_ROWS = (
    ("greedy", "exact_match"),
    ("sampled at temperature 1", "sampled.exact_match"),
    ("retry only", "none.exact_match"),
    ("calls if needed", "call_rate_needed"),
    ("calls if not needed", "call_rate_needless"),
    ("seconds of training", "train_seconds"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", choices=ROWS, default="podcast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=None, help="folder of transcripts; the sample episodes by default")
    parser.add_argument("--arms", default=None, help="control arms, such as rft,rft_seconds,clean; podcast: clean")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--table", action="store_true", help="print the table of what has been measured, run nothing")
    arguments = parser.parse_args()
    words = []
    name = arguments.recipe
    arms = arguments.arms.split(",") if arguments.arms else ARMS[name]
    if name == "podcast":
        name = arguments.data.resolve().name if arguments.data else "sample"
    if arguments.data:
        words.append(f"memory.transcripts={arguments.data}")
    if not arguments.table:
        measure(arguments.runs / f"measure-{name}-{arguments.seed}", arguments.recipe, arguments.seed, words, arms)
    print(table(arguments.runs, name, ROWS[arguments.recipe]))


def measure(run: Path, recipe: str, seed: int, words: list[str], arms: Sequence[str]) -> None:
    """Runs what is missing of the job and of these control arms."""
    file = run / "summary.json"
    summary = json.loads(file.read_text()) if file.exists() else {}
    if summary and all(f"arms.{arm}.exact_match" in summary for arm in arms):
        return
    command = [sys.executable, "-m", "midthought", "train", recipe, "--run", str(run)]
    if arms:
        command += ["--arms", ",".join(arms)]
    if (run / "progress.json").exists():
        command.append("--resume")
    else:
        command += [f"training.seed={seed}", *words]
    subprocess.run(command, check=True)


def table(runs: Path, name: str, rows: tuple[tuple[str, str], ...]) -> str:
    """Markdown: each figure for each seed, and its mean."""
    summaries = [json.loads(path.read_text()) for path in sorted(runs.glob(f"measure-{name}-*/summary.json"))]
    if not summaries:
        return f"nothing has been measured on {name!r} yet"
    seeds = " | ".join(f"seed {summary['seed']}" for summary in summaries)
    lines = [f"| {name} | mean | {seeds} |", "| --- " * (len(summaries) + 2) + "|"]
    arms = dict.fromkeys(key.split(".")[1] for summary in summaries for key in summary if key.startswith("arms."))
    of_arms = [(f"arm {arm}: {title}", f"arms.{arm}.{key}") for arm in arms for title, key in ARM_ROWS]
    for title, key in (*rows, *(row for row in of_arms if any(row[1] in summary for summary in summaries))):
        values = [measured(summary, key) for summary in summaries]
        known = [value for value in values if value is not None]
        mean = statistics.fmean(known) if known else None
        lines.append(f"| {title} | {' | '.join(map(cell, [mean, *values]))} |")
    return "\n".join(lines)


def measured(summary: dict[str, float | None], key: str) -> float | None:
    """Returns the value of a key, or of `KEY - KEY`; None if it was not measured."""
    one, _, other = key.partition(" - ")
    first, second = summary.get(one), summary.get(other) if other else 0.0
    return None if first is None or second is None else first - second


def cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) > 1.5 else f"{value:.3f}"


if __name__ == "__main__":
    main()
