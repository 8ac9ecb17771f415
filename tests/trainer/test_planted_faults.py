"""Faults of asynchronous training that change no shape and raise no error: each stops the run at the next update."""

from __future__ import annotations

import dataclasses

import pytest
from test_staleness import QUESTIONS_OF_ONE_KIND, by_length, settings

from midthought import RayPPOTrainer
from midthought.engines.local.kv_cache_manager import KVCacheManager
from midthought.engines.pausable_engine import PausableEngine
from midthought.errors import TrainingStoppedError
from midthought.learning.remote_learner import RemoteLearner


def keep_old_prefixes(trainer, monkeypatch):
    """The engine continues episodes from keys and values of the weights before."""
    monkeypatch.setattr(KVCacheManager, "update_weights", lambda manager: None)


def shift_labels(trainer, monkeypatch):
    """Every token is labelled with the version before its own."""
    sample = PausableEngine.sample

    async def shifted(*arguments, **options):
        completion = await sample(*arguments, **options)
        return dataclasses.replace(completion, policy_version=max(0, completion.policy_version - 1))

    monkeypatch.setattr(PausableEngine, "sample", shifted)


def send_half(trainer, monkeypatch):
    """Every second tensor of the learner's process does not arrive."""
    load = RemoteLearner.load_policy

    def load_half(learner):
        kept = [(value, value.detach().clone()) for value in list(trainer.model.parameters())[::2]]
        load(learner)
        for value, before in kept:
            value.data.copy_(before)

    monkeypatch.setattr(RemoteLearner, "load_policy", load_half)


@pytest.mark.parametrize(
    ("plant", "overlap"),
    [(None, False), (keep_old_prefixes, False), (shift_labels, False), (send_half, True)],
    ids=["nothing", "old prefixes", "shifted labels", "half of the tensors"],
)
def test_a_planted_fault_stops_the_run_at_the_next_update(plant, overlap, untaught, monkeypatch):
    training = {"batch_size": 8, "mini_batch_size": 8, "learning_rate": 1e-2, "adv_estimator": "reinforce_plus_plus"}
    config = settings(num_iters=8, deterministic=False, overlap=overlap, **training)
    options = {"dataset": QUESTIONS_OF_ONE_KIND, "reward_fn": by_length, "progress": False}
    with RayPPOTrainer(config, **options, **untaught) as trainer:
        if plant is None:
            history = trainer.fit()
            assert len(history) == 8 and 0 < max(row["staleness/max"] for row in history) <= 2
            return
        plant(trainer, monkeypatch)
        message = r"tokens of the (newest|older) weights differ|log-probabilities differ"
        with pytest.raises(TrainingStoppedError, match=message):
            trainer.fit()
        assert 1 <= trainer.iteration <= 3
