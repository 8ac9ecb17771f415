"""A learner in a process of its own computes what one in this process computes, to the bit, and its end is noticed at once."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from training_settings import training

from midthought.algo.losses import POLICY_LOSSES
from midthought.cluster.child import ChildGroup
from midthought.errors import LearnerLostError, SettingsError
from midthought.learning.adapters import add_adapters
from midthought.learning.batch import TokenBatch
from midthought.learning.checkpoint import load_checkpoint, save_checkpoint
from midthought.learning.distributed.remote_learner import RemoteLearner
from midthought.learning.learner import Learner
from midthought.learning.lr_schedule import NO_END
from midthought.learning.model import Critic, Models, frozen_copy
from midthought.learning.ppo import improve

SETTINGS = training(
    learning_rate=1e-2, critic_learning_rate=1e-2, mini_batch_size=3, kl_coef=0.1, kl_loss_coef=0.1, max_staleness=2
)
FILES, OURS = Path("/dev/shm"), f"midthought-learner-{os.getpid()}-*"


@pytest.fixture
def batch(make_trajectory) -> TokenBatch:
    return TokenBatch.from_trajectories([make_trajectory(seed, group=seed // 2) for seed in range(6)])


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def models(make_policy, *, lora=False) -> Models:
    policy = make_policy()
    torch.manual_seed(0)
    if lora:
        adapted = add_adapters(policy, 2, 4)
        return Models(adapted, None, adapted)
    return Models(policy, Critic.separate(policy), frozen_copy(policy))


def here(given: Models) -> Learner:
    return Learner(given.policy, given.critic, given.reference, SETTINGS)


def apart(given: Models, settings=SETTINGS) -> RemoteLearner:
    return RemoteLearner(given, settings, NO_END, ChildGroup(1))


@pytest.mark.parametrize("lora", [False, True])
def test_three_updates_give_equal_metrics_and_weights_to_the_bit(lora, make_policy, batch):
    given = models(make_policy, lora=lora)
    settings = SETTINGS if not lora else SETTINGS.model_copy(update={"adv_estimator": "reinforce_plus_plus"})
    first = Learner(*copy.deepcopy(given)[:3], settings)
    with closing(apart(given, settings)) as second:
        for _ in range(3):
            assert improve(first, batch) == improve(second, batch)
            second.load_policy()
            for ours, theirs in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
                assert torch.equal(ours, theirs)
        critics = [each.critic.parameters() if each.critic else () for each in (first, second)]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*critics, strict=True))
        assert (
            len(list(Path("/dev/shm").glob(f"midthought-learner-{second.workers.process_id}-*/*"))) <= 1
        )  # messages go


def test_a_checkpoint_of_one_continues_in_the_other(make_policy, batch, tmp_path):
    first, given = here(models(make_policy)), models(make_policy)
    improve(first, batch)
    save_checkpoint(tmp_path / "here", first)
    with closing(apart(given)) as second:
        load_checkpoint(tmp_path / "here").restore(second)
        assert improve(first, batch) == improve(second, batch)
        save_checkpoint(tmp_path / "there", second)
    third = here(models(make_policy))
    load_checkpoint(tmp_path / "there").restore(third)
    assert improve(first, batch) == improve(third, batch)


def test_a_loss_of_the_users_own_script_goes_along(make_policy, batch, monkeypatch):
    monkeypatch.setitem(POLICY_LOSSES._functions, "mine", lambda inputs: (-inputs.advantages * inputs.logprobs, {}))  # noqa: SLF001
    settings, given = SETTINGS.model_copy(update={"policy_loss": "mine"}), models(make_policy)
    first = Learner(*copy.deepcopy(given)[:3], settings)
    with closing(apart(given, settings)) as second:
        assert improve(first, batch) == improve(second, batch)


def test_what_it_raises_is_raised_here_and_it_is_stopped(make_policy, batch):
    with closing(apart(models(make_policy))) as learner:
        learner.score(batch)
        process_id = learner.workers.process_id
        with pytest.raises(AttributeError, match="no_such_method"):
            learner.workers.call("no_such_method")
        assert not Path(f"/proc/{process_id}").exists()
        with pytest.raises(LearnerLostError, match="has ended; continue from the last checkpoint"):
            learner.score(batch)


def test_a_process_that_is_killed_is_noticed_at_once_and_can_be_replaced(make_policy, batch):
    learner = apart(models(make_policy))
    with closing(learner):
        scored, _ = learner.credit(learner.score(batch)[0])
        endless = scored.with_fields(loss_mask=scored.loss_mask)
        killing = threading.Timer(0.0, os.kill, (learner.workers.process_id, signal.SIGKILL))
        killing.start()
        killing.join()
        began = time.monotonic()
        with pytest.raises(LearnerLostError, match=r"lost in 'update' \(exit code -9\)"):
            learner.update(endless)
        assert time.monotonic() - began < 2
        assert learner.start_again()
        assert learner.score(batch)[1]["logprob_difference_max"] >= 0
    assert not list(FILES.glob(OURS))


def test_models_that_cannot_be_pickled_are_named(make_policy, batch):
    given = models(make_policy)
    given.policy.lock = threading.Lock()
    with closing(apart(given)) as learner, pytest.raises(SettingsError, match=r"what is learned cannot be sent.*lock"):
        learner.score(batch)


def test_a_process_that_hangs_is_named_within_its_limit_and_can_be_replaced(make_policy, batch):
    learner = RemoteLearner(models(make_policy), SETTINGS, NO_END, ChildGroup(1, silence_seconds=2.0))
    words = r"did not answer or compute in 'score' for 2 s and was stopped.*raise ray.silence_timeout_seconds"
    with closing(learner):
        for arguments in [(batch,), (batch, b" " * 2**23)]:  # the second one does not fit into the pipe
            learner.score(batch)
            os.kill(learner.workers.process_id, signal.SIGSTOP)
            with pytest.raises(LearnerLostError, match=words):
                learner.workers.call("score", *arguments)
            assert learner.start_again()
        assert learner.score(batch)[1]["logprob_difference_max"] >= 0
    assert not list(FILES.glob(OURS))


def takes_long(inputs):
    until = time.process_time() + 1.5
    while time.process_time() < until:
        pass
    return -inputs.advantages * inputs.logprobs, {}


def test_a_process_that_computes_longer_than_the_limit_is_waited_for(make_policy, batch, monkeypatch):
    monkeypatch.setitem(POLICY_LOSSES._functions, "long", takes_long)  # noqa: SLF001
    settings = SETTINGS.model_copy(update={"policy_loss": "long", "mini_batch_size": 6})
    group = ChildGroup(1, silence_seconds=1.0)
    with closing(RemoteLearner(models(make_policy), settings, NO_END, group)) as learner:
        assert improve(learner, batch)["policy_loss"] != 0


def test_its_number_of_threads_can_be_changed(make_policy, batch):
    with closing(apart(models(make_policy))) as learner:
        learner.score(batch)
        tasks = Path(f"/proc/{learner.workers.process_id}/task")
        before = len(list(tasks.iterdir()))
        learner.workers.num_threads = 3
        learner.score(batch)
        assert len(list(tasks.iterdir())) == before + 2
