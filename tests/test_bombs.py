"""Small inputs that name large ones, or nest without end, are refused or read in bounded memory and time."""

import json
from pathlib import Path

import pytest

from midthought.config.yaml_files import parse_assignments, read_yaml
from midthought.data.rows import rows_of
from midthought.errors import MidthoughtError, SettingsError
from midthought.feedback.settings import read_feedback_settings
from midthought.memory.chunks import read_chunks
from midthought.memory.questions import read_questions
from midthought.memory.transcripts import read_transcript
from midthought.models.pretrained import load_model, load_tokenizer
from midthought.report.json_lines import JsonLines
from midthought.rollout.trajectory_json import load_trajectories

NESTED = "[" * 20_000
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
"""60 lines that name 2 ** 60 values."""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (LAUGHS, "aliases expand to more than 100,000 values"),
        (f"a: {'[' * 200 + ']' * 200}", "nested more than 50 levels"),
        ("a: &a [*a]", "an alias contains itself"),
        ("a: &a {b: *a}", "an alias contains itself"),
        ("a: " + "x" * 300_000, "has more than 262,144 bytes"),
        (f"a: {'9' * 5000}", "a value cannot be read"),
        ("a: 2020-13-45", "a value cannot be read"),
        ("a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
    ],
    ids=["laughs", "nested", "list of itself", "mapping of itself", "long", "number", "date", "python"],
)
@pytest.mark.parametrize("read", [read_yaml, read_feedback_settings])
def test_a_settings_file_stays_small(tmp_path, read, text, problem):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=problem):
        read(path)


def test_aliases_of_ordinary_settings_are_read(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("a: &a {x: 1, y: [1, 2]}\nb: *a\nc:\n  <<: *a\n  x: 2\n")
    assert read_yaml(path) == {"a": {"x": 1, "y": [1, 2]}, "b": {"x": 1, "y": [1, 2]}, "c": {"x": 2, "y": [1, 2]}}


def test_a_nested_value_on_the_command_line_is_text():
    assert parse_assignments([f"a.b={NESTED[:400]}"]) == {"a": {"b": NESTED[:400]}}


JSON_READERS = {
    "rows.jsonl": lambda path: list(rows_of(path)),
    "rows.json": lambda path: list(rows_of(path)),
    "chunks.jsonl": read_chunks,
    "questions.jsonl": read_questions,
    "talk.json": read_transcript,
    "metrics.jsonl": lambda path: list(JsonLines(path).read()),
    "trajectories.jsonl": load_trajectories,
}


@pytest.mark.parametrize("text", [NESTED, '{"a":' * 100_000, f'{{"a": {"9" * 5000}}}', '"\\ud800"'], ids=range(4))
@pytest.mark.parametrize("name", JSON_READERS)
def test_json_that_python_cannot_hold_is_an_error_of_ours(tmp_path, name, text):
    path: Path = tmp_path / name
    path.write_text(text + "\n")
    try:
        JSON_READERS[name](path)
    except MidthoughtError as error:
        assert len(str(error)) < 1000


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_model_with_nested_json_is_refused(tmp_path, name):
    for each in ("config.json", "tokenizer.json"):
        (tmp_path / each).write_text(json.dumps({"model_type": "qwen3"}))
    (tmp_path / name).write_text(NESTED)
    for load in (load_model, load_tokenizer):
        with pytest.raises(MidthoughtError):
            load(tmp_path)


def test_a_parquet_file_that_repeats_a_long_value_is_read_in_small_batches(tmp_path):
    """The file has 20 KB and stands for 2 GB: one text of 4 MB in 512 rows."""
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "bomb.parquet"
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 512, pa.int32()), pa.array(["x" * 4_000_000]))
    parquet.write_table(pa.table({"question": texts}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 20_000
    rows = rows_of(path)
    assert len(next(rows).value["question"]) == 4_000_000
    rows.close()
    assert pa.default_memory_pool().max_memory() < 2**29
