"""Writes tasks as rows of verl's Parquet data: conversation, ground truth, and our whole task for the agent loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.cluster.verl.settings import AGENT_NAME
from midthought.config.references import optional
from midthought.files.atomic import atomic_path
from midthought.tools.error_texts import encodable
from midthought.types import Task


def rows_of(
    tasks: Sequence[Task],
    messages: Callable[[Task], Sequence[Mapping[str, str]]],
    *,
    data_source: str,
    ability: str,
    split: str,
) -> list[dict[str, Any]]:
    """Returns one row per task, in order. verl distinguishes prompts by `extra_info.index`, the row number."""
    return [
        {
            "data_source": data_source,
            "agent_name": AGENT_NAME,
            "prompt": [{"role": said["role"], "content": encodable(said["content"])} for said in messages(task)],
            "ability": ability,
            "reward_model": {"style": "rule", "ground_truth": encodable(task.answer)},
            "extra_info": {
                "split": split,
                "index": index,
                "question": encodable(task.prompt),
                "answer": encodable(task.answer),
                "task": json.dumps(task.to_dict()),
            },
        }
        for index, task in enumerate(tasks)
    ]


def write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes the rows, atomically. Raises `MissingExtraError` without pyarrow."""
    table = optional("pyarrow", "verl").Table.from_pylist(list(rows))
    with atomic_path(path) as partial:
        optional("pyarrow.parquet", "verl").write_table(table, partial)
