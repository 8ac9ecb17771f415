"""Problem sets by name, loaded as tasks from the Hugging Face hub, from files, or generated from a seed.

`feedback.answers` checks their answers.
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
from midthought.errors import DataError, MissingExtraError, near_names
from midthought.feedback.problems.fields import FieldError, optional_text
from midthought.feedback.problems.free_answer import read_gsm8k, read_mathematics, read_trivia
from midthought.feedback.problems.multiple_choice import multiple_choice_rows, read_gpqa, read_multiple_choice
from midthought.feedback.problems.multiplication import product_rows, read_product
from midthought.types import Task

NUM_MADE = 1000
"""Generated products if no limit is given."""
SEED = 14
"""The seed of the published runs."""

_ID_COLUMNS = ("task_id", "unique_id", "question_id", "Record ID", "id", "idx")
_log = logging.getLogger(__name__)


class HubSource(NamedTuple):
    """A data set on the hub, in the terms of `datasets.load_dataset(path, configuration, split=split)`."""

    path: str
    configuration: str | None
    split: str


class ProblemSet(NamedTuple):
    """How one data set is loaded."""

    read: Callable[[str, Mapping[str, Any], str, int], Task]
    """(data set, row, id, seed) -> task. Raises FieldError."""
    hub: HubSource | None
    """Its default source on the hub; None: it is generated."""
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
    """The problems of a data set as tasks, with the labels `dataset` and `question`, and `options`, `solution`, … if known.

    Args:
        dataset: a name of `PROBLEM_SETS`.
        source: a path (.jsonl, .csv, .tsv, .parquet), an iterable of rows, a name on the hub (`owner/name`, or
            `owner/name:configuration`), a folder that `datasets` can load, or a HubSource. None: the data set's default source
            on the hub; for `multiplication` and `hex`, products generated from the seed.
        split: a split of the hub's data set.
        limit: if there are more problems, this many are sampled with the seed; their order is kept.
        seed: also shuffles the options of `gpqa`.
        strict: raise at a bad row; otherwise bad rows are left out, counted in the log and listed in `.skipped`.

    Raises DataError for an unknown name, an unreadable source or row, two rows with one id, and if there is no problem;
    MissingExtraError if `datasets` or pyarrow is needed and not installed.

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
                raise FieldError(f"the id {task.task_id!r} is already used by {where_of[task.task_id]}")
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
    """The source on the hub: a text without a suffix is a name, or a folder of data files. None for other sources."""
    if source is None or isinstance(source, HubSource):
        return source or own
    if not isinstance(source, str | os.PathLike) or Path(source).is_file():
        return None
    path, _, configuration = str(source).partition(":")
    if Path(path).suffix and not Path(path).is_dir():
        return None
    return HubSource(path, configuration or None, own.split if own else "train")


def hub_rows(source: HubSource) -> Iterator[Row]:
    """The rows of one split in order. Raises MissingExtraError without `datasets`, DataError if the split cannot be loaded."""
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "data") from None
    try:
        loaded = datasets.load_dataset(source.path, source.configuration, split=source.split)
    except Exception as error:  # datasets passes on the errors of many libraries
        named = ":".join(filter(None, (source.path, source.configuration)))
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataError(
            f"the data set {named}, split {source.split}, cannot be loaded: {reason}; check the name, the split and the "
            "connection to the hub (gated data sets need `hf auth login`), or give a file"
        ) from None
    for number, value in enumerate(loaded, start=1):
        yield Row(source.path, f"row of {source.split}", number, value)
