"""Methods beyond policy gradients in the training loop: the best episodes of a group, recorded episodes, a teacher. What each
learns from is exact, and a resumed run continues to the bit."""

import copy

import pytest
import torch
from precision import logit_tolerance
from small_environments import COLOURS, QUESTIONS, demonstration, settings, weights

from midthought import RayPPOTrainer, Reward, ToolRegistry, find_call_format, load_trajectories, save_trajectories
from midthought.errors import DataError, SettingsError
from midthought.learning.batch import TokenBatch
from midthought.learning.model import token_logprobs
from midthought.models.pretrained import load_model, save_model
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.rollout.trajectory_json import trajectory_to_json
from midthought.trainer.sources import PromptBuilder

RFT = {"policy_loss": "nll", "group_size": 4, "batch_size": 16, "mini_batch_size": 16, "learning_rate": 3e-3}
RFT |= {"kl_coef": 0.0, "entropy_coef": 0.0}
DISTILLED = {"algorithm": "distillation", "batch_size": 16, "mini_batch_size": 16, "learning_rate": 3e-3}


def by_seed(trajectory):
    """Differs between the episodes of a group, whatever they say."""
    return float(trajectory.seed % 9973)


# -- the best episodes of each group -------------------------------------------------------------------------------


def test_of_each_group_the_best_episode_is_learned_from_and_of_equal_ones_none(talker):
    config = settings("keep_best", num_train_iters=2, **RFT)
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=by_seed, **talker) as trainer:
        history = trainer.fit()
    assert [(row["batch/num_episodes"], row["batch/kept_fraction"]) for row in history] == [(4, 0.25)] * 2
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=lambda trajectory: 1.0, **talker) as trainer:
        before = weights(trainer)
        assert [row["batch/num_episodes"] for row in trainer.fit()] == [0, 0]
        assert torch.equal(weights(trainer), before)


def test_a_kl_penalty_on_rewards_that_only_select_is_an_error():
    with pytest.raises(SettingsError, match="set kl_coef to 0"):
        settings("keep_best", **{**RFT, "kl_coef": 0.1})


# -- recorded episodes ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(_talker, tokenizer, tmp_path_factory):
    """The run folder of an iteration, and its records in a file beside it."""
    path = tmp_path_factory.mktemp("runs") / "recorded"
    config = settings("grpo", num_train_iters=1, batch_size=24, mini_batch_size=24, group_size=8)
    options = {"model": copy.deepcopy(_talker), "tokenizer": tokenizer, "run_path": path}
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=by_seed, **options) as trainer:
        save_trajectories(path.with_suffix(".jsonl"), trainer.rollout())
        trainer.fit()
    return path


def test_a_file_of_records_is_read_and_written_the_same(recorded, tmp_path):
    episodes = load_trajectories(recorded.with_suffix(".jsonl"))
    assert len(episodes) == 24 and all(trajectory.reward is not None for trajectory in episodes)
    save_trajectories(tmp_path / "episodes.jsonl", episodes)
    again = load_trajectories(tmp_path / "episodes.jsonl")
    assert [*map(trajectory_to_json, again)] == [*map(trajectory_to_json, episodes)]


def test_demonstrations_with_rewards_are_trained_on_without_log_probabilities(talker, renderer):
    prompts = PromptBuilder("", ToolRegistry(), find_call_format("in_thought"))
    episodes = [demonstration(renderer, prompts, QUESTIONS[0], f"</think>{each}<|im_end|>") for each in COLOURS[::2]]
    for trajectory, reward in zip(episodes, (1.0, 0.0), strict=True):
        trajectory.reward = Reward(parts={"preferred": reward})
    config = settings("keep_best", algorithm="rft", group_size=2, batch_size=2, mini_batch_size=2, num_train_iters=1)
    with RayPPOTrainer(config, dataset=QUESTIONS, **talker) as trainer:
        batch = TokenBatch.from_trajectories(episodes[:1], demonstrations=True)
        with torch.no_grad():
            expected = -token_logprobs(trainer.model, batch)[batch.loss_mask].mean()
        metrics = trainer.train_step(episodes)
    assert metrics["batch/num_episodes"] == 1
    assert metrics["policy_loss"] == pytest.approx(float(expected), rel=1e-4)


def test_unusable_records_are_errors(tmp_path):
    with pytest.raises(DataError, match="is no file of recorded episodes; save_trajectories writes one"):
        load_trajectories(tmp_path)
    (tmp_path / "other.jsonl").write_text('{"prompt": "?"}\n')
    with pytest.raises(DataError, match="line 1 is not a recorded episode"):
        load_trajectories(tmp_path / "other.jsonl")


# -- a teacher -----------------------------------------------------------------------------------------------------


def test_a_run_is_a_teacher_and_without_rewards_it_alone_is_learned_from(recorded, talker):
    config = settings("zero", num_train_iters=1, teacher=str(recorded), **DISTILLED)
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=lambda trajectory: 0.0, **talker) as trainer:
        batch = TokenBatch.from_trajectories(list(trainer.rollout()))
        scored, _ = trainer.learner.score(batch)
        with torch.no_grad():
            expected = token_logprobs(load_model(recorded / "policy"), batch)
        tolerance = logit_tolerance(trainer.model, 256)
        torch.testing.assert_close(scored.teacher_logprobs, expected, atol=tolerance, rtol=0)
        before = weights(trainer)
        assert trainer.train_step()["kl_teacher"] != 0
        assert not torch.equal(weights(trainer), before)


@pytest.mark.slow
def test_a_resumed_run_with_a_teacher_continues_exactly(recorded, talker, tmp_path):
    def train(name, num_train_iters, **options):
        config = settings("zero", num_train_iters=num_train_iters, teacher=str(recorded / "policy"), **DISTILLED)
        given = {"model": copy.deepcopy(talker["model"]), "tokenizer": talker["tokenizer"], "reward_fn": by_seed}
        given |= {"dataset": QUESTIONS, "checkpoint": {"save_interval": 1}, "run_path": tmp_path / name}
        with RayPPOTrainer(config, progress=False, **given, **options) as trainer:
            trainer.fit()
            return weights(trainer)

    whole = train("whole", 4)
    train("parts", 2)
    assert torch.equal(train("parts", 4, resume=True), whole)


def test_with_an_estimator_of_rewards_no_group_is_dropped(recorded, talker):
    config = settings("grpo", num_train_iters=1, group_size=4, teacher=str(recorded), kl_coef=0.0)
    with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=lambda trajectory: 1.0, **talker) as trainer:
        (metrics,) = trainer.fit()
    assert metrics["batch/num_flat_groups"] == 0 and metrics["grad_norm"] > 0


def test_unusable_teachers_are_errors(recorded, talker, tmp_path):
    other = make_tokenizer(["other words entirely"] * 20, 300)
    small = make_policy(other, hidden_size=32, num_layers=1, num_heads=2, max_length=64, seed=0)
    save_model(small, other, tmp_path / "other")
    for teacher, message in (
        (tmp_path / "other", "has another tokenizer than the policy"),
        ("", "without a teacher"),
        (tmp_path, "holds no policy"),
    ):
        with pytest.raises(Exception, match=message):
            config = settings("zero", **{**DISTILLED, "teacher": str(teacher)})
            RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=by_seed, **talker)
    with pytest.raises(SettingsError, match="which selects episodes"):
        settings("keep_best", group_size=2, teacher=str(recorded))
