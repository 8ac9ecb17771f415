"""Rows as published data sets have them, given as a list: what the trainer asks and takes for the truth."""

import decimal

import pytest

from midthought import load_tasks
from midthought.env.answers import task_is_right
from midthought.errors import DataError

MMLU = {"question": "Which?", "subject": "law", "choices": ["red", "green", "blue"], "answer": 1}
LISTED = "Which?\n\n(A) red\n(B) green\n(C) blue\n\n"


def task_of(row):
    (task,) = load_tasks([row])
    return task


@pytest.mark.parametrize(
    "row",
    [
        MMLU,
        MMLU | {"answer": "1"},
        MMLU | {"answer": "B"},
        MMLU | {"answer": "green"},
        {"question": "Which?", "options": ["red", "green", "blue"], "answer": "(b)", "answer_index": 1},
        {
            "question": "Which?",
            "choices": {"text": ["red", "green", "blue"], "label": ["1", "2", "3"]},
            "answerKey": "2",
        },
        {"question": "Which?", "choices": {"text": ["red", "green", "blue"], "label": list("ABC")}, "answerKey": "B"},
    ],
)
def test_a_multiple_choice_row_asks_with_its_options_and_is_judged_by_the_letter(row):
    task = task_of(row)
    assert task.prompt.startswith(LISTED) and (task.answer, task.aliases) == ("B", ())
    assert task_is_right(task, "So the answer is (B).") and not task_is_right(task, "The answer is (A).")


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        (MMLU | {"question": "red, green or blue?", "answer": "green"}, "red, green or blue?", "green"),
        (MMLU | {"answer": "yellow"}, "Which?", "yellow"),
        (MMLU | {"choices": ["red"], "answer": "red"}, "Which?", "red"),
        (MMLU | {"choices": "red or green", "answer": "red"}, "Which?", "red"),
    ],
)
def test_other_rows_keep_their_question_and_their_truth(row, prompt, answer):
    assert (task_of(row).prompt, task_of(row).answer) == (prompt, answer)


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


def test_squads_answers_are_one_truth_and_its_aliases():
    task = task_of({"context": "c", "question": "Who?", "answers": {"text": ["Ada", "Ada L."], "answer_start": [0, 0]}})
    assert (task.answer, task.aliases) == ("Ada", ("Ada L.",))


@pytest.mark.parametrize(
    "column",
    ["gold", "reference", "correct_answer", "Answer", "answerkey", "Correct Answer", "gold_answer", "expected"],
)
def test_further_names_of_the_truth(column):
    assert task_of({"question": "How much?", column: decimal.Decimal("1.50")}).answer == "1.50"


def test_several_right_answers_are_one_truth_and_its_aliases():
    task = task_of({"question": "Who?", "golden_answers": ["Ada", "Ada L."]})
    assert (task.answer, task.aliases) == ("Ada", ("Ada L.",))


def test_rows_by_number_and_lazy_tables_are_data_sets():
    rows = [{"question": "1?", "answer": "1"}, {"question": "2?", "answer": "2"}]

    class ByNumber:  # a torch.utils.data.Dataset has no iterator
        def __len__(self):
            return 2

        def __getitem__(self, number):
            return rows[number]

        __iter__ = None

    class Lazy:  # polars.LazyFrame
        columns = ("question", "answer")

        def collect(self):
            return rows

    for source in (ByNumber(), Lazy()):
        assert [task.answer for task in load_tasks(source)] == ["1", "2"]


@pytest.mark.parametrize("row", [{"question": "a\ud800", "answer": "1"}, {"question": "a", "answer": "\ud800"}])
def test_a_text_that_is_not_unicode_names_its_row(row):
    with pytest.raises(DataError, match=r"row 1: .* is not Unicode text: a lone surrogate at character"):
        load_tasks([row])


@pytest.mark.parametrize(
    ("source", "remedy"),
    [({"question": ["a"], "answer": ["b"]}, "from_dict"), ({"question": "a", "answer": "b"}, "into a list")],
)
def test_a_mapping_of_columns_or_a_single_row_names_its_remedy(source, remedy):
    with pytest.raises(DataError, match=remedy):
        load_tasks(source)
