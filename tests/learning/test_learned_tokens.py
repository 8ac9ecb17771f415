"""Values of single tokens that an update is recorded with: they are those that the loss used."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from training_settings import training, weights_of

from midthought import policy_loss
from midthought.algo.policy_losses import POLICY_LOSSES
from midthought.learning.batch import TokenBatch
from midthought.learning.iteration import improve
from midthought.learning.learned_tokens import LearnedTokens
from midthought.learning.learner import Learner
from midthought.learning.model import Critic, frozen_copy

SEEN: list[tuple[float, float, float]] = []
"""(old log-probability, advantage, log-probability of the current policy) of every policy token in the last step."""


@pytest.fixture(scope="module", autouse=True)
def _seeing_loss() -> None:
    @policy_loss("ppo_that_is_seen")
    def ppo_that_is_seen(inputs: Any) -> Any:
        columns = (inputs.old_logprobs, inputs.advantages, inputs.logprobs.detach())
        SEEN.extend(zip(*(column[inputs.mask].tolist() for column in columns), strict=True))
        return POLICY_LOSSES.find("ppo")(inputs)


def learner_of(policy: Any, **changes: Any) -> Learner:
    common = {"policy_loss": "ppo_that_is_seen", "learning_rate": 1e-2, "kl_coef": 0.1, "packing": False}
    policy = copy.deepcopy(policy)
    return Learner(policy, Critic.separate(policy), frozen_copy(policy), training(**{**common, **changes}))


def learn(learner: Learner, trajectories: list[Any], recorded: list[Any], **options: Any) -> LearnedTokens:
    learned = LearnedTokens(recorded)
    batch = TokenBatch.from_trajectories(trajectories, slots=learned.slots(trajectories))
    SEEN.clear()
    improve(learner, batch, learned=learned, **options)
    return learned


def column(learned: LearnedTokens, trajectories: list[Any], name: str) -> list[float]:
    """The values of all policy tokens."""
    rows = [(row[name], row["in_loss"]) for trajectory in trajectories for row in learned.of(trajectory)]
    return [float(value) for values, in_loss in rows for value in values[in_loss == 1]]


@pytest.fixture
def trajectories(make_trajectory: Any) -> list[Any]:
    return [make_trajectory(seed, group=seed // 2, num_results=1 + 2 * seed) for seed in range(6)]


def test_recorded_values_are_those_of_the_loss_in_its_last_pass(make_policy: Any, trajectories: list[Any]) -> None:
    learner = learner_of(make_policy(), ppo_epochs=2, micro_batch_tokens=40)
    learned = learn(learner, trajectories, trajectories)
    names = ("logprobs", "advantages", "ratios", "entropies", "values", "reference_logprobs", "in_loss")
    old, advantages, ratios, entropies, values, reference, in_loss = (column(learned, trajectories, n) for n in names)
    last = SEEN[len(SEEN) // 2 :]  # the second pass
    assert len(old) == len(last) == sum(trajectory.num_sampled for trajectory in trajectories) == sum(in_loss)
    found = sorted(zip(old, advantages, ratios, strict=True))
    used = sorted((before, advantage, math.exp(now - before)) for before, advantage, now in last)
    assert [pair[:2] for pair in found] == [pair[:2] for pair in used]
    assert [ratio for _, _, ratio in found] == pytest.approx([ratio for _, _, ratio in used], rel=1e-5)
    assert max(abs(ratio - 1) for ratio in ratios) > 1e-3 and all(0 < entropy < math.log(48) for entropy in entropies)
    assert np.isfinite(values).all() and reference == pytest.approx(old, abs=1e-5)


def test_the_first_pass_has_ratios_of_one_and_tools_have_no_values(make_policy: Any, trajectories: list[Any]) -> None:
    learned = learn(learner_of(make_policy()), trajectories, trajectories)
    assert column(learned, trajectories, "ratios") == pytest.approx([1.0] * len(SEEN), abs=1e-5)
    (row,) = learned.of(trajectories[2])
    outside = ~np.array(trajectories[2].loss_mask)
    assert all(np.isnan(values[outside]).all() for values in row.values())


def test_only_the_episodes_that_were_asked_for_are_recorded(make_policy: Any, trajectories: list[Any]) -> None:
    policy = make_policy()
    every = learn(learner_of(policy), trajectories, trajectories)
    some = learn(learner_of(policy), trajectories, [trajectories[4], trajectories[1]])
    assert some.of(trajectories[0]) == []
    for name in ("advantages", "logprobs", "ratios", "entropies"):
        assert column(some, [trajectories[4]], name) == column(every, [trajectories[4]], name)
    left_out = learn(learner_of(policy), trajectories[:3], trajectories[3:])
    assert all(np.isnan(values).all() for values in left_out.of(trajectories[4])[0].values())


def test_a_warm_up_of_the_critic_has_advantages_but_no_ratios(make_policy: Any, trajectories: list[Any]) -> None:
    learned = learn(learner_of(make_policy()), trajectories, trajectories, critic_only=True)
    assert "ratios" not in learned.of(trajectories[0])[0] and column(learned, trajectories, "advantages")


def test_recording_changes_nothing_and_off_keeps_nothing(make_policy: Any, trajectories: list[Any]) -> None:
    policy = make_policy()
    recording, plain = learner_of(policy), learner_of(policy)
    learn(recording, trajectories, trajectories)
    batch = TokenBatch.from_trajectories(trajectories)
    improve(plain, batch)
    assert batch.slots is None and plain.pass_values() == {}
    assert torch.equal(weights_of(recording.policy), weights_of(plain.policy))
