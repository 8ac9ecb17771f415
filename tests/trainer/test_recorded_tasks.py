"""Training on recorded episodes: from a list, a file or a run folder, with checkpoints and validation as usual."""

import copy
import math

import pytest
from small_environments import PAID, QUESTIONS, assert_resumes_exactly, settings

from midthought import RayPPOTrainer, Reward, Task, Trajectory, load_trajectories, save_trajectories
from midthought.errors import DataError, SettingsError
from midthought.rollout.trajectory_json import trajectory_to_json

BEST = {
    "algorithm": "rft",
    "group_size": 2,
    "batch_size": 6,
    "mini_batch_size": 6,
    "learning_rate": 1e-3,
    "num_epochs": 6,
}


def said(trajectory):
    return PAID.get(trajectory.actions[0].removeprefix("</think>"), 0.0)


@pytest.fixture(scope="module")
def recorded(_talker, tokenizer, tmp_path_factory):
    """The run folder of two iterations with its records."""
    path = tmp_path_factory.mktemp("runs") / "recorded"
    config = settings("grpo", num_train_iters=2, batch_size=24, mini_batch_size=24, group_size=8)
    config.checkpoint.keep_episodes = True
    with RayPPOTrainer(
        config, dataset=QUESTIONS, reward_fn=said, model=copy.deepcopy(_talker), tokenizer=tokenizer, run_path=path
    ) as trainer:
        trainer.fit()
    return path


def test_a_run_folder_has_the_complete_records_and_a_file_of_them_is_the_same(recorded, tmp_path):
    episodes = load_trajectories(recorded)
    assert len(episodes) == 48 and all(trajectory.reward is not None for trajectory in episodes)
    save_trajectories(tmp_path / "episodes.jsonl", episodes)
    again = load_trajectories(tmp_path / "episodes.jsonl")
    assert [*map(trajectory_to_json, again)] == [*map(trajectory_to_json, episodes)]


def test_supervised_steps_on_the_best_recorded_episodes(recorded, talker):
    config = settings("keep_best", algorithm="rft", group_size=8, batch_size=24, mini_batch_size=24, num_epochs=5)
    with RayPPOTrainer(
        config, dataset=load_trajectories(recorded), reward_fn=said, validation=QUESTIONS, **talker
    ) as trainer:
        assert trainer.num_iters() == 5
        assert math.isfinite(trainer.evaluate()["reward/mean"])
        losses = [row["policy_loss"] for row in trainer.fit()]
    assert losses[-1] < losses[0]


def test_a_resumed_run_on_recorded_episodes_continues_exactly(recorded, talker, tmp_path):
    episodes = load_trajectories(recorded)

    def make_trainer(num_iters, **options):
        config = settings("keep_best", **{**BEST, "batch_size": 4, "num_train_iters": num_iters})
        model = copy.deepcopy(talker["model"])
        return RayPPOTrainer(
            config,
            dataset=episodes,
            reward_fn=said,
            model=model,
            tokenizer=talker["tokenizer"],
            checkpoint={"save_interval": 1},
            **options,
        )

    assert_resumes_exactly(make_trainer, tmp_path, 4)


def test_demonstrations_with_rewards_are_trained_on_without_log_probabilities(talker, renderer):
    episodes = []
    for colour, reward in (("red", 1.0), ("green", 0.0)):
        trajectory = Trajectory(
            Task(task_id="t", prompt="Say a colour.", answer=""), renderer.prompt([{"role": "user", "content": "?"}])
        )
        trajectory.add_demonstrated(renderer.control(f"</think>{colour}<|im_end|>"))
        trajectory.reward = Reward(parts={"preferred": reward})
        episodes.append(trajectory)
    config = settings("keep_best", **{**BEST, "batch_size": 2, "num_epochs": 5})
    with RayPPOTrainer(config, dataset=episodes, **talker) as trainer:
        history = trainer.fit()
    assert [row["batch/num_episodes"] for row in history] == [1] * 5
    assert history[-1]["policy_loss"] < history[0]["policy_loss"]


def test_unusable_records_are_errors(recorded, talker, tmp_path):
    episodes = load_trajectories(recorded)
    unjudged = copy.deepcopy(episodes[:2])
    foreign = copy.deepcopy(episodes[:2])
    for trajectory in unjudged:
        trajectory.reward = None
    foreign[0].segments[0].token_ids[-1] = 10**6
    best = settings("keep_best", **BEST)
    with pytest.raises(SettingsError, match="none of the 2 episodes has a reward"):
        RayPPOTrainer(best, dataset=unjudged, **talker)
    with pytest.raises(SettingsError, match="has the token 1000000"):
        RayPPOTrainer(best, dataset=foreign, **talker)
    with pytest.raises(DataError, match=r"checkpoint\.keep_episodes=true"):
        load_trajectories(tmp_path)
    (tmp_path / "other.jsonl").write_text('{"prompt": "?"}\n')
    with pytest.raises(DataError, match="line 1 is not a recorded episode"):
        load_trajectories(tmp_path / "other.jsonl")
