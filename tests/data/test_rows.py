"""Rows of files: their positions, problems of single rows, and errors that end a file."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from midthought import DataError, load_tasks
from midthought.data import rows
from midthought.data.rows import rows_of


def problems_and_values(path):
    return [(row.number, row.problem or row.value) for row in rows_of(path)]


def test_json_lines_are_numbered_as_an_editor_numbers_them(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes('\ufeff{"a": "x\u2028y"}\n\n  \r\n{"a": 2}'.encode())
    assert problems_and_values(path) == [(1, {"a": "x\u2028y"}), (4, {"a": 2})]
    assert [row.where for row in rows_of(path)] == ["a.jsonl, line 1", "a.jsonl, line 4"]


@pytest.mark.parametrize("bad", [b"{", b"\xff{}", b"[" * 100_000, b"1" * 5000, b"{} {}", b"{'a': 1}"])
def test_a_bad_json_line_does_not_end_the_file(tmp_path, bad):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' + bad + b'\n{"a": 3}\n')
    first, second, third = rows_of(path)
    assert (first.value, third.value) == ({"a": 1}, {"a": 3})
    assert "it is not JSON" in second.problem and second.where == "a.jsonl, line 2"


def test_csv_rows_begin_where_their_first_line_stands(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('\ufeffquestion,answer\r\n"two\nlines, and ""quotes""",1\r\n\r\nlast,2\r\n', "utf-8")
    assert problems_and_values(path) == [
        (2, {"question": 'two\nlines, and "quotes"', "answer": "1"}),
        (5, {"question": "last", "answer": "2"}),
    ]


def test_a_bad_csv_row_does_not_end_the_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"question,answer\na\nb,1,2\n\xff,1\nc,3\n")
    assert problems_and_values(path) == [
        (2, "it has 1 fields, the first line names 2"),
        (3, "it has 3 fields, the first line names 2"),
        (4, "it is not UTF-8; save the file as UTF-8"),
        (5, {"question": "c", "answer": "3"}),
    ]
    (tmp_path / "a.TSV").write_text("question\tanswer\na, b\t1\n")
    assert problems_and_values(tmp_path / "a.TSV") == [(2, {"question": "a, b", "answer": "1"})]


def test_parquet_rows_are_mappings(tmp_path):
    pa, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    path = tmp_path / "a.parquet"
    rows = [{"question": f"q{n}", "extra": {"truth": n}, "tags": ["x"]} for n in range(600)]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    assert [row.value for row in rows_of(path)] == rows
    assert next(iter(rows_of(path))).where == "a.parquet, row 1"


def test_a_json_file_is_a_list_of_rows(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('\ufeff[{"question": "a?"},\n {"question": "b?"}]', "utf-8")
    found = [(row.where, row.value["question"]) for row in rows_of(file)]
    assert found == [("a.json, row 1", "a?"), ("a.json, row 2", "b?")]
    for text, message in (
        ('{"rows": []}', "a dict, not a list"),
        ('{"a": 1}\n{"a": 2}', r"JSON lines.*\.jsonl"),
        ("[", "not JSON"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=message):
            list(rows_of(file))


def test_what_is_no_source_or_of_another_form_is_refused_with_the_remedy(tmp_path):
    class Frame(list):
        columns = ("question", "answer")

    for source, message in (
        ("openai/gsm8k", r"openai/gsm8k: there is no such file; .*datasets\.load_dataset\('openai/gsm8k'\)"),
        ("gone.jsonl", r"gone\.jsonl: there is no such file$"),
        ({"train": [], "test": []}, "a mapping of train, test.*one of its splits"),
        (5, "the data set is int; give a path"),
        (b"a.jsonl", "the data set is bytes; give a path"),
        (None, "the data set is NoneType"),
        (tmp_path, "no such file"),
        (Frame(), r"a table \(Frame\); give its rows as a list of mappings: table.to_dict"),
    ):
        with pytest.raises(DataError, match=message):
            rows_of(source)
    heads = (b"", b"\n1", b"a,a\n1,2", b"\xff,a\n", b",\n")
    long_field = b"question,answer\na,1\n" + b"x" * 200_000 + b",1\n"
    for name, content, message in (
        ("a.xlsx", b"x", r"\.xlsx is not a known format; known: \.jsonl"),
        ("a.parquet", b'{"question": "?"}', r"a\.parquet: it cannot be read as Parquet"),
        *(("a.csv", head, r"a\.csv: the first line must name the columns") for head in heads),
        ("a.csv", long_field, r"a\.csv, line 3: field larger .* as JSON lines"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            list(rows_of(tmp_path / name))


# -- data sets of the package datasets -------------------------------------------------------------------------------


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


def test_a_class_label_is_read_as_its_name(datasets: Any) -> None:
    label = datasets.ClassLabel(names=["bad", "good"])
    features = datasets.Features({"question": datasets.Value("string"), "label": label})
    rows = datasets.Dataset.from_list([{"question": "How?", "label": place} for place in (1, 0)], features=features)
    for each in (rows, rows.with_format("numpy"), rows.to_iterable_dataset()):
        assert [task.answer for task in load_tasks(each)] == ["good", "bad"]
    changed = rows.with_transform(lambda batch: {**batch, "label": [place + 1 for place in batch["label"]]})
    assert [task.answer for task in load_tasks(changed)] == ["2", "1"]


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
