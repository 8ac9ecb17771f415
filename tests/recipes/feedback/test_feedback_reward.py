"""The reward keeps its order, and policies with one habit each rank as it says."""

import itertools
import random

import pytest

from midthought.errors import SettingsError
from midthought.recipes.feedback.demonstrations import mended
from midthought.recipes.feedback.reward import FeedbackRewardConfig, Outcome, broken_order, parts_of
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.recipes.feedback.tasks import Columns, make_problems
from midthought.tools.call_formats.json_calls import HermesFormat
from midthought.types import StopReason, Task


def carries_of(task: Task) -> tuple[bool, ...]:
    columns = Columns.of(task)
    every = itertools.product((False, True), repeat=len(columns.guessed))
    return next(each for each in every if columns.answer(each) == task.answer)


TASKS = [
    task
    for task in make_problems(24, hard_share=0.5, draw=random.Random(3), name="planted")
    if task.labels["difficulty"] == "easy" or carries_of(task)[0]
]


def total(outcome, **weights):
    return sum(parts_of(outcome, FeedbackRewardConfig(**weights)).values())


# -- policies with one habit each -------------------------------------------------------------------------------------


def call(answer: str) -> str:
    return "\n" + HermesFormat().render_call("get_feedback", {"current_answer": answer})


def first_answer(task: Task) -> str:
    """The right answer if there is no carry; otherwise the answer without the first carry."""
    carries = carries_of(task)
    return Columns.of(task).answer([False, *carries[1:]] if carries else [])


def is_easy(task: Task) -> bool:
    return first_answer(task) == task.answer


def mend(task: Task, feedback: str) -> str:
    columns = Columns.of(task)
    guess = mended(columns, [False, *carries_of(task)[1:]], feedback)
    assert guess is not None, feedback
    return columns.answer(guess)


def perfect(task, turn, feedback):
    return task.answer


def never_asks(task, turn, feedback):
    return first_answer(task)


def asks_only_when_wrong(task, turn, feedback):
    if turn:
        return mend(task, feedback)
    return first_answer(task) + ("" if is_easy(task) else call(first_answer(task)))


def asks_always(task, turn, feedback):
    if turn:
        return task.answer if "is correct" in feedback else mend(task, feedback)
    return first_answer(task) + call(first_answer(task))


def errs_first_on_purpose(task, turn, feedback):
    wrong = str(int(task.answer) + 1)
    return task.answer if turn else wrong + call(wrong)


def quotes_the_feedback(task, turn, feedback):
    if is_easy(task):
        return task.answer
    return f"{feedback} {first_answer(task)}" if turn else first_answer(task) + call(first_answer(task))


def answers_twice(task, turn, feedback):
    return task.answer if is_easy(task) else f"\\boxed{{{task.answer} or {first_answer(task)}}}"


def mean_reward(play, policy, **options) -> float:
    done = play(policy, TASKS, **options)
    assert all(each.reward is not None for each in done), [each.error for each in done]
    return sum(each.reward.total for each in done) / len(done)


def test_the_planted_policies_rank_as_they_should(play):
    policies = (perfect, asks_only_when_wrong, errs_first_on_purpose, asks_always, never_asks, quotes_the_feedback)
    rewards = {policy.__name__: mean_reward(play, policy) for policy in policies}
    assert list(rewards.values()) == sorted(rewards.values(), reverse=True), rewards
    assert len(set(rewards.values())) == len(rewards)
    assert rewards["perfect"] == 1.0
    assert mean_reward(play, answers_twice) == pytest.approx(rewards["never_asks"])


def test_the_original_reward_pays_for_erring_first_and_for_asking_always(play):
    weights = FeedbackRewardConfig(preset="original")
    rewards = [mean_reward(play, policy, weights=weights) for policy in (errs_first_on_purpose, asks_always, perfect)]
    assert rewards == pytest.approx([1.1, 1.1, 1.0])


def test_every_part_is_recorded_and_a_call_after_the_last_turn_costs_as_any_other(play):
    def never_stops(task, turn, feedback):
        return task.answer + call(task.answer)

    (episode,) = play(never_stops, TASKS[:1])
    assert episode.stop_reason is StopReason.MAX_TURNS
    assert episode.num_calls == 2
    assert episode.reward.parts["asks"] == pytest.approx(-0.6)
    (episode,) = play(asks_only_when_wrong, [task for task in TASKS if not is_easy(task)][:1])
    parts = {"correct": 1.0, "asks": -0.2, "mended": 0.16, "tried": 0.0, "ignored": 0.0}
    assert episode.reward.parts == pytest.approx(parts)


# -- the weights ------------------------------------------------------------------------------------------------------


def test_the_default_weights_by_hand():
    right, wrong = (True, False), (False, False)
    outcomes = ((True, True, 0, 0, 0), (*right, 1, 1, 0), (*right, 2, 2, 0), (True, True, 1, 0, 0))
    outcomes += ((*wrong, 1, 1, 0), (*wrong, 0, 0, 0), (*wrong, 1, 0, 1))
    rewards = [total(Outcome(*outcome)) for outcome in outcomes]
    assert rewards == pytest.approx([1.0, 0.96, 0.92, 0.8, -0.95, -1.0, -1.5])


@pytest.mark.parametrize(("calls", "right", "wrong"), [(0, 1.0, -1.0), (1, 1.1, -0.6), (3, 1.3, -0.55), (7, 1.3, 0.05)])
def test_the_original_numbers(calls, right, wrong):
    assert total(Outcome(True, True, calls, 0, 0), preset="original") == pytest.approx(right)
    assert total(Outcome(False, False, calls, 0, 0), preset="original") == pytest.approx(wrong)


@pytest.mark.parametrize(
    "weights",
    [
        {"mended_bonus": 0.2},  # feedback costs nothing: erring first is as good as being right
        {"mended_bonus": 0.05},  # two feedbacks that mend cost more than one that was not needed
        {"ask_cost": 0.0, "mended_bonus": 0.0},
        {"tried_bonus": 0.2},
        {"tried_bonus": 1.5},
    ],
)
def test_weights_that_break_the_order_are_refused_with_both_sides_named(weights):
    assert broken_order(FeedbackRewardConfig(**weights), max_asks=2)
    with pytest.raises(SettingsError, match="the first must earn more"):
        FeedbackRecipeConfig(reward=weights)


def test_the_original_weights_break_the_order_and_are_taken_all_the_same():
    chosen = FeedbackRecipeConfig(reward={"preset": "original"})
    assert "'right at once and unasked' earns 1" in broken_order(chosen.reward, max_asks=2)
