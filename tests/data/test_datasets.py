"""Data sets of the package `datasets`, made in memory: what a user passes to the trainer after `load_dataset`."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from midthought import DataError, load_tasks
from midthought.data import rows

ROWS = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(1, 5)]
PROMPTS = [row["question"] for row in ROWS]


def prompts_of(source: Any) -> list[str]:
    return [task.prompt for task in load_tasks(source)]


@pytest.fixture
def datasets() -> Any:
    """Imported here: it takes more than a second, in each process that collects tests."""
    return pytest.importorskip("datasets")


@pytest.fixture
def dataset(datasets: Any) -> Any:
    return datasets.Dataset.from_list(ROWS)


def test_a_data_set_and_its_selections_are_read(datasets: Any, dataset: Any) -> None:
    assert prompts_of(dataset) == PROMPTS
    assert prompts_of(dataset.select(range(2))) == PROMPTS[:2]
    assert sorted(prompts_of(dataset.shuffle(seed=0))) == sorted(PROMPTS)
    assert prompts_of(datasets.concatenate_datasets([dataset, dataset])) == PROMPTS * 2
    for name in (None, "numpy", "torch", "pandas", "arrow"):
        assert prompts_of(dataset.with_format(name)) == PROMPTS
    image = pytest.importorskip("PIL.Image").new("RGB", (4, 4))
    pictures = datasets.Dataset.from_dict({"question": [image], "answer": ["a"]})
    with pytest.raises(DataError, match=r"row 1: the prompt is <PIL.*it must be a text or a list of messages"):
        load_tasks(pictures)


def test_a_transform_of_the_user_is_kept(dataset: Any) -> None:
    upper = dataset.with_transform(lambda batch: {**batch, "question": [each.upper() for each in batch["question"]]})
    assert prompts_of(dataset.map(lambda row: {"question": row["question"] + "!"}))[0] == "1 + 1?!"
    assert prompts_of(upper) == [prompt.upper() for prompt in PROMPTS]


def test_a_stream_is_read_up_to_a_limit(datasets: Any, dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prompts_of(dataset.to_iterable_dataset()) == PROMPTS
    endless = datasets.IterableDataset.from_generator(
        lambda: ({"question": "?", "answer": "1"} for _ in itertools.count())
    )
    assert prompts_of(endless.take(3)) == ["?"] * 3
    monkeypatch.setattr(rows, "MAX_STREAMED_ROWS", 50)
    with pytest.raises(DataError, match=r"a stream \(IterableDataset\) of more than 50 rows; .*dataset\.take"):
        load_tasks(endless)
    assert len(load_tasks(dataset.select([0] * 60))) == 60, "a data set with a length has no limit"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_mapping_of_splits_names_them(datasets: Any, dataset: Any, is_stream: bool) -> None:
    splits = datasets.DatasetDict(test=dataset, validation=dataset)
    if is_stream:
        splits = datasets.IterableDatasetDict(
            test=dataset.to_iterable_dataset(), validation=dataset.to_iterable_dataset()
        )
    with pytest.raises(DataError, match=r"mapping of test, validation, .*one of its splits, such as dataset\['test'\]"):
        load_tasks(splits)
