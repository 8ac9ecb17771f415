"""Rows as published data sets have them, given as a list: what the trainer asks and takes for the truth."""

import decimal

import pytest

from midthought import load_tasks
from midthought.env.answers import task_is_right
from midthought.errors import DataError


def task_of(row):
    (task,) = load_tasks([row])
    return task


def test_further_names_of_the_truth_and_several_right_answers():
    names = ("gold", "reference", "correct_answer", "Answer", "answerkey", "Correct Answer", "gold_answer", "expected")
    for column in names:
        assert task_of({"question": "How much?", column: decimal.Decimal("1.50")}).answer == "1.50"
    squad = {"context": "c", "question": "Who?", "answers": {"text": ["Ada", "Ada L."], "answer_start": [0, 0]}}
    for row in (squad, {"question": "Who?", "golden_answers": ["Ada", "Ada L."]}):
        assert (task_of(row).answer, task_of(row).aliases) == ("Ada", ("Ada L.",))


def test_the_truth_of_a_worked_solution_is_its_last_box():
    task = task_of(
        {"problem": "1 + 1?", "solution": "Not \\boxed{3}, but $\\boxed{\\frac{4}{2}}$.", "level": "Level 1"}
    )
    assert task.answer == "\\frac{4}{2}" and task.labels == {"dataset": "math"}
    task = task_of({"problem": "500 + 750?", "solution": "So $\\boxed{1,250}$."})
    assert (task.answer, task.labels) == ("1250", {}) and task_is_right(task, "It is 1250.")


def test_words_are_compared_with_the_last_box_of_an_answer_that_has_one():
    task = task_of({"question": "Where?", "answer": "Paris"})
    assert task_is_right(task, "It is \\boxed{Paris}.") and not task_is_right(task, "Not Paris but \\boxed{Rome}.")


def test_what_is_not_unicode_or_no_list_of_rows_is_refused_with_the_remedy():
    for row in ({"question": "a\ud800", "answer": "1"}, {"question": "a", "answer": "\ud800"}):
        with pytest.raises(DataError, match=r"row 1: .* is not Unicode text: a lone surrogate at character"):
            load_tasks([row])
    for source, remedy in (
        ({"question": ["a"], "answer": ["b"]}, "from_dict"),
        ({"question": "a", "answer": "b"}, "into a list"),
    ):
        with pytest.raises(DataError, match=remedy):
            load_tasks(source)
