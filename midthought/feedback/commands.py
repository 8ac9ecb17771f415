"""Implements the commands of `midthought feedback`, without the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from midthought.config.references import optional
from midthought.data.problems.problem_sets import SEED, load_problems
from midthought.data.tasks import DATASET_LABEL
from midthought.errors import DataError
from midthought.feedback.convert import write_parquet
from midthought.feedback.prompts import SYSTEM_PROMPT, TOOL_NAME
from midthought.files.atomic import atomic_path
from midthought.types import Task

Tell = Callable[[str], None]


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


def write_verl_rows(tasks: Iterable[Task], path: str | Path, *, split: str = "train") -> None:
    """Writes tasks to a Parquet file that verl's RLHF data set loads unchanged.

    `extra_info` holds `split`, `index` and the whole `task` as JSON for our reward and tool; verl's agent loop reads it from
    `tools_kwargs`. Raises DataError if there is no task, MissingExtraError without pyarrow.
    """
    pa = optional("pyarrow", "data")
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    told = pa.struct([(TOOL_NAME, pa.struct([("create_kwargs", pa.struct([("task", pa.string())]))]))])
    extra_info = [("split", pa.string()), ("index", pa.int64()), ("task", pa.string()), ("tools_kwargs", told)]
    schema = pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct(extra_info)),
        ]
    )
    write_parquet(Path(path), schema, _rows(tasks, split))


def _rows(tasks: Iterable[Task], split: str) -> Iterator[dict[str, Any]]:
    for index, task in enumerate(tasks):
        dataset, written = str(task.labels.get(DATASET_LABEL, "unknown")), json.dumps(task.to_dict())
        yield {
            "data_source": dataset,
            "prompt": [dict(each) for each in task.messages(SYSTEM_PROMPT)],
            "ability": dataset.upper(),
            "reward_model": {"style": "rule", "ground_truth": task.answer},
            "extra_info": {
                "split": split,
                "index": index,
                "task": written,
                "tools_kwargs": {TOOL_NAME: {"create_kwargs": {"task": written}}},
            },
        }
