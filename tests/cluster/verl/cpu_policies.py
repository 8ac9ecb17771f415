"""What the rollout servers of `cpu_rollout` write in the episodes of a bundle: one tool call, then an answer.

Every second episode gives the right answer; the others sample theirs from the model, so that rewards differ within a group.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet

from midthought.cluster.verl.record import task_of
from midthought.recipes.feedback.reward import CALL_FORMAT
from midthought.tokenization import Renderer
from midthought.tools.parsers import find_call_format
from midthought.types import Task


class Policy:
    """Dictates the texts for the tasks in the bundle of this run."""

    def __init__(self, renderer: Renderer) -> None:
        files = (Path(os.environ["MIDTHOUGHT_BUNDLE"]) / "data").glob("*.parquet")
        rows = [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
        self._tasks = [task_of(row) for row in rows]
        self._is_podcast = rows[0]["data_source"] == "podcast_qa"
        self._renderer = renderer
        self._num_answers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    def write(self, prompt_ids: Sequence[int]) -> list[int] | None:
        """Returns the token ids that follow, or None: they are sampled."""
        text = self._renderer.decode(prompt_ids)
        task = next(task for task in self._tasks if task.prompt in text)
        words = self._podcast(task, text) if self._is_podcast else self._feedback(task, text)
        return None if words is None else self._renderer.control(words)

    def _podcast(self, task: Task, text: str) -> str | None:
        said = text.rpartition("assistant\n")[2]
        if "_result:" not in said:
            quote = task.prompt.split('"')[1]
            return f"<think>{find_call_format('in_thought').render_call('memory_retrieval', {'query': quote})}"
        if said.endswith("</think>") and said.count("</think>") == 1:
            return f"{task.answer}<|im_end|>" if next(self._num_answers[""]) % 2 else None
        return "</think>" if "</think>" not in said else "<|im_end|>"

    def _feedback(self, task: Task, text: str) -> str | None:
        *before, last = text.split("assistant\n")
        if last:
            return "<|im_end|>"
        if len(before) == 1:
            wrong = str(int(task.answer) + 1)
            return f"{wrong}\n{CALL_FORMAT.render_call('get_feedback', {'current_answer': wrong})}"
        return f"{task.answer}<|im_end|>" if next(self._num_answers[task.task_id]) % 2 else None
