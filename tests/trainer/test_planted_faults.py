"""Faults of asynchronous training that change no shape and raise no error: each stops the run at the next update."""

from __future__ import annotations

import dataclasses

import pytest

from midthought import RayPPOTrainer, create_default_config
from midthought.engines.local.kv_cache_manager import KVCacheManager
from midthought.engines.pausable_engine import PausableEngine
from midthought.errors import TrainingStoppedError
from midthought.learning.remote_learner import RemoteLearner
from midthought.models.small_model import make_policy

QUESTIONS = [{"question": f"Say {number}.", "answer": "red"} for number in range(5)]


def by_length(trajectory):
    return float(trajectory.num_sampled % 3)


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
def test_a_planted_fault_stops_the_run_at_the_next_update(plant, overlap, tokenizer, monkeypatch):
    config = create_default_config(
        preset="tiny",
        inference={"max_tokens": 96, "max_segment_length": 8, "overlap": overlap},
        training={
            "batch_size": 8,
            "mini_batch_size": 8,
            "num_train_iters": 8,
            "validate_every": 0,
            "learning_rate": 1e-2,
            "max_staleness": 2,
            "adv_estimator": "reinforce_plus_plus",
        },
    )
    model = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=512, seed=0)
    arguments = {"dataset": QUESTIONS, "reward_fn": by_length, "model": model, "tokenizer": tokenizer}
    with RayPPOTrainer(config, **arguments, progress=False) as trainer:
        if plant is None:
            history = trainer.fit()
            assert len(history) == 8 and 0 < max(row["staleness/max"] for row in history) <= 2
            return
        plant(trainer, monkeypatch)
        with pytest.raises(
            TrainingStoppedError, match=r"tokens of the (newest|older) weights differ|log-probabilities differ"
        ):
            trainer.fit()
        assert 1 <= trainer.iteration <= 3
