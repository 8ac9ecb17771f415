"""A policy and a critic with a learner each learn what one learner of both learns, and their checkpoints are the same."""

import copy
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import torch
from process_workers import ProcessWorkers
from test_distributed import difference, iterate, models, settings_of, weights, without_ties

from midthought.learning.actor_critic import ActorCriticLearner
from midthought.learning.batch import TokenBatch
from midthought.learning.checkpoint import load_checkpoint, save_checkpoint
from midthought.learning.critic_learner import CriticLearner
from midthought.learning.distributed.remote_learner import RemoteLearner
from midthought.learning.learner import Learner
from midthought.learning.lr_schedule import NO_END
from midthought.learning.model import Critic, Models


@pytest.fixture
def batch(make_trajectory) -> TokenBatch:
    return TokenBatch.from_trajectories(
        [make_trajectory(seed, group=seed // 2, num_results=1 + 2 * seed) for seed in range(10)]
    )


@contextmanager
def together_and_apart(
    ranks: ProcessWorkers, make_policy, where: str, **way: object
) -> Iterator[tuple[Learner, ActorCriticLearner]]:
    """One learner of both models, and two of copies of them, the critic's in this process or on two ranks."""
    made, settings = models(make_policy, way), settings_of(way)
    policy, critic, reference = copy.deepcopy(made)[:3]
    of_policy = Learner(policy, None, reference, settings)
    if where == "here":
        of_critic: CriticLearner | RemoteLearner = CriticLearner(critic, settings)
    else:
        of_critic = RemoteLearner(Models(None, critic, None), settings, NO_END, ranks)
        of_critic.load_state_dict(CriticLearner(copy.deepcopy(critic), settings).state_dict())  # starts its processes
    with closing(ActorCriticLearner(of_policy, of_critic)) as apart:
        yield Learner(*made[:3], settings), apart


@pytest.mark.parametrize(
    ("way", "where"),
    [
        ({}, "here"),
        ({"packing": True}, "on ranks"),
        pytest.param({}, "on ranks", marks=pytest.mark.slow),
        pytest.param({"packing": True}, "here", marks=pytest.mark.slow),
        pytest.param({"gradient_checkpointing": True}, "here", marks=pytest.mark.slow),
        pytest.param({"gradient_checkpointing": True}, "on ranks", marks=pytest.mark.slow),
        pytest.param({"reference": False}, "here", marks=pytest.mark.slow),
        pytest.param({"reference": False}, "on ranks", marks=pytest.mark.slow),
    ],
)
def test_two_learners_have_the_parameters_of_one_after_six_updates(way, where, ranks, make_policy, batch):
    with together_and_apart(ranks, make_policy, where, **way) as (together, apart):
        before = weights(together)
        for critic_only in (True, False, False):
            figures, scored = iterate(together, batch, critic_only=critic_only)
            others, far = iterate(apart, batch, critic_only=critic_only)
            assert without_ties(others) == pytest.approx(without_ties(figures), rel=1e-5, abs=1e-6)
            torch.testing.assert_close(far.values, scored.values, atol=2e-6, rtol=1e-6)
            torch.testing.assert_close(far.old_logprobs, scored.old_logprobs, atol=2e-6, rtol=1e-6)
        assert together.num_steps == apart.num_steps == 6
        after = weights(together)
        assert difference(after, weights(apart)) < 1e-9
        learned = {name.partition(".")[0] for name in after if (after[name] != before[name]).any()}
        assert learned == {"policy", "critic"}
        assert difference(together.state_dict()["moments"], apart.state_dict()["moments"]) < 1e-9


@pytest.mark.parametrize("saves_apart", [True, False])
def test_a_checkpoint_goes_on_either_way(saves_apart, ranks, make_policy, batch, tmp_path):
    with together_and_apart(ranks, make_policy, "on ranks") as through:
        saving, other = through[::-1] if saves_apart else through
        iterate(saving, batch)
        save_checkpoint(tmp_path / "c", saving)
        iterate(saving, batch)
        load_checkpoint(tmp_path / "c").restore(other)
        assert other.num_steps == 2
        iterate(other, batch)
        assert difference(weights(saving), weights(other)) < 1e-9


def test_what_one_of_them_raises_is_raised_and_the_other_has_ended(ranks, make_policy, batch):
    with together_and_apart(ranks, make_policy, "here") as (_, apart):
        with pytest.raises(ValueError, match="no advantages"):
            apart.update(batch)
        assert iterate(apart, batch)[0]["num_optimizer_steps"] == 2


def test_a_critic_alone_needs_a_trunk_and_learns_no_demonstrations(make_policy, batch):
    policy = make_policy()
    with pytest.raises(ValueError, match="learns with its policy"):
        CriticLearner(Critic.shared(policy), settings_of({}))
    with pytest.raises(ValueError, match="nothing from demonstrations"):
        CriticLearner(Critic.separate(policy), settings_of({})).sft_step(batch)
