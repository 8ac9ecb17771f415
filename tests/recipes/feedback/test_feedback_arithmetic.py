"""Sums and products whose difficulty is known beforehand."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.env.answers import task_is_right
from midthought.recipes.feedback.tasks import OPEN_PLACES, Columns, draw_problem, make_problems
from midthought.types import Task


@pytest.mark.parametrize(
    ("prompt", "values", "without", "with_carry"),
    [
        (
            "Calculate 1402 + 2550.",
            (3, 9, 5, 2),
            "3952",
            "4952",
        ),  # 1+2, 4+5, 0+5, 2+0: it comes through the column of 9
        ("Calculate 1360 * 3.", (3, 9, 18, 0), "3080", "4080"),  # it changes the place before the 9
    ],
)
def test_a_carry_that_comes_through_a_column_of_nine_cannot_be_seen(prompt, values, without, with_carry):
    columns = Columns.of(Task(task_id="t", prompt=prompt, answer=without if "+" in prompt else with_carry))
    assert (columns.values, columns.guessed) == (values, [0])
    assert [columns.answer([carry]) for carry in (False, True)] == [without, with_carry]


@given(st.integers(0, 10**6), st.booleans())
def test_the_carries_give_the_right_answer_and_only_hard_problems_hide_some(seed, is_hard):
    problem = draw_problem(random.Random(seed), is_hard=is_hard, task_id="t")
    columns = Columns.of(problem)
    assert len(columns.guessed) == (len(OPEN_PLACES) if is_hard else 0)
    carries = itertools.product((False, True), repeat=len(columns.guessed))
    assert [columns.answer(each) for each in carries].count(problem.answer) == 1
    assert task_is_right(problem, problem.answer)


@pytest.mark.parametrize("hard_share", [0.0, 0.25, 1.0])
def test_as_many_problems_are_hard_as_was_asked_for_and_all_differ_also_from_those_that_are_taken(hard_share):
    first = make_problems(80, hard_share=hard_share, draw=random.Random(1), name="a")
    assert sum(each.labels["difficulty"] == "hard" for each in first) == 80 * hard_share
    taken = {each.prompt for each in first}
    second = make_problems(80, hard_share=hard_share, draw=random.Random(1), name="b", taken=taken)
    assert len(taken) == 80 and taken.isdisjoint(each.prompt for each in second)
