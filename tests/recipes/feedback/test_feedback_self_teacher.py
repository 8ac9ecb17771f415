"""SDPO in the recipe: the feedback that the teacher reads, and a whole run that is stopped and resumed."""

import asyncio
import signal

import pytest
from small_runs import FEEDBACK, finish, metrics, start, stop_at, trajectories, weights, whole

from midthought.feedback.critics.settings import FeedbackSettings
from midthought.feedback.prompts import RETRY_ONLY
from midthought.feedback.tool import FeedbackTool
from midthought.recipes.feedback.reward import FeedbackEnvironment, FeedbackRewardConfig
from midthought.types import Task

TASK = Task(task_id="sum", prompt="Calculate 27 + 15.", answer="42", labels={"dataset": "multiplication"})


@pytest.mark.parametrize(
    ("answer", "expected"), [("52", "The digit at the tens place is wrong"), ("", RETRY_ONLY), ("42", None)]
)
def test_the_feedback_is_what_the_tool_says_about_a_wrong_last_answer(play, reader, answer, expected):
    (trajectory,) = play(lambda task, turn, feedback: answer, [TASK])
    assert trajectory.reward.feedback == "", "without a self-teacher nothing is asked"
    tool = FeedbackTool.from_settings(FeedbackSettings(critic="hints"))
    reward = asyncio.run(FeedbackEnvironment(reader, FeedbackRewardConfig(), tool).score(trajectory))
    assert reward.parts == trajectory.reward.parts
    assert expected in reward.feedback if expected else reward.feedback == ""


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_equals_an_uninterrupted_one(tmp_path):
    words = ["training.algorithm=sdpo", "training.self_teacher_update_rate=0.05"]
    uninterrupted = whole("feedback", tmp_path / "whole", *words)
    rows = metrics(uninterrupted, "ppo")
    assert len(rows) == 4 and all(0 < row["batch/num_with_feedback"] <= row["batch/num_episodes"] <= 8 for row in rows)
    assert all(row["kl_teacher"] != 0 and row["grad_norm"] > 0 for row in rows)
    run = tmp_path / "run"
    assert stop_at(start("feedback", run, *FEEDBACK, *words), run, 26, signal.SIGKILL) == -signal.SIGKILL
    finish(start("feedback", run, "--resume"))
    assert metrics(run) == metrics(uninterrupted) and trajectories(run) == trajectories(uninterrupted)
    one, other = weights(run), weights(uninterrupted)
    assert all(tensor.equal(other[name]) for name, tensor in one.items())
