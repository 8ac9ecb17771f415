"""Sums and products whose difficulty is known beforehand."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.env.answers import task_is_right
from midthought.recipes.feedback.tasks import OPEN_PLACES, Columns, draw_problem, make_problems
from midthought.types import Task


def task(prompt: str) -> Task:
    return Task(task_id="t", prompt=prompt, answer="")


def test_a_carry_that_comes_through_a_column_of_nine_cannot_be_seen():
    columns = Columns.of(task("Calculate 1402 + 2550."))  # 1+2, 4+5, 0+5, 2+0
    assert columns.values == (3, 9, 5, 2)
    assert columns.guessed == [0]
    assert columns.answer([False]) == "3952"
    assert columns.answer([True]) == "4952"


def test_a_carry_through_a_nine_changes_the_place_before_it():
    columns = Columns.of(task("Calculate 1360 * 3."))  # 3, 9, 18, 0
    assert columns.values == (3, 9, 18, 0)
    assert columns.answer([True]) == "4080"
    assert columns.answer([False]) == "3080"


@given(st.integers(0, 10**6), st.booleans())
def test_the_carries_give_the_right_answer_and_only_hard_problems_hide_some(seed, is_hard):
    problem = draw_problem(random.Random(seed), is_hard=is_hard, task_id="t")
    columns = Columns.of(problem)
    assert len(columns.guessed) == (len(OPEN_PLACES) if is_hard else 0)
    carries = itertools.product((False, True), repeat=len(columns.guessed))
    assert [columns.answer(each) for each in carries].count(problem.answer) == 1
    assert task_is_right(problem, problem.answer)


def test_problems_differ_from_each_other_and_from_those_that_are_taken():
    first = make_problems(300, hard_share=0.5, draw=random.Random(1), name="a")
    taken = {each.prompt for each in first}
    second = make_problems(300, hard_share=0.5, draw=random.Random(1), name="b", taken=taken)
    assert len(taken) == 300
    assert taken.isdisjoint(each.prompt for each in second)


@pytest.mark.parametrize("hard_share", [0.0, 0.25, 1.0])
def test_as_many_problems_are_hard_as_was_asked_for(hard_share):
    made = make_problems(80, hard_share=hard_share, draw=random.Random(2), name="a")
    assert sum(each.labels["difficulty"] == "hard" for each in made) == 80 * hard_share
