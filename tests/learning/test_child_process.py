"""A learner in a process of its own computes what one in this process computes, to the bit, and its end is noticed at once."""

import copy
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from training_settings import training

from midthought.algo.policy_losses import POLICY_LOSSES
from midthought.cluster import child
from midthought.cluster.child import ChildGroup
from midthought.engines.shared_tensors import read_shared_tensors
from midthought.errors import LearnerLostError, SettingsError
from midthought.learning.batch import TokenBatch
from midthought.learning.checkpoint_folder import load_checkpoint, save_checkpoint
from midthought.learning.iteration import improve
from midthought.learning.learner import Learner
from midthought.learning.model import Critic, Models, add_adapters, frozen_copy
from midthought.learning.optimizer import NO_END
from midthought.learning.remote_learner import RemoteLearner

SETTINGS = training(
    learning_rate=1e-2, critic_learning_rate=1e-2, mini_batch_size=3, kl_coef=0.1, kl_loss_coef=0.1, max_staleness=2
)


@pytest.fixture
def batch(make_trajectory) -> TokenBatch:
    return TokenBatch.from_trajectories([make_trajectory(seed, group=seed // 2) for seed in range(6)])


@pytest.fixture(scope="module")
def group() -> Iterator[ChildGroup]:
    """One process for the learners of this file, one after another: its imports take seconds."""
    with closing(ChildGroup(1, silence_seconds=math.inf)) as group:
        yield group


def models(make_policy, *, lora=False) -> Models:
    policy = make_policy()
    torch.manual_seed(0)
    if lora:
        adapted = add_adapters(policy, 2, 4)
        return Models(adapted, None, adapted)
    return Models(policy, Critic.separate(policy), frozen_copy(policy))


def here(given: Models, settings=SETTINGS) -> Learner:
    return Learner(*given[:3], settings)


def apart(given: Models, group: ChildGroup, settings=SETTINGS) -> RemoteLearner:
    return RemoteLearner(given, settings, NO_END, group)


@pytest.mark.parametrize("lora", [False, True])
def test_three_updates_give_equal_metrics_and_weights_to_the_bit(lora, group, make_policy, batch):
    given = models(make_policy, lora=lora)
    settings = SETTINGS if not lora else SETTINGS.model_copy(update={"adv_estimator": "reinforce_plus_plus"})
    first, second = here(copy.deepcopy(given), settings), apart(given, group, settings)
    for _ in range(3):
        assert improve(first, batch) == improve(second, batch)
        second.load_policy()
        for ours, theirs in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    critics = [each.critic.parameters() if each.critic else () for each in (first, second)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*critics, strict=True))
    kept = [path for path in Path("/proc/self/fd").iterdir() if "midthought-weights-" in os.path.realpath(path)]
    assert not kept, "what was sent has been read"


def test_a_checkpoint_of_one_continues_in_the_other(group, make_policy, batch, tmp_path):
    first, second = here(models(make_policy)), apart(models(make_policy), group)
    improve(first, batch)
    save_checkpoint(tmp_path / "here", first)
    load_checkpoint(tmp_path / "here").restore(second)
    assert improve(first, batch) == improve(second, batch)
    save_checkpoint(tmp_path / "there", second)
    third = here(models(make_policy))
    load_checkpoint(tmp_path / "there").restore(third)
    assert improve(first, batch) == improve(third, batch)


def test_a_loss_of_the_users_own_script_goes_along(group, make_policy, batch, monkeypatch):
    monkeypatch.setitem(POLICY_LOSSES, "mine", lambda inputs: (-inputs.advantages * inputs.logprobs, {}))
    settings, given = SETTINGS.model_copy(update={"policy_loss": "mine"}), models(make_policy)
    first = here(copy.deepcopy(given), settings)
    assert improve(first, batch) == improve(apart(given, group, settings), batch)


def test_models_that_cannot_be_pickled_are_named(group, make_policy, batch):
    given = models(make_policy)
    given.policy.lock = threading.Lock()
    with pytest.raises(SettingsError, match=r"what is learned cannot be sent.*lock"):
        apart(given, group).score(batch)


def test_its_number_of_threads_can_be_changed(group, make_policy, batch):
    learner = apart(models(make_policy), group)
    learner.score(batch)
    tasks = Path(f"/proc/{group.process_id}/task")
    before = len(list(tasks.iterdir()))
    group.num_threads = 3
    learner.score(batch)
    group.num_threads = 1
    assert len(list(tasks.iterdir())) == before + 2


def test_a_process_that_is_killed_is_noticed_at_once_and_can_be_replaced(group, make_policy, batch):
    learner = apart(models(make_policy), group)
    scored, _ = learner.credit(learner.score(batch)[0])
    os.kill(group.process_id, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(LearnerLostError, match=r"lost in 'update' \(exit code -9\)"):
        learner.update(scored)
    assert time.monotonic() - began < 2
    assert learner.start_again()
    assert learner.score(batch)[1]["logprob_difference_max"] >= 0


def test_a_process_that_is_killed_after_its_answer_is_lost_too(group, make_policy, batch, monkeypatch):
    """Its tensors are gone before they are read here."""
    learner = apart(models(make_policy), group)
    learner.score(batch)

    def read_late(manifest):
        os.kill(group.process_id, signal.SIGKILL)
        os.waitid(os.P_PID, group.process_id, os.WEXITED | os.WNOWAIT)
        return read_shared_tensors(manifest)

    monkeypatch.setattr(child, "read_shared_tensors", read_late)
    with pytest.raises(LearnerLostError, match=r"lost in 'score' \(exit code -9\)"):
        learner.score(batch)


def test_what_it_raises_is_raised_here_and_it_is_stopped(group, make_policy, batch):
    learner = apart(models(make_policy), group)
    learner.score(batch)
    process_id = group.process_id
    with pytest.raises(AttributeError, match="no_such_method"):
        group.call("no_such_method")
    assert not Path(f"/proc/{process_id}").exists()
    with pytest.raises(LearnerLostError, match="has ended; continue from the last checkpoint"):
        learner.score(batch)


@pytest.fixture(scope="module")
def impatient() -> Iterator[ChildGroup]:
    with closing(ChildGroup(1, silence_seconds=2.0)) as group:
        yield group


def takes_long(inputs):
    until = time.process_time() + 3.0
    while time.process_time() < until:
        pass
    return -inputs.advantages * inputs.logprobs, {}


def test_a_process_that_computes_longer_than_the_limit_is_waited_for(impatient, make_policy, batch, monkeypatch):
    monkeypatch.setitem(POLICY_LOSSES, "long", takes_long)
    settings = SETTINGS.model_copy(update={"policy_loss": "long", "mini_batch_size": 6})
    assert improve(apart(models(make_policy), impatient, settings), batch)["policy_loss"] != 0


def test_a_process_that_hangs_is_named_within_its_limit_and_can_be_replaced(impatient, make_policy, batch):
    learner = apart(models(make_policy), impatient)
    words = r"did not answer or compute in 'score' for 2 s and was stopped.*raise ray.silence_timeout_seconds"
    for arguments in [(batch,), (batch, b" " * 2**23)]:  # the second one does not fit into the pipe
        learner.score(batch)
        os.kill(impatient.process_id, signal.SIGSTOP)
        with pytest.raises(LearnerLostError, match=words):
            impatient.call("score", *arguments)
        assert learner.start_again()
    assert learner.score(batch)[1]["logprob_difference_max"] >= 0
