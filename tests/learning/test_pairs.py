"""DPO in the learner: the gradient against finite differences, and what must not change it."""

import copy
from contextlib import closing

import pytest
import torch
from precision import compute_in_float64
from training_settings import training

from midthought.learning.adapters import add_adapters
from midthought.learning.batch import TokenBatch
from midthought.learning.credit import select_episodes
from midthought.learning.distributed.remote_learner import RemoteLearner
from midthought.learning.learner import Learner
from midthought.learning.lr_schedule import NO_END
from midthought.learning.model import Models, frozen_copy, token_logprobs
from midthought.learning.ppo import improve

BETA = 0.3
DPO = training(
    adv_estimator="best_and_worst",
    policy_loss="dpo",
    policy_loss_options={"beta": BETA},
    loss_agg="seq-mean-token-sum",
    entropy_coef=0.0,
    learning_rate=1e-2,
    max_grad_norm=float("inf"),
    mini_batch_size=100,
    packing=False,
)


@pytest.fixture
def trajectories(make_trajectory):
    """Three tasks of three episodes, whose lengths differ; the middle one of each task is not in the pair."""
    rewards = [0.1, 0.5, 0.9, 0.9, 0.3, 0.2, 0.0, 1.0, 0.4]
    return [make_trajectory(seed, reward=reward, group=seed // 3) for seed, reward in enumerate(rewards)]


def pairs_of(trajectories) -> TokenBatch:
    return select_episodes(TokenBatch.from_trajectories(trajectories), DPO)[0]


def dpo_loss(policy, reference, batch: TokenBatch) -> float:
    """The mean over pairs of `-log σ(β (better - worse))`, by loops."""
    losses = []
    with torch.no_grad():
        ratios = (token_logprobs(policy, batch) - token_logprobs(reference, batch)) * batch.loss_mask
    for group in batch.groups.unique():
        margin = 0.0
        for row in (batch.groups == group).nonzero()[:, 0]:
            tokens = batch.tokens_of(row[None])
            sign = float(batch.advantages[tokens][batch.loss_mask[tokens]][0])
            margin += BETA * sign * float(ratios[tokens].sum())
        losses.append(-torch.nn.functional.logsigmoid(torch.tensor(margin, dtype=torch.float64)).item())
    return sum(losses) / len(losses)


def models(make_policy):
    return make_policy(seed=1).double(), frozen_copy(make_policy(seed=2)).double()


def weights_of(policy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def gradient_of(learner) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in learner.policy.parameters()])


def step(policy, reference, trajectories, **changes):
    learner = Learner(copy.deepcopy(policy), None, reference, DPO.model_copy(update=changes))
    return learner, improve(learner, pairs_of(trajectories))


def test_the_gradient_is_that_of_the_loss_of_the_pairs(make_policy, trajectories, monkeypatch):
    compute_in_float64(monkeypatch)
    policy, reference = models(make_policy)
    batch = pairs_of(trajectories)
    learner, metrics = step(policy, reference, trajectories, micro_batch_tokens=1)
    assert metrics["dpo_loss"] == pytest.approx(dpo_loss(policy, reference, batch), abs=1e-6)
    gradients = [parameter.grad for parameter in learner.policy.parameters()]
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        direction = [torch.randn(g.shape, generator=generator, dtype=g.dtype) for g in gradients]
        expected = 0.0
        for sign in (1, -1):
            moved = copy.deepcopy(policy)
            with torch.no_grad():
                for parameter, change in zip(moved.parameters(), direction, strict=True):
                    parameter.add_(change, alpha=sign * 1e-5)
            expected += sign * dpo_loss(moved, reference, batch) / 2e-5
        found = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True))
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "changes", [{"packing": True}, {"micro_batch_tokens": 1}, {"accumulation_steps": 3}, {"offload_reference": True}]
)
def test_packing_micro_batches_and_order_do_not_change_the_step(make_policy, trajectories, changes):
    policy, reference = models(make_policy)
    plain, metrics = step(policy, reference, trajectories)
    other, others = step(policy, reference, trajectories[::-1], **changes)
    assert others["dpo_loss"] == pytest.approx(metrics["dpo_loss"], rel=1e-5)
    assert others["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-5)
    gradient, expected = gradient_of(other), gradient_of(plain)
    assert float((gradient - expected).norm() / expected.norm()) < 1e-5


def test_a_step_of_several_mini_batches_weighs_each_pair_by_the_weights_at_that_time(make_policy, trajectories):
    policy = make_policy(seed=1)
    learner, metrics = step(policy, frozen_copy(policy), trajectories, mini_batch_size=2)
    assert metrics["num_optimizer_steps"] == 3
    first = Learner(copy.deepcopy(policy), None, frozen_copy(policy), DPO)
    margins = []
    order = list(pairs_of(trajectories).mini_batches(2, torch.Generator().manual_seed(0), whole_groups=True))
    for pair in order:
        margins.append(improve(first, pair)["dpo_margin"])
    assert margins[0] == 0 and margins[1] != 0
    assert metrics["dpo_margin"] == pytest.approx(sum(margins) / 3, rel=1e-4)
    torch.testing.assert_close(weights_of(learner.policy), weights_of(first.policy), atol=1e-6, rtol=0)


def test_adapters_learn_and_the_policy_without_them_is_the_reference(make_policy, trajectories):
    torch.manual_seed(0)
    policy = add_adapters(make_policy(seed=1), 4, 8)
    learner = Learner(policy, None, policy, DPO)
    margins = [improve(learner, pairs_of(trajectories))["dpo_margin"] for _ in range(6)]
    assert margins[0] == pytest.approx(0, abs=1e-5)
    assert margins[-1] > margins[1] > 0


def test_two_ranks_take_the_step_of_one_process(make_policy, trajectories, ranks):
    policy, reference = models(make_policy)
    changes = {"micro_batch_tokens": 1, "mini_batch_size": 4}
    alone, metrics = step(policy, reference, trajectories, **changes)
    remote = RemoteLearner(
        Models(copy.deepcopy(policy), None, reference), DPO.model_copy(update=changes), NO_END, ranks
    )
    with closing(remote):
        others = improve(remote, pairs_of(trajectories))
    assert others["dpo_loss"] == pytest.approx(metrics["dpo_loss"], rel=1e-5)
    torch.testing.assert_close(weights_of(remote.policy), weights_of(alone.policy), atol=1e-6, rtol=0)


def test_pairs_need_a_reference_and_two_signs(make_policy, trajectories):
    with pytest.raises(ValueError, match="needs a reference"):
        step(make_policy(), None, trajectories)
    learner = Learner(make_policy(), None, frozen_copy(make_policy()), DPO)
    with pytest.raises(ValueError, match="is no pair"):
        improve(learner, pairs_of(trajectories).select(torch.tensor([0, 1, 2])))
