"""Every registered loss and estimator in a whole optimizer step: packing, micro-batches, the order of episodes and the number of
ranks do not change its gradient."""

import copy
from contextlib import closing
from typing import Any, get_args

import pytest
import torch
from training_settings import gradients_of, training, weights_of

from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.model import Critic, Models, frozen_copy, token_logprobs
from midthought.learning.optimizer import NO_END, TrainingSchedule
from midthought.learning.remote_learner import RemoteLearner
from midthought.rollout.selection import select
from midthought.types import Completion, Finish, RolloutData, Trajectory

LOSSES = tuple(TrainingConfig.policy_losses)
ESTIMATORS: dict[str, dict[str, Any]] = {name: {} for name in TrainingConfig.estimator_needs}
"""Every advantage estimator, with the settings that it needs."""
ESTIMATORS |= {"keep_best": {"policy_loss": "nll"}, "zero": {"teacher": "a folder"}}
TERMS: dict[str, dict[str, Any]] = {
    "teacher": {"teacher": "a folder"},
    "KL in the reward": {"kl_coef": 0.2},
    "KL in the loss": {"kl_loss_coef": 0.2},
    "entropy": {"entropy_coef": 0.1},
    "correction": {"rollout_correction": "sequence_truncated"},
    **{f"average {name}": {"loss_agg": name} for name in get_args(TrainingConfig.model_fields["loss_agg"].annotation)},
}
"""Terms and weights that are added to a loss, and its averages."""
CASES = {
    **{f"loss {name}": {"policy_loss": name} for name in LOSSES},
    **{f"estimator {name}": {"adv_estimator": name, **given} for name, given in ESTIMATORS.items()},
    **TERMS,
}
BLOCKS = {"logits_mib": 48 * 4 * 3 / 2**20}
"""Logits in blocks of 3 tokens: the vocabulary is 48."""
SPLIT = {"micro_batch_tokens": 64, **BLOCKS}
"""Micro-batches of one or two episodes."""
TOLERANCE = 1e-5
"""Of a gradient's norm: log-probabilities and advantages are stored in float32."""


@pytest.fixture
def trajectories(make_trajectory) -> list[Trajectory]:
    """Two tasks with four episodes each, whose lengths and rewards differ; one has two segments."""
    rewards = [0.1, 0.5, 0.9, 0.3, 0.9, 0.2, 0.0, 0.7]
    made = [make_trajectory(seed, reward=reward, group=seed // 4) for seed, reward in enumerate(rewards)]
    made[3].begin_segment([4, 5])
    made[3].add_sampled(Completion(token_ids=(7,), sampled_logprobs=(-1.0,), finish=Finish.END))
    return made


def settings_of(case: dict[str, Any], **changes: Any) -> TrainingConfig:
    common = {"adv_estimator": "grpo", "mini_batch_size": 100, "packing": False, "max_grad_norm": float("inf")}
    return training(**{**common, **case, **changes})


def models_of(make_policy, settings: TrainingConfig) -> Models:
    policy = make_policy(seed=1).double()
    critic = Critic.separate(policy).double() if settings.has_critic else None
    teacher = frozen_copy(make_policy(seed=3).double()) if settings.teacher else None
    reference = frozen_copy(make_policy(seed=2).double()) if settings.needs_reference else None
    return Models(policy, critic, reference, teacher)


def take_step(learner: Any, policy: Any, trajectories: list[Trajectory], settings: TrainingConfig) -> dict[str, float]:
    """One optimizer step. The policy before the update, and the one that sampled, are up to 0.3 nats away, keyed by the token."""
    batch = TokenBatch.from_trajectories(select(RolloutData(trajectories), settings, None).usable)
    with torch.no_grad():
        now = token_logprobs(policy, batch)
    shift = 0.3 * torch.sin(batch.token_ids * 7.0 + batch.position_ids)
    batch, _ = learner.score(batch.with_fields(sampled_logprobs=(now - 0.5 * shift) * batch.loss_mask))
    credited, _ = learner.credit(batch.with_fields(old_logprobs=(now - shift) * batch.loss_mask))
    return learner.update(credited)


def learner_of(models: Models, settings: TrainingConfig) -> Learner:
    policy, critic, reference, teacher = copy.deepcopy(models)
    return Learner(policy, critic, reference, settings, TrainingSchedule(max_tokens=50), teacher=teacher)


@pytest.mark.parametrize("case", CASES)
def test_packing_micro_batches_and_order_do_not_change_the_gradient(case, make_policy, trajectories):
    settings = settings_of(CASES[case])
    models = models_of(make_policy, settings)
    plain, other = learner_of(models, settings), learner_of(models, settings_of(CASES[case], packing=True, **SPLIT))
    take_step(plain, models.policy, trajectories, settings)
    take_step(other, models.policy, trajectories[::-1], settings)
    expected = gradients_of(plain)
    assert expected.norm() > 1e-3
    assert float((gradients_of(other) - expected).norm() / expected.norm()) < TOLERANCE


ON_RANKS = (*(f"loss {name}" for name in LOSSES), "entropy")


@pytest.mark.slow
def test_two_ranks_take_the_steps_of_one_process(make_policy, trajectories, ranks):
    """With several losses, and the entropy in blocks of logits, one after another. Other terms:
    `test_distributed.py`."""
    start = settings_of({"kl_loss_coef": 0.2, "teacher": "a folder"}, micro_batch_tokens=40)
    models = models_of(make_policy, start)
    alone = learner_of(models, start)
    with closing(RemoteLearner(copy.deepcopy(models), start, NO_END, ranks)) as remote:
        for name in ON_RANKS:
            given = {"teacher": "a folder", **CASES[name], **(BLOCKS if name == "entropy" else {})}
            settings = settings_of(given, micro_batch_tokens=40, learning_rate=1e-3)
            for learner in (alone, remote):
                learner.set_training(settings, NO_END)
            metrics, others = (take_step(each, models.policy, trajectories, settings) for each in (alone, remote))
            assert others["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-4), name
            torch.testing.assert_close(weights_of(remote.policy), weights_of(alone.policy), atol=2e-6, rtol=0, msg=name)
