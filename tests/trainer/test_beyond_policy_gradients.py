"""Methods beyond policy gradients in the training loop: what they improve, and that a resumed run continues exactly."""

import copy
import statistics

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


@pytest.mark.parametrize("estimator", ["keep_best", "keep_above"])
def test_training_on_selected_episodes_raises_the_reward(estimator, talker):
    config = settings(estimator, num_train_iters=8, **RFT)
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=said, **talker) as trainer:
        history = trainer.fit()
    assert history[-1]["reward/mean"] > history[0]["reward/mean"] + 0.2
    assert all(0 < row["batch/kept_fraction"] <= 1 for row in history if row["batch/num_episodes"])
    assert history[0]["batch/num_episodes"] < 16


def test_without_an_episode_to_keep_no_step_is_taken(talker):
    config = settings("keep_above", num_train_iters=2, keep_threshold=1.5, **RFT)
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=said, **talker) as trainer:
        before = weights(trainer)
        history = trainer.fit()
        assert torch.equal(weights(trainer), before)
    assert [row["batch/num_episodes"] for row in history] == [0, 0]
    assert [row["batch/kept_fraction"] for row in history] == [0, 0]


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


# -- DPO -----------------------------------------------------------------------------------------------------------

PAIRS = {"algorithm": "online_dpo", "group_size": 4, "batch_size": 16, "mini_batch_size": 8, "learning_rate": 5e-4}


def test_online_dpo_raises_the_margin_and_the_reward(talker):
    config = settings("best_and_worst", num_train_iters=14, policy_loss_options={"beta": 0.5}, **PAIRS)
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=said, **talker) as trainer:
        history = trainer.fit()
    assert history[-1]["reward/mean"] > history[0]["reward/mean"] + 0.2
    trained = [row for row in history if row["batch/num_episodes"]]
    first, *later = (row["dpo_margin"] for row in trained)  # each of new pairs, so single ones may be negative
    assert statistics.median(later) > first
    assert trained[-1]["kl_reference"] > trained[0]["kl_reference"] == pytest.approx(0, abs=1e-6)
    assert all(row["batch/num_episodes"] % 2 == 0 for row in history)


def test_dpo_on_a_list_of_episodes_prefers_the_better_ones_and_without_a_pair_takes_no_step(talker):
    config = settings("best_and_worst", **PAIRS)
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=said, **talker) as trainer:
        episodes = list(trainer.rollout())
        margins = [trainer.train_step(episodes)["dpo_margin"] for _ in range(4)]
        assert margins[-1] > margins[0]
        before = weights(trainer)
        equal = [trajectory for trajectory in episodes if trajectory.reward.total == episodes[0].reward.total]
        metrics = trainer.train_step(equal)
        assert metrics["batch/num_episodes"] == 0 and "dpo_margin" not in metrics
        assert torch.equal(weights(trainer), before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_agg": "token-mean"}, "set loss_agg to 'seq-mean-token-sum'"),
        ({"adv_estimator": "grpo"}, "set adv_estimator to 'best_and_worst'"),
        ({"mask_truncated_episodes": True}, "would separate pairs"),
        ({"rollout_correction": "truncated"}, "set rollout_correction to 'none'"),
    ],
)
def test_settings_that_give_dpo_no_pairs_are_errors(changes, message):
    with pytest.raises(SettingsError, match=message):
        settings(**{"estimator": "best_and_worst", **PAIRS, **_renamed(changes)})


def _renamed(changes):
    return {{"adv_estimator": "estimator"}.get(name, name): value for name, value in changes.items()}
