"""SDPO in the training loop: feedback of a reward function, successful siblings, resuming, and unusable settings."""

import pytest
import torch
from small_environments import PAID, QUESTIONS, assert_answers_resume_exactly, settings, weights

from midthought import RayPPOTrainer, SettingsError
from midthought.env.rewards import combine_rewards, weighted
from midthought.errors import RecordError
from midthought.report.trajectory_row import trajectory_row
from midthought.rollout.trajectory_json import trajectory_from_json, trajectory_to_json
from midthought.types import Reward, Trajectory

SDPO = {"algorithm": "sdpo", "batch_size": 16, "mini_batch_size": 16, "group_size": 4}


def said(trajectory: Trajectory) -> Reward:
    """1 for red, with a word about the colour."""
    colour = trajectory.actions[0].removeprefix("</think>")
    return Reward(parts={"said": PAID.get(colour, 0.0)}, feedback=f"You said {colour}. Say red.")


def trainer_of(talker, reward_fn=said, estimator="zero", **changes):
    config = settings(estimator, **{**SDPO, "num_train_iters": 1, **changes})
    return RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=reward_fn, progress=False, **talker)


def test_every_episode_with_feedback_is_trained_on_and_the_record_keeps_the_feedback(talker):
    with trainer_of(talker) as trainer:
        before, data = weights(trainer), trainer.rollout()
        metrics = trainer.train_step()
        assert not torch.equal(weights(trainer), before)
        first = data.trajectories[0]
        assert first.reward.feedback.startswith("You said")
        assert trajectory_from_json(trajectory_to_json(first)).reward == first.reward
        row = trajectory_row(first, trainer.renderer.decode, step=1, arm="train")
        assert row["reward"]["feedback"] == first.reward.feedback
    num_red = sum("red" in each.actions[0] for each in data)
    assert 0 < num_red < 16
    assert metrics["batch/num_with_feedback"] == metrics["batch/num_episodes"] == 16
    assert metrics["batch/num_untaught"] == 0 and 0 < metrics["batch/num_with_sibling"] < 16
    assert metrics["kl_teacher"] != 0 and metrics["ratio_mean"] == pytest.approx(1, abs=1e-3)


def test_siblings_alone_are_enough_and_episodes_without_one_are_left_out(talker):
    with trainer_of(talker, lambda trajectory: said(trajectory).total, self_teacher="sibling") as trainer:
        groups = {}
        for each in trainer.rollout():
            groups.setdefault(each.group, []).append(each.reward.total >= 0.5)
        metrics = trainer.train_step()
    num_taught = sum(
        any(one for place, one in enumerate(group) if place != own)
        for group in groups.values()
        for own in range(len(group))
    )
    assert metrics["batch/num_with_sibling"] == metrics["batch/num_episodes"] == num_taught > 0
    assert metrics["batch/num_untaught"] == 16 - num_taught > 0
    assert metrics["batch/num_with_feedback"] == 0


def test_the_authors_divergence_over_the_top_tokens_is_a_preset(talker):
    with trainer_of(talker, algorithm="sdpo_topk") as trainer:
        (metrics,) = trainer.fit()
    assert metrics["distillation_loss"] > 0 and metrics["policy_loss"] == 0 and metrics["grad_norm"] > 0


def test_without_feedback_and_success_no_weight_changes(talker):
    with trainer_of(talker, lambda trajectory: 0.25) as trainer:
        before = weights(trainer)
        metrics = trainer.fit()[0]
        assert torch.equal(weights(trainer), before)
    assert (metrics["batch/num_episodes"], metrics["batch/num_untaught"]) == (0, 16)


def test_the_term_may_be_added_to_the_advantages_of_rewards(talker):
    with trainer_of(talker, adv_estimator="grpo", teacher_coef=0.1) as trainer:
        (metrics,) = trainer.fit()
    assert metrics["batch/num_episodes"] == 16 and metrics["grad_norm"] > 0


def test_a_resumed_run_with_a_moving_average_continues_exactly(talker, tmp_path):
    assert_answers_resume_exactly(talker, said, tmp_path, 3, **SDPO, self_teacher_update_rate=0.3)


def test_combined_rewards_keep_the_feedback_of_all_functions(talker):
    def short(trajectory):
        return Reward(parts={"short": 1.0}, feedback="Short.")

    with trainer_of(
        talker, combine_rewards([said, weighted(short, 0.5), weighted(said, 0.0, name="again")])
    ) as trainer:
        trajectory = trainer.rollout().trajectories[0]
    one = said(trajectory).feedback
    assert trajectory.reward.feedback == f"{one}\nShort.\n{one}"
    with pytest.raises(RecordError, match=r"Reward\(feedback=3\): feedback is a text"):
        Reward(feedback=3)


def test_unusable_settings_are_errors():
    for changes, message in (
        ({"teacher": "folder"}, "there is one teacher"),
        ({"adv_estimator": "keep_best"}, "which selects episodes"),
        ({"self_teacher": "sibling", "group_size": 1}, "an episode has no siblings"),
    ):
        with pytest.raises(SettingsError, match=message):
            settings("zero", **{**SDPO, **changes})
    assert settings("zero", algorithm="sdpo", batch_size=16).training.episodes_per_task == 8
