"""Columns of published rows: which of them make a task, which are named as not used, and how a user maps them."""

import copy
import logging

import pytest

from midthought import load_tasks
from midthought.errors import DataError
from midthought.types import Task

SYSTEM, USER = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Q"}
SQUAD = {"id": "5", "title": "T", "context": "C", "question": "Q", "answers": {"text": ["A", "B"], "answer_start": [0]}}
VERL = {
    "data_source": "x/y", "prompt": [USER], "ability": "math", "reward_model": {"style": "rule", "ground_truth": "A"},
    "extra_info": {"index": 0},
}  # fmt: skip
FORMS = {
    "alpaca": ({"instruction": "Q", "input": "I", "output": "A", "text": "x"}, "Q\n\nI", "A", "text"),
    "alpaca without input": ({"instruction": "Q", "input": "", "output": "A"}, "Q", "A", ""),
    "alpaca with null": ({"instruction": "Q", "input": None, "output": "A"}, "Q", "A", ""),
    "dolly": ({"instruction": "Q", "context": "C", "answer": "A", "category": "x"}, "C\n\nQ", "A", "category"),
    "squad": (SQUAD, "C\n\nQ", "A", "title"),
    "other case": ({"Question": "Q", "Context": "C", "Answer": "A"}, "C\n\nQ", "A", ""),
    "a context that is no text": ({"question": "Q", "context": {"a": []}, "answer": "A"}, "Q", "A", "context"),
    "an input beside a question": ({"question": "Q", "input": "I", "answer": "A"}, "Q", "A", "input"),
    "verl": (VERL, "Q", "A", "ability, extra_info"),
    "messages": ({"messages": [USER], "answer": "A", "tools": []}, "Q", "A", "tools"),
    "gsm8k": ({"question": "Q", "answer": "So.\n#### 7", "level": 3}, "Q", "7", "level"),
    "labels that are none": ({"question": "Q", "answer": "A", "labels": 1}, "Q", "A", "labels"),
}


def unused(caplog):
    (said,) = [record.args[0] for record in caplog.records] or [""]
    return said


@pytest.mark.parametrize("name", FORMS)
def test_every_column_of_a_published_form_is_used_or_named_once(name, caplog):
    row, prompt, answer, left_out = FORMS[name]
    with caplog.at_level(logging.WARNING):
        tasks = load_tasks([{key: value for key, value in row.items() if key != "id"}] * 3)
    assert tasks[0].answer == answer
    assert tasks[0].prompt.startswith(prompt) if prompt.endswith("\n") else tasks[0].prompt == prompt
    assert unused(caplog) == left_out


@pytest.mark.parametrize(
    "row",
    [{"system": "Be kind.", "messages": [USER]}, {"system": "Be kind.", "prompt": "Q"}, {"prompt": [SYSTEM, USER]}],
)
def test_a_system_column_is_the_first_message(row, caplog):
    (task,) = load_tasks([row | {"answer": "A"}])
    assert task.messages("Ours.") == [{**SYSTEM, "content": "Ours.\n\nBe kind."}, USER] and unused(caplog) == ""
    (again,) = load_tasks([{"system": "Be kind.", "prompt": [SYSTEM, USER], "answer": "A"}])
    assert again.before == (SYSTEM,) and load_tasks([row | {"system": " ", "answer": "A"}])
    with pytest.raises(DataError, match=r"row 1: the column system is 'Be rude.', and the messages begin with another"):
        load_tasks([{"system": "Be rude.", "prompt": [SYSTEM, USER], "answer": "A"}])


def test_a_column_that_becomes_a_label_counts_as_used_and_later_rows_count_too(caplog):
    row = {"question": "Q", "answer": "A", "meta": {"kind": "x"}, "source": "s", "a.b": "c", "id": 7}
    (task, _) = load_tasks([row, row | {"late": 1, "id": 8}], label_keys=["meta.kind", "source", "a.b"])
    assert task.labels == {"meta.kind": "x", "source": "s", "a.b": "c"} and unused(caplog) == "late"
    assert copy.deepcopy(task) == task and Task.from_dict(task.to_dict()) == task and task.task_id == "7"
    with pytest.raises(KeyError, match=r"no label 'late'.*load_tasks\(…, label_keys=\['late'\]\)"):
        copy.deepcopy(task).labels["late"]


MAPPED = [
    ({"problem_text": "Q", "gold_text": "A"}, {"problem_text": "question", "gold_text": "answer"}, "Q", ""),
    ({"passage": "C", "question": "Q", "answer": "A"}, {"passage": "context"}, "C\n\nQ", ""),
    ({"prompt": "x", "text": "Q", "answer": "A"}, {"text": "question"}, "Q", "prompt"),
    ({"Answer": "x", "question": "Q", "truth": "A"}, {"truth": "answer"}, "Q", "Answer"),
    ({"x": {"truth": "A"}, "question": "Q"}, {"x.truth": "answer"}, "Q", ""),
    ({"task": "Q", "data": "I", "output": "A"}, {"task": "instruction", "data": "input"}, "Q\n\nI", ""),
    ({"answer": "Q", "question": "A"}, {"answer": "question", "question": "answer"}, "Q", ""),
]


def test_a_user_maps_columns_to_ours_and_unknown_names_are_refused_with_near_ones(caplog):
    for row, columns, prompt, left_out in MAPPED:
        caplog.clear()
        (task,) = load_tasks([row], columns=columns)
        assert (task.prompt, task.answer, unused(caplog)) == (prompt, "A", left_out)
    for columns, message in (
        ({"problem_txt": "question"}, "row 1: it has no 'problem_txt'. Did you mean 'problem_text'"),
        ({"problem_text": "qestion"}, "'qestion' is no name that is read. Did you mean 'question'"),
        ({"problem_text": "question", "answer": "question"}, "only one column can be 'question'"),
    ):
        with pytest.raises(DataError) as raised:
            load_tasks([{"problem_text": "Q", "answer": "A"}], columns=columns)
        assert message in str(raised.value)


@pytest.mark.parametrize(
    "options", [["ice", "fire"], {"text": ["ice", "fire"], "label": ["A", "B"]}], ids=["MMLU", "ARC"]
)
def test_a_question_that_does_not_show_its_options_is_refused(options):
    row = {"question": "Which is hot?", "choices": options, "answer": "B"}
    with pytest.raises(
        DataError, match=r"row 1: .* does not show the options in 'choices': .*load_problems\('mmlu', rows\)"
    ):
        load_tasks([row])
    (task,) = load_tasks([row | {"question": "Which is hot? (A) ice (B) fire"}])
    assert task.answer == "B" and load_tasks([row], label_keys=["choices"])
