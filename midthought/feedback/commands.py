"""Implements the commands of `midthought feedback`, without the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from midthought.atomic_files import atomic_path
from midthought.data.problems.problem_sets import SEED, load_problems
from midthought.errors import DataError
from midthought.feedback.convert import convert, report_lines
from midthought.feedback.verl_rows import write_verl_rows

Tell = Callable[[str], None]


def convert_log(source: Path, out: Path, *, dataset: str, strict: bool, recheck: bool, tell: Tell) -> None:
    """`midthought feedback convert`: prints bad rows as it finds them, then the counts."""
    report = convert(source, out, dataset=dataset, strict=strict, recheck=recheck, tell=tell)
    for line in report_lines(report):
        tell(line)
    tell(f"written to {out}")


def write_problems(
    dataset: str,
    out: Path,
    *,
    source: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = SEED,
    strict: bool = False,
    tell: Tell,
) -> None:
    """`midthought feedback problems`: writes a data set as verl's rows (.parquet) or as tasks (.jsonl)."""
    if out.suffix not in (".parquet", ".jsonl"):
        raise DataError(f"{out}: the suffix selects the format; use .parquet (verl's rows) or .jsonl (tasks)")
    tasks = load_problems(dataset, source, split=split, limit=limit, seed=seed, strict=strict)
    for words in tasks.skipped:
        tell(f"{words}; skipped")
    if out.suffix == ".parquet":
        write_verl_rows(tasks, out, split=split or "train")
    else:
        with atomic_path(out) as partial:
            partial.write_text("".join(f"{json.dumps(task.to_dict())}\n" for task in tasks), "utf-8")
    tell(f"{len(tasks)} problems of {dataset} written to {out}")
