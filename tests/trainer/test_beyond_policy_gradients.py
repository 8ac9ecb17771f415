"""Methods beyond policy gradients in the training loop: what they improve, and that a resumed run continues exactly."""

import copy

import pytest
import torch
from small_environments import PAID, QUESTIONS, settings, weights

from midthought import RayPPOTrainer
from midthought.errors import SettingsError

NO_BONUS = {"kl_coef": 0.0, "entropy_coef": 0.0}
RFT = {
    "policy_loss": "nll",
    "group_size": 4,
    "batch_size": 16,
    "mini_batch_size": 16,
    "learning_rate": 3e-3,
    **NO_BONUS,
}


def said(trajectory):
    return PAID.get(trajectory.actions[0].removeprefix("</think>"), 0.0)


def test_training_on_selected_episodes_raises_the_reward(talker):
    config = settings("keep_best", num_train_iters=8, **RFT)
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=said, **talker) as trainer:
        history = trainer.fit()
    assert history[-1]["reward/mean"] > history[0]["reward/mean"] + 0.2
    assert all(0 < row["batch/kept_fraction"] <= 1 for row in history if row["batch/num_episodes"])
    assert history[0]["batch/num_episodes"] < 16


def test_without_an_episode_to_keep_no_step_is_taken(talker):
    config = settings("keep_best", num_train_iters=2, **RFT)
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=lambda trajectory: 1.0, **talker) as trainer:
        before = weights(trainer)
        history = trainer.fit()
        assert torch.equal(weights(trainer), before)
    assert [row["batch/num_episodes"] for row in history] == [0, 0]


def test_a_resumed_run_continues_exactly(talker, tmp_path):
    def train(path, model, num_iters, *, resume=False):
        config = settings("keep_best", num_train_iters=num_iters, **RFT)
        config.checkpoint.save_interval = 1
        options = {"model": copy.deepcopy(model), "tokenizer": talker["tokenizer"]}
        with RayPPOTrainer(
            config, dataset=QUESTIONS, reward_fn=said, run_path=tmp_path / path, resume=resume, **options
        ) as trainer:
            trainer.fit()
            return weights(trainer)

    whole = train("whole", talker["model"], 4)
    train("parts", talker["model"], 2)
    assert torch.equal(train("parts", talker["model"], 4, resume=True), whole)


def test_a_kl_penalty_on_rewards_that_only_select_is_an_error():
    with pytest.raises(SettingsError, match="set kl_coef to 0"):
        settings("keep_best", **{**RFT, "kl_coef": 0.1})
