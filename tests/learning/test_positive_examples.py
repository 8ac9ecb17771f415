"""VAPO's loss on correct answers: its weights by hand, and its gradient as that of a supervised step."""

import copy

import pytest
import torch
from training_settings import training

from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.loss import weigh_positives
from midthought.learning.ppo import improve

SETTINGS = training(adv_estimator="grpo", mini_batch_size=100, max_grad_norm=float("inf"), positive_nll_coef=0.1)


@pytest.fixture
def trajectories(make_trajectory):
    rewards = [0.2, 1.0, 0.0, 1.5]
    return [make_trajectory(seed, reward=reward, group=seed // 2) for seed, reward in enumerate(rewards)]


def gradient_of(policy, trajectories, **changes) -> torch.Tensor:
    learner = Learner(copy.deepcopy(policy), None, None, SETTINGS.model_copy(update=changes))
    improve(learner, TokenBatch.from_trajectories(trajectories))
    return torch.cat([parameter.grad.flatten() for parameter in learner.policy.parameters()])


def test_the_policy_tokens_of_good_episodes_have_equal_weights_that_add_up_to_1(trajectories):
    batch = TokenBatch.from_trajectories(trajectories)
    weights = weigh_positives(batch, SETTINGS).positive_weights
    is_good = batch.loss_mask & torch.isin(batch.token_episodes, torch.tensor([1, 3]))
    assert weights.tolist() == pytest.approx((is_good / int(is_good.sum())).tolist())
    weights = weigh_positives(batch, SETTINGS.model_copy(update={"keep_threshold": 2.0})).positive_weights
    assert not weights.any()
    assert weigh_positives(batch, SETTINGS.model_copy(update={"positive_nll_coef": 0.0})) is batch


def test_it_adds_a_tenth_of_the_gradient_of_a_supervised_step_on_the_good_episodes(make_policy, trajectories):
    policy = make_policy().double()
    added = gradient_of(policy, trajectories) - gradient_of(policy, trajectories, positive_nll_coef=0.0)
    learner = Learner(copy.deepcopy(policy), None, None, SETTINGS)
    learner.sft_step(TokenBatch.from_trajectories([trajectories[1], trajectories[3]], demonstrations=True))
    supervised = torch.cat([parameter.grad.flatten() for parameter in learner.policy.parameters()])
    torch.testing.assert_close(added, 0.1 * supervised, atol=1e-6, rtol=1e-5)


def test_its_value_is_a_metric(make_policy, trajectories):
    learner = Learner(make_policy(), None, None, SETTINGS)
    good = TokenBatch.from_trajectories([trajectories[1], trajectories[3]], demonstrations=True)
    expected = learner.sft_loss(good)
    metrics = improve(learner, TokenBatch.from_trajectories(trajectories))
    assert metrics["positive_nll"] == pytest.approx(expected, rel=1e-4)
