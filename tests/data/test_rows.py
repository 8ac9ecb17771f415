"""Rows of files: their positions, problems of single rows, and errors that end a file."""

import pytest

from midthought.data.rows import DataError, rows_of


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
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    rows = [{"question": f"q{n}", "extra": {"truth": n}, "tags": ["x"]} for n in range(600)]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    assert [row.value for row in rows_of(path)] == rows
    assert next(iter(rows_of(path))).where == "a.parquet, row 1"


def test_a_json_file_is_a_list_of_rows(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('\ufeff[{"question": "a?"},\n {"question": "b?"}]', "utf-8")
    assert [(row.where, row.value["question"]) for row in rows_of(file)] == [
        ("a.json, row 1", "a?"),
        ("a.json, row 2", "b?"),
    ]
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
    for name, content, message in (
        ("a.xlsx", b"x", r"\.xlsx is not a known format; known: \.jsonl"),
        ("a.parquet", b'{"question": "?"}', r"a\.parquet: it cannot be read as Parquet"),
        *(
            ("a.csv", head, r"a\.csv: the first line must name the columns")
            for head in (b"", b"\n1", b"a,a\n1,2", b"\xff,a\n", b",\n")
        ),
        (
            "a.csv",
            b"question,answer\na,1\n" + b"x" * 200_000 + b",1\n",
            r"a\.csv, line 3: field larger .* as JSON lines",
        ),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            list(rows_of(tmp_path / name))
