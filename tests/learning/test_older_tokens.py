"""Tokens that older versions of the policy sampled: the batch knows them, and they are weighed and checked."""

import copy
import math

import pytest
import torch
from training_settings import training

from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.types import Completion, Finish, Reward, Task, Trajectory


def aged(*versions, logprobs=None):
    """[prompt, one token per version], a result after the first."""
    trajectory = Trajectory(Task(task_id="t", prompt="?", answer="!"), [1])
    for number, version in enumerate(versions):
        logprob = -1.0 if logprobs is None else logprobs[number]
        trajectory.add_sampled(
            Completion(token_ids=(5,), sampled_logprobs=(logprob,), finish=Finish.LENGTH, policy_version=version)
        )
        if not number:
            trajectory.add_reply([9])
    trajectory.reward = Reward(parts={"paid": 1.0})
    return trajectory


def test_the_batch_says_how_old_its_tokens_are():
    batch = TokenBatch.from_trajectories([aged(1, 2, 3), aged(3)], policy_version=3)
    assert batch.ages.tolist() == [0, 2, 0, 1, 0] + [0] * 3
    assert batch.loss_mask.tolist() == [False, True, False, True, True, False, True, False]
    assert TokenBatch.from_trajectories([aged(1)]).ages is None


def test_older_tokens_are_weighed_by_the_ratio_token_by_token_and_truncated(make_policy):
    """w = min(exp(log π_now − log π_sampled), 2): the recomputed ones come from a real model, the sampled ones by hand."""
    learner = Learner(make_policy(), None, None, training(rollout_correction="truncated"))
    plain, _ = learner.score(TokenBatch.from_trajectories([aged(1, 2, 3)]))
    now = plain.old_logprobs[[1, 3, 4]]
    shifts = torch.tensor([0.5, -3.0, 0.0])  # sampled = now + shift: once likelier, once much less likely, once alike
    batch = TokenBatch.from_trajectories([aged(1, 2, 3, logprobs=(now + shifts).tolist())], policy_version=3)
    scored, health = learner.score(batch)
    expected = torch.tensor([math.exp(-0.5), 2.0, 1.0])  # exp(3) = 20.1 is cut at 2
    torch.testing.assert_close(scored.rollout_weights[[1, 3, 4]], expected, rtol=1e-4, atol=1e-5)
    assert scored.rollout_weights[[0, 2]].tolist() == [0.0, 0.0]
    assert health["rollout_truncated_fraction"] == pytest.approx(1 / 3)
    assert health["batch/ess"] == pytest.approx(
        expected.sum().item() ** 2 / (3 * expected.square().sum().item()), rel=1e-4
    )
    assert health["logprob_difference_max"] < 1e-5  # of the newest token alone


def test_where_all_tokens_are_old_their_difference_says_nothing_of_the_engines_health(make_policy):
    learner = Learner(make_policy(), None, None, training())
    _, health = learner.score(TokenBatch.from_trajectories([aged(1, 2)], policy_version=3))
    assert math.isnan(health["logprob_difference_max"]) and math.isnan(health["logprob_difference_mean"])
    assert "logprob_difference_older_max" not in health


def sampled_by(learner):
    """Log-probabilities that the learner's weights of now give to the three tokens of `aged`."""
    twin = Learner(copy.deepcopy(learner.policy), None, None, training())
    return twin.score(TokenBatch.from_trajectories([aged(0, 0, 0)]))[0].old_logprobs[[1, 3, 4]].tolist()


def change(learner, size):
    with torch.no_grad():
        for value in learner.policy.parameters():
            value.add_(size * torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize(("labels", "is_right"), [((0, 1, 2), True), ((1, 1, 2), False), ((0, 0, 2), False)])
def test_tokens_of_older_versions_are_recomputed_under_their_own_weights(labels, is_right, make_policy):
    """Tokens of versions 0, 1 and 2, whose weights differ: right labels give equal log-probabilities, shifted ones do not."""
    learner = Learner(make_policy(), None, None, training(max_staleness=2))
    of_version = []
    for version in range(3):
        of_version.append(sampled_by(learner))
        before = {name: value.clone() for name, value in learner.policy.state_dict().items()}
        if version < 2:
            learner.older.keep()
            change(learner, 0.05)
    logprobs = [of_version[version][place] for place, version in enumerate((0, 1, 2))]
    batch = TokenBatch.from_trajectories([aged(*labels, logprobs=logprobs)], policy_version=2)
    _, health = learner.score(batch)
    assert health["logprob_difference_max"] < 1e-5
    assert (health["logprob_difference_older_max"] < 1e-5) is is_right
    assert all(torch.equal(value, before[name]) for name, value in learner.policy.state_dict().items())


def test_without_memory_for_the_copies_the_run_says_so_and_checks_the_newest_only(make_policy, caplog):
    learner = Learner(make_policy(), None, None, training(max_staleness=2, kept_weights_gib=1e-9))
    assert (
        "tokens of older versions are not checked: 2 copies" in caplog.text and "kept_weights_gib=1e-09" in caplog.text
    )
    learner.older.keep()
    _, health = learner.score(TokenBatch.from_trajectories([aged(0, 1)], policy_version=1))
    assert "logprob_difference_older_max" not in health
