"""Rejection-sampling fine-tuning: which episodes are learned from, and that the step is a supervised one."""

import copy

import pytest
import torch
from training_settings import training

from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.ppo import improve
from midthought.rollout.rollout_batch import select
from midthought.types import RolloutData

RFT = training(
    adv_estimator="keep_best",
    policy_loss="nll",
    entropy_coef=0.0,
    learning_rate=1e-2,
    mini_batch_size=100,
    packing=False,
)


@pytest.fixture
def trajectories(make_trajectory):
    """Three groups of four; the first has one best episode, the second two, in the third all are equal."""
    rewards = [0.1, 0.9, 0.3, 0.2, 0.5, 0.5, 0.0, 0.4, 0.3, 0.3, 0.3, 0.1 + 0.2]
    return [make_trajectory(seed, reward=reward, group=seed // 4) for seed, reward in enumerate(rewards)]


def weights_of(policy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def step(policy, trajectories, **changes) -> tuple[torch.Tensor, dict[str, float]]:
    learner = Learner(copy.deepcopy(policy), None, None, RFT.model_copy(update=changes))
    kept = select(RolloutData(trajectories), learner.training, None).usable
    metrics = improve(learner, TokenBatch.from_trajectories(kept))
    return weights_of(learner.policy), metrics


def test_the_episodes_that_are_kept_are_counted_and_the_others_leave_the_batch(trajectories):
    batch = select(RolloutData(trajectories), RFT, None)
    assert [trajectories.index(each) for each in batch.usable] == [1, 4, 5]
    assert batch.metrics == {"batch/num_flat_groups": 1, "batch/kept_fraction": 3 / 8}


def test_the_step_is_the_supervised_step_on_the_kept_episodes(make_policy, trajectories):
    policy = make_policy()
    found, metrics = step(policy, trajectories)
    learner = Learner(copy.deepcopy(policy), None, None, RFT)
    supervised = learner.sft_step(
        TokenBatch.from_trajectories([trajectories[n] for n in (1, 4, 5)], demonstrations=True)
    )
    assert metrics["policy_loss"] == pytest.approx(supervised["loss"], rel=1e-6)
    assert torch.allclose(found, weights_of(learner.policy), atol=1e-6)
    assert not torch.equal(found, weights_of(policy))
