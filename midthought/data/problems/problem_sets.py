"""Problem sets by name, loaded as tasks from the Hugging Face hub, from files, or generated from a seed.

`env.answers` judges their answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from midthought.config.references import optional
from midthought.data.problems.prompts import prompt_of
from midthought.data.problems.readers import (
    Problem,
    optional_text,
    product_rows,
    read_gpqa,
    read_gsm8k,
    read_mathematics,
    read_multiple_choice,
    read_product,
    read_trivia,
)
from midthought.data.rows import Row, rows_of
from midthought.data.tasks import DATASET_LABEL, LoadedTasks, RowError, read_tasks
from midthought.errors import DataError, near_names
from midthought.types import Task

NUM_MADE = 1000
"""Generated products if no limit is given."""
SEED = 14
"""The seed of the published runs."""

QUESTION_LABEL, OPTIONS_LABEL, SOLUTION_LABEL = "question", "options", "solution"
"""Labels of a problem's task, besides its data set: question without options, texts of the options, worked solution."""
_ID_COLUMNS = ("task_id", "unique_id", "question_id", "Record ID", "id", "idx")


class HubSource(NamedTuple):
    """A data set on the hub, in the terms of `datasets.load_dataset(path, configuration, split=split)`."""

    path: str
    configuration: str | None
    split: str


class ProblemSet(NamedTuple):
    """How one data set is loaded."""

    read: Callable[[Mapping[str, Any], int], Problem]
    """(row, seed) -> problem. Raises RowError."""
    hub: HubSource | None
    """Its default source on the hub; None: products are generated."""
    base: int = 10
    """Of the products."""


PROBLEM_SETS: Mapping[str, ProblemSet] = {
    "math": ProblemSet(read_mathematics, HubSource("HuggingFaceH4/MATH-500", None, "test")),
    "aime_2024": ProblemSet(read_mathematics, HubSource("Maxwell-Jia/AIME_2024", None, "train")),
    "gsm8k": ProblemSet(read_gsm8k, HubSource("openai/gsm8k", "main", "test")),
    "mmlu": ProblemSet(read_multiple_choice, HubSource("cais/mmlu", "all", "test")),
    "mmlu_pro": ProblemSet(read_multiple_choice, HubSource("TIGER-Lab/MMLU-Pro", None, "test")),
    "gpqa": ProblemSet(read_gpqa, HubSource("Idavidrein/gpqa", "gpqa_diamond", "train")),
    "trivia_qa": ProblemSet(read_trivia, HubSource("mandarjoshi/trivia_qa", "rc.wikipedia.nocontext", "validation")),
    "multiplication": ProblemSet(partial(read_product, base=10), None),
    "hex": ProblemSet(partial(read_product, base=16), None, base=16),
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

    Examples:
        >>> load_problems("multiplication", limit=2, seed=0)[0].labels["question"]
        'Calculate the following question: 14374 * 40839.'
    """
    if dataset not in PROBLEM_SETS:
        raise DataError(f"unknown data set {dataset!r}. {near_names(dataset, PROBLEM_SETS)}")
    rows = _rows(dataset, source, split, limit, seed)
    return read_tasks(rows, lambda row: _task(dataset, row, seed), limit=limit, strict=strict, seed=seed)


def _task(dataset: str, row: Row, seed: int) -> Task:
    if not isinstance(row.value, Mapping):
        raise RowError(f"it is of type {type(row.value).__name__}; a row is a mapping")
    place = f"{row.source.rpartition('.')[0] or row.source}:{row.number}"
    problem = PROBLEM_SETS[dataset].read(row.value, seed)
    labels = {
        DATASET_LABEL: dataset,
        QUESTION_LABEL: problem.question,
        OPTIONS_LABEL: list(problem.options) or None,
        SOLUTION_LABEL: problem.solution,
        "subject": problem.subject,
        "level": problem.level,
    }
    return Task(
        task_id=optional_text(row.value, *_ID_COLUMNS) or place,
        prompt=prompt_of(dataset, problem.question, problem.options),
        answer=problem.answer,
        aliases=tuple(problem.aliases),
        labels={name: value for name, value in labels.items() if value is not None},
    )


def _rows(dataset: str, source: Any, split: str | None, limit: int | None, seed: int) -> Iterator[Row]:
    hub = _hub_source(source, PROBLEM_SETS[dataset].hub)
    if hub is not None:
        return hub_rows(hub if split is None else hub._replace(split=split))
    if split is not None:
        raise DataError(f"split={split!r}; only data sets of the hub have splits")
    if source is None:
        return product_rows(dataset, PROBLEM_SETS[dataset].base, limit or NUM_MADE, seed)
    return rows_of(Path(source) if isinstance(source, os.PathLike) else source)


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
    datasets = optional("datasets", "data")
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
