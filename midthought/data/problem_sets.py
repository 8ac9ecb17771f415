"""Problem sets by name, loaded as tasks from the Hugging Face hub, from files, or generated from a seed.

`env.answers` judges their answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from midthought.config.references import optional
from midthought.data import problem_readers as readers
from midthought.data.rows import Row, RowError, rows_of
from midthought.data.tasks import DATASET_LABEL, LoadedTasks, read_tasks, warn_of_unread
from midthought.errors import DataError, near_names
from midthought.types import Task

NUM_MADE = 1000
"""Generated products if no limit is given."""
SEED = 14
"""The seed of the published runs."""

QUESTION_LABEL, OPTIONS_LABEL, SOLUTION_LABEL = "question", "options", "solution"
"""Labels of a problem's task, besides its data set: question without options, texts of the options, worked solution."""
_ID_COLUMNS = ("task_id", "unique_id", "question_id", "Record ID", "id", "idx")


class ProblemSet(NamedTuple):
    """How one data set is loaded."""

    read: Callable[[Mapping[str, Any], int], readers.Problem]
    """(row, seed) -> problem. Raises RowError."""
    hub: str | None = None
    """Its default source on the hub, `owner/name` or `owner/name:configuration`; None: products are generated."""
    split: str = "train"


PROBLEM_SETS: Mapping[str, ProblemSet] = {
    "math": ProblemSet(readers.read_mathematics, "HuggingFaceH4/MATH-500", "test"),
    "aime_2024": ProblemSet(readers.read_mathematics, "Maxwell-Jia/AIME_2024"),
    "gsm8k": ProblemSet(readers.read_gsm8k, "openai/gsm8k:main", "test"),
    "mmlu": ProblemSet(readers.read_multiple_choice, "cais/mmlu:all", "test"),
    "mmlu_pro": ProblemSet(readers.read_multiple_choice, "TIGER-Lab/MMLU-Pro", "test"),
    "gpqa": ProblemSet(readers.read_gpqa, "Idavidrein/gpqa:gpqa_diamond"),
    "trivia_qa": ProblemSet(readers.read_trivia, "mandarjoshi/trivia_qa:rc.wikipedia.nocontext", "validation"),
    "multiplication": ProblemSet(readers.read_product),
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
            `owner/name:configuration`), or a folder that `datasets` can load. None: the data set's default source on the hub;
            for `multiplication`, products generated from the seed.
        split: a split of the hub's data set.
        limit: if there are more problems, this many are sampled with the seed; their order is kept.
        seed: also shuffles the options of `gpqa`.
        strict: raise at a bad row; otherwise bad rows are left out, counted in the log and listed in `.skipped`.

    Raises DataError for an unknown name, an unreadable source or row, two rows with one id, and if there is no problem;
    MissingExtraError if `datasets` or pyarrow is needed and not installed.

    Examples:
        >>> load_problems("multiplication", limit=2, seed=0)[0].labels["question"]
        'Calculate the following question: 14374 * 40839.'
    """
    if dataset not in PROBLEM_SETS:
        raise DataError(f"unknown data set {dataset!r}. {near_names(dataset, PROBLEM_SETS)}")
    rows, unread = _rows(dataset, source, split, limit, seed), dict[str, None]()
    tasks = read_tasks(rows, lambda row: _task(dataset, row, seed, unread), limit=limit, strict=strict, seed=seed)
    if source is not None:
        warn_of_unread(unread, "write what belongs to the prompt into the question")
    return tasks


class _Columns(dict[str, Any]):
    """A row that removes the columns that are read from `unread`."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self.unread = dict.fromkeys(row)

    def get(self, name: str, default: Any = None) -> Any:
        self.unread.pop(name, None)
        return super().get(name, default)


def _task(dataset: str, row: Row, seed: int, unread: dict[str, None]) -> Task:
    if not isinstance(row.value, Mapping):
        raise RowError(f"it is of type {type(row.value).__name__}; a row is a mapping")
    place, value = f"{row.source.rpartition('.')[0] or row.source}:{row.number}", _Columns(row.value)
    problem = PROBLEM_SETS[dataset].read(value, seed)
    labels = {
        DATASET_LABEL: dataset,
        QUESTION_LABEL: problem.question,
        OPTIONS_LABEL: list(problem.options) or None,
        SOLUTION_LABEL: problem.solution,
        "subject": problem.subject,
        "level": problem.level,
    }
    task_id = readers.optional_text(value, *_ID_COLUMNS) or place
    unread |= value.unread
    return Task(
        task_id=task_id,
        prompt=readers.prompt_of(dataset, problem.question, problem.options),
        answer=problem.answer,
        aliases=tuple(problem.aliases),
        labels={name: value for name, value in labels.items() if value is not None},
    )


def _rows(dataset: str, source: Any, split: str | None, limit: int | None, seed: int) -> Iterator[Row]:
    known = PROBLEM_SETS[dataset]
    hub = known.hub if source is None else str(source) if _is_on_hub(source) else None
    if hub is not None:
        return hub_rows(hub, split or known.split)
    if split is not None:
        raise DataError(f"split={split!r}; only data sets of the hub have splits")
    if source is None:
        return readers.product_rows(limit or NUM_MADE, seed)
    return rows_of(Path(source) if isinstance(source, os.PathLike) else source)


def _is_on_hub(source: Any) -> bool:
    """Whether it is a text without a suffix, which is a name on the hub, or a folder of data files."""
    if not isinstance(source, str | os.PathLike) or Path(source).is_file():
        return False
    path = Path(str(source).partition(":")[0])
    return path.is_dir() or not path.suffix


def hub_rows(name: str, split: str) -> Iterator[Row]:
    """The rows of one split in order. Raises MissingExtraError without `datasets`, DataError if the split cannot be loaded."""
    datasets, (path, _, configuration) = optional("datasets", "data"), name.partition(":")
    try:
        loaded = datasets.load_dataset(path, configuration or None, split=split)
    except Exception as error:  # datasets passes on the errors of many libraries
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataError(
            f"the data set {name}, split {split}, cannot be loaded: {reason}; check the name, the split and the "
            "connection to the hub (gated data sets need `hf auth login`), or give a file"
        ) from None
    for number, value in enumerate(loaded, start=1):
        yield Row(path, f"row of {split}", number, value)
