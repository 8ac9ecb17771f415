"""An episode read as rounds, and the metrics that are made of them."""

import dataclasses
import math
import random

import pytest

from midthought.recipes.feedback import reward
from midthought.recipes.feedback.reward import Outcome, Round, rounds_of
from midthought.recipes.feedback.tasks import feedback_metrics, make_problems
from midthought.tools.call_formats.json_calls import HermesFormat
from midthought.types import Task

(TASK,) = make_problems(1, hard_share=0.0, draw=random.Random(0), name="one")
WRONG = str(int(TASK.answer) + 1)


def call(answer: str) -> str:
    return HermesFormat().render_call("get_feedback", {"current_answer": answer})


def played(play, *turns):
    (episode,) = play(lambda task, turn, feedback: turns[turn], [TASK])
    return rounds_of(episode)


def test_the_answer_is_what_the_turn_says_and_not_what_its_call_holds(play):
    first, last = played(play, f"{WRONG}\n{call(TASK.answer)}", TASK.answer)
    assert (first.answer, first.is_right, first.told_right, first.num_asks) == (WRONG, False, True, 1)
    assert (last.answer, last.is_right, last.num_asks) == (TASK.answer, True, 0)
    first, _ = played(play, call(TASK.answer), TASK.answer)  # a turn that only calls answers what it asks about
    assert (first.answer, first.is_right) == (TASK.answer, True)


def test_results_go_to_the_calls_that_they_answer_and_one_that_cannot_be_read_is_an_ask_that_tells_nothing(play):
    first, second = played(play, f"{WRONG}\n{call(WRONG)}\n{call('no call')[:-3]}", WRONG)
    assert (first.told_wrong, first.num_asks, second.told_wrong) == ({WRONG}, 1, frozenset())
    first, _ = played(play, f"{WRONG}\n<tool_call>\nhello\n</tool_call>", TASK.answer)
    assert (first.answer, first.num_asks, first.told_wrong, first.told_right) == (WRONG, 1, frozenset(), False)


@pytest.mark.parametrize("again", [WRONG, f"I still say {WRONG}.", f"\\boxed{{{WRONG}}}"])
def test_the_same_answer_in_other_words_ignores_the_feedback(play, again):
    outcome = Outcome.of(played(play, f"{WRONG}\n{call(WRONG)}", again))
    assert (outcome.num_used, outcome.num_ignored) == (0, 1)


def test_going_back_to_an_answer_that_was_told_to_be_wrong_ignores_it(play):
    other = str(int(WRONG) + 1)
    turns = (f"{WRONG}\n{call(WRONG)}", f"{other}\n{call(other)}", WRONG)
    outcome = Outcome.of(played(play, *turns))
    assert (outcome.num_asks, outcome.num_used, outcome.num_ignored) == (2, 1, 1)
    assert Outcome.of([]) == Outcome(False, False, 0, 0, 0)


def test_an_answer_is_judged_once_whoever_asks(play, monkeypatch):
    asked = []

    def is_right(task: Task, answer: str) -> bool:
        asked.append(answer)
        return answer == task.answer

    monkeypatch.setattr(reward, "task_is_right", is_right)
    other = dataclasses.replace(TASK, answer="7")
    (episode,) = play(lambda task, turn, feedback: ("6 again", "7 then")[turn], [other])
    rounds_of(episode)
    assert rounds_of(episode) == rounds_of(episode) and asked == ["6 again"]
    episode.task = TASK
    rounds_of(episode)
    assert asked == ["6 again", "6 again"]


# -- metrics ----------------------------------------------------------------------------------------------------------


def answered(is_right: bool, asks: int = 0, *, told_right: bool = False, told_wrong: bool = False) -> Round:
    return Round("a", "a", is_right, asks, told_right, frozenset({"a"}) if told_wrong else frozenset())


WRONG_TOLD, RIGHT_TOLD = answered(False, 1, told_wrong=True), answered(True, 1, told_right=True)
EPISODES = [
    [answered(True)],
    [answered(False)],
    [WRONG_TOLD, answered(True)],
    [WRONG_TOLD, WRONG_TOLD, answered(False)],
    [RIGHT_TOLD, answered(True)],
    [RIGHT_TOLD, RIGHT_TOLD, answered(True)],
    [answered(True, 1), answered(False)],
    [],
]


def test_the_figures_by_hand():
    metrics = feedback_metrics(EPISODES, 3)
    eighths = {"exact_match": 4, "first_try": 4, "feedback_used": 5, "calls_after_right": 1, "wrong_to_right": 1}
    eighths |= {"right_to_wrong": 1, "still_wrong": 1, "wrong_unasked": 2, "calls_per_question": 7}
    eighths |= {f"accuracy_at.{turn}": 4 for turn in (1, 2, 3)}
    expected = {name: number / 8 for name, number in eighths.items()}
    expected |= {"call_rate_needed": 2 / 4, "call_rate_needless": 3 / 4, "goes_on_after_right": 1 / 2}
    assert {key: metrics[key] for key in expected} == pytest.approx(expected)
    assert metrics["exact_match.low"] < 0.5 < metrics["exact_match.high"]
    without = feedback_metrics([[answered(True)]], 3)
    assert math.isnan(without["call_rate_needed"]) and math.isnan(without["goes_on_after_right"])
