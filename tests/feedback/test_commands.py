"""The commands of `midthought feedback`: what they write and what they say."""

import json

import pytest
from typer.testing import CliRunner

from midthought.cli import app
from midthought.data.problem_sets import load_problems
from midthought.data.tasks import load_tasks
from midthought.env.answers import task_is_right
from midthought.errors import DataError
from midthought.feedback.commands import write_problems, write_verl_rows
from midthought.feedback.settings import SYSTEM_PROMPT

pytest.importorskip("pyarrow")


def test_converting_says_what_was_bad_then_the_counts(tmp_path):
    row = {
        "unique_id": "a",
        "original_question": "?",
        "iteration": 0,
        "is_correct": True,
        "full_response": ["5"],
        "feedback": "",
    }
    (tmp_path / "log.jsonl").write_text(f"{json.dumps(row)}\n{{}}\n", "utf-8")
    out = tmp_path / "new" / "sft.parquet"
    told = CliRunner().invoke(app, ["feedback", "convert", str(tmp_path / "log.jsonl"), str(out)])
    assert told.stdout.splitlines() == [
        "log.jsonl, line 2: iteration is None; input should be a valid integer; skipped",
        "1 conversations = 1 right at once + 0 one feedback + 0 two feedbacks",
        "1 bad rows skipped",
        f"written to {out}",
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_problems_are_written_as_tasks_or_as_verls_rows(tmp_path, suffix):
    told: list[str] = []
    out = tmp_path / "new" / f"made{suffix}"
    write_problems("multiplication", out, limit=3, seed=1, tell=told.append)
    assert told == [f"3 problems of multiplication written to {out}"]
    tasks, read = load_problems("multiplication", limit=3, seed=1), load_tasks(out)
    assert [(task.prompt, task.answer) for task in read] == [(task.prompt, task.answer) for task in tasks]
    assert all(task_is_right(task, f"So \\boxed{{{task.answer}}}.") for task in read)
    if suffix == ".parquet":
        assert read[0].before == ({"role": "system", "content": SYSTEM_PROMPT},)
        with pytest.raises(DataError, match="nothing to write"):
            write_verl_rows([], tmp_path / "none.parquet")


def test_rows_that_are_left_out_are_told(tmp_path):
    rows = [{"question": "?", "answer": "#### 5"}, {"question": "?", "answer": "#### many"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    told: list[str] = []
    write_problems("gsm8k", tmp_path / "out.jsonl", source=str(tmp_path / "rows.jsonl"), tell=told.append)
    assert told[0].startswith("rows.jsonl, line 2: ") and told[0].endswith("; skipped")
    with pytest.raises(DataError, match="line 2"):
        write_problems(
            "gsm8k", tmp_path / "out.jsonl", source=str(tmp_path / "rows.jsonl"), strict=True, tell=told.append
        )


def test_another_suffix_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(DataError, match=r"use \.parquet .* or \.jsonl"):
        write_problems("math", tmp_path / "out.csv", tell=print)
