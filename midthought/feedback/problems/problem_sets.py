"""The data sets of problems by name, and their rows as tasks: from the hub, from files, from a seed.

Knows neither how answers are checked (answers) nor what is done with the tasks.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from midthought.data.rows import Row, rows_of
from midthought.data.tasks import LoadedTasks
from midthought.errors import DataError, near_names
from midthought.feedback.problems.fields import FieldError, optional_text
from midthought.feedback.problems.grade_school import read_gsm8k
from midthought.feedback.problems.hub import HubSource, hub_rows
from midthought.feedback.problems.mathematics import read_mathematics
from midthought.feedback.problems.multiple_choice import multiple_choice_rows, read_gpqa, read_multiple_choice
from midthought.feedback.problems.multiplication import product_rows, read_product
from midthought.feedback.problems.trivia import read_trivia
from midthought.types import Task

NUM_MADE = 1000
"""How many products are made where no number is given."""
SEED = 14
"""The seed of the published runs."""

_ID_COLUMNS = ("task_id", "unique_id", "question_id", "Record ID", "id", "idx")
_log = logging.getLogger(__name__)


class ProblemSet(NamedTuple):
    """How one data set is read."""

    read: Callable[[str, Mapping[str, Any], str, int], Task]
    """(data set, row, id, seed) -> task. Raises FieldError."""
    hub: HubSource | None
    """Where it lies on the hub; None: it is made."""
    file_rows: Callable[[Path], Iterator[Row]] = rows_of


PROBLEM_SETS: Mapping[str, ProblemSet] = {
    "math": ProblemSet(read_mathematics, HubSource("HuggingFaceH4/MATH-500", None, "test")),
    "aime_2024": ProblemSet(read_mathematics, HubSource("Maxwell-Jia/AIME_2024", None, "train")),
    "gsm8k": ProblemSet(read_gsm8k, HubSource("openai/gsm8k", "main", "test")),
    "mmlu": ProblemSet(read_multiple_choice, HubSource("cais/mmlu", "all", "test"), multiple_choice_rows),
    "mmlu_pro": ProblemSet(read_multiple_choice, HubSource("TIGER-Lab/MMLU-Pro", None, "test"), multiple_choice_rows),
    "gpqa": ProblemSet(read_gpqa, HubSource("Idavidrein/gpqa", "gpqa_diamond", "train")),
    "trivia_qa": ProblemSet(read_trivia, HubSource("mandarjoshi/trivia_qa", "rc.wikipedia.nocontext", "validation")),
    "multiplication": ProblemSet(read_product, None),
    "hex": ProblemSet(read_product, None),
}


def load_problems(
    dataset: str,
    source: Any = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    seed: int = SEED,
    strict: bool = True,
) -> LoadedTasks:
    """The problems of a data set as tasks: labels `dataset`, `question`, and where there are such `options`, `solution`, …

    `source` is a path (.jsonl, .csv, .tsv, .parquet), an iterable of rows, a name on the hub (`owner/name`, or
    `owner/name:configuration`), a folder that `datasets` can load, a HubSource, or None: the data set's own place on the
    hub, and for `multiplication` and `hex` products made from the seed. `split` is one of the hub's. Of more than `limit`
    problems, that many are drawn with the seed and stay in order. The seed also shuffles the options of `gpqa`.

    Raises DataError for an unknown name, a source or a row that cannot be read, two rows of one id, and where no problem is
    found; with `strict=False` such rows are left out, counted in the log and kept in `.skipped`. Raises MissingExtraError
    where `datasets` or pyarrow is needed and missing.

    >>> load_problems("multiplication", limit=2, seed=0)[0].labels["question"]
    'Calculate the following question: 14374 * 40839.'
    """
    if dataset not in PROBLEM_SETS:
        raise DataError(f"unknown data set {dataset!r}. {near_names(dataset, PROBLEM_SETS)}")
    if limit is not None and limit < 1:
        raise DataError(f"limit={limit}; it must be at least 1")
    tasks: list[Task] = []
    skipped: list[str] = []
    where_of: dict[str, str] = {}
    for row in _rows(dataset, source, split, limit, seed):
        try:
            task = _task(dataset, row, seed)
            if task.task_id in where_of:
                raise FieldError(f"the id {task.task_id!r} stands already at {where_of[task.task_id]}")
        except FieldError as error:
            if strict:
                raise DataError(f"{row.where}: {error}") from None
            skipped.append(f"{row.where}: {error}")
            continue
        where_of[task.task_id] = row.where
        tasks.append(task)
    if not tasks:
        raise DataError(f"no problem was found{f'; {skipped[0]}' if skipped else ': the source is empty'}")
    if skipped:
        _log.warning("%d rows were left out, %d problems remain; first: %s", len(skipped), len(tasks), skipped[0])
    if limit is not None and limit < len(tasks):
        tasks = [tasks[place] for place in sorted(random.Random(seed).sample(range(len(tasks)), limit))]
    return LoadedTasks(tasks, skipped)


def _task(dataset: str, row: Row, seed: int) -> Task:
    if row.problem is not None:
        raise FieldError(row.problem)
    if not isinstance(row.value, Mapping):
        raise FieldError(f"it is of type {type(row.value).__name__}; a row is a mapping")
    place = f"{row.source.rpartition('.')[0] or row.source}:{row.number}"
    task_id = optional_text(row.value, *_ID_COLUMNS) or place
    return PROBLEM_SETS[dataset].read(dataset, row.value, task_id, seed)


def _rows(dataset: str, source: Any, split: str | None, limit: int | None, seed: int) -> Iterator[Row]:
    found = PROBLEM_SETS[dataset]
    hub = _hub_source(source, found.hub)
    if hub is not None:
        return hub_rows(hub if split is None else hub._replace(split=split))
    if split is not None:
        raise DataError(f"split={split!r}; only data sets of the hub have splits")
    if source is None:
        return product_rows(dataset, limit or NUM_MADE, seed)
    return found.file_rows(Path(source)) if isinstance(source, str | os.PathLike) else rows_of(source)


def _hub_source(source: Any, own: HubSource | None) -> HubSource | None:
    """Where on the hub the source lies: a text without a suffix is a name, or a folder of data files; None for others."""
    if source is None or isinstance(source, HubSource):
        return source or own
    if not isinstance(source, str | os.PathLike) or Path(source).is_file():
        return None
    path, _, configuration = str(source).partition(":")
    if Path(path).suffix and not Path(path).is_dir():
        return None
    return HubSource(path, configuration or None, own.split if own else "train")
