"""The critic's warm-up: the policy computes nothing that it does not need, and its learning-rate schedule waits."""

from typing import Any

import pytest
import torch
from training_settings import CRITICS, prepared, training

from midthought.config import create_default_config
from midthought.learning.learner import Learner
from midthought.learning.optimizer import TrainingSchedule

SETTINGS = training(
    learning_rate=1e-2, critic_learning_rate=1e-2, warmup_steps=2, lr_schedule="linear", mini_batch_size=100,
)  # fmt: skip
SCHEDULE = TrainingSchedule(total_steps=4, critic_total_steps=6)


@pytest.fixture(params=["separate", "shared"])
def learner(request: Any, make_policy) -> Learner:
    policy = make_policy()
    return Learner(policy, CRITICS[request.param](policy), None, SETTINGS, SCHEDULE)


def test_only_the_critic_learns_and_the_policys_schedule_begins_afterwards(learner, batch):
    before = {name: p.detach().clone() for name, p in learner.policy.named_parameters()}
    head = learner.critic.head.linear.weight.detach().clone()
    for _ in range(2):
        metrics = learner.update(prepared(learner, batch), critic_only=True)
        assert not {"policy_loss", "entropy", "grad_norm", "learning_rate"} & metrics.keys()
        assert metrics["value_loss"] > 0 and metrics["critic_grad_norm"] > 0
    assert all(torch.equal(p, before[name]) for name, p in learner.policy.named_parameters())
    assert not torch.equal(learner.critic.head.linear.weight, head)
    rates = [learner.update(prepared(learner, batch))["learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([0.5e-2, 1e-2, 1e-2, 0.5e-2])  # two steps up, then down to 0 at step 4 of its own


def test_the_policy_runs_no_pass_with_gradients_and_a_separate_critic_none_at_all(learner, batch):
    credited = prepared(learner, batch)
    passes: list[bool] = []
    learner.policy.register_forward_pre_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    learner.update(credited, critic_only=True)
    assert passes == ([] if learner.critic.trunk is not None else [False])
    assert all(parameter.grad is None for parameter in learner.policy.parameters())


def test_a_learner_resumed_within_the_warmup_goes_on_exactly(learner, batch, make_policy):
    learner.update(prepared(learner, batch), critic_only=True)
    policy = make_policy()
    policy.load_state_dict(learner.policy.state_dict())
    critic = CRITICS["shared" if learner.critic.is_shared else "separate"](policy)
    resumed = Learner(policy, critic, None, SETTINGS, SCHEDULE)
    resumed.critic.load_state_dict(learner.critic.state_dict())
    resumed.load_state_dict(learner.state_dict())
    for critic_only in (True, False, False):
        figures = [one.update(prepared(one, batch), critic_only=critic_only) for one in (learner, resumed)]
        assert figures[0] == figures[1]
    assert (resumed.num_steps, resumed.num_policy_steps) == (4, 2)


def test_the_policys_schedule_ends_with_the_run_and_has_no_step_in_the_warmup():
    given = {"learning_rate": 1e-5, "batch_size": 8, "mini_batch_size": 4, "ppo_epochs": 3, "critic_warmup_iters": 2}
    schedule = TrainingSchedule.from_config(create_default_config(training=given), num_iters=10)
    assert (schedule.total_steps, schedule.critic_total_steps, schedule.max_tokens) == (8 * 6, 10 * 6, 2048)
    without_critic = create_default_config(training={**given, "adv_estimator": "rloo", "group_size": 2})
    assert TrainingSchedule.from_config(without_critic, num_iters=10).total_steps == 10 * 6
