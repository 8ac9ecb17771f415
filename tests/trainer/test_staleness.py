"""Training with `training.max_staleness`: what a batch does not take is learned from once, later, weighed rightly, and survives a
restart. Episodes are of random length: the model is one that was made and taught nothing."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import math
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch
from interrupted_runs import DEMONSTRATIONS
from precision import logit_tolerance
from small_environments import QUESTIONS, Colours, OnStep, lines, power_cut, weights, without_clocks

from midthought import RayPPOTrainer, create_default_config
from midthought.engines.local.kv_cache_manager import KVCacheManager
from midthought.engines.pausable_engine import PausableEngine
from midthought.errors import LearnerLostError, SettingsError, TrainingStoppedError
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.model import token_outputs
from midthought.learning.remote_learner import RemoteLearner
from midthought.trainer import overlapping, workers
from midthought.trainer.checkpoint import CheckpointManager

QUESTIONS_OF_ONE_KIND = [{"question": f"Say {number}.", "answer": "red"} for number in range(5)]


def settings(*, max_staleness=2, deterministic=True, num_iters=6, overlap="auto", **training):
    training = {"batch_size": 4, "mini_batch_size": 4, "num_train_iters": num_iters, "validate_every": 0} | training
    inference = {"max_tokens": 96, "max_segment_length": 8, "deterministic": deterministic, "overlap": overlap}
    training = {"learning_rate": 3e-3, "max_staleness": max_staleness, **training}
    return create_default_config(preset="tiny", inference=inference, training=training)


def by_length(trajectory):
    return float(trajectory.num_sampled % 3)


@pytest.fixture
def make(_untaught, tokenizer):
    """Makes a trainer of a copy of the same model, by default with the questions and `by_length`."""

    def make(config, **options):
        given = {"model": copy.deepcopy(_untaught), "tokenizer": tokenizer}
        if "environment" not in options:
            given |= {"dataset": QUESTIONS_OF_ONE_KIND, "reward_fn": by_length}
        return RayPPOTrainer(config, **given | options)

    return make


class Watch:
    """Keeps every iteration's episodes, the weights that it began with, and the batch that was learned from."""

    def __init__(self, trainer):
        self.episodes, self.weights, self.batches = [], [], []
        score, gather = trainer.learner.score, trainer.rollout

        def scored(batch):
            self.weights.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
            batch, figures = score(batch)
            self.batches.append(batch)
            return batch, figures

        def rollout():
            data = gather()
            self.episodes.append(list(data))
            return data

        trainer.learner.score, trainer.rollout = scored, rollout


# -- what is learned from ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        ("gae", {"deterministic": True}),
        ("grpo", {"deterministic": False, "overlap": False}),
        ("grpo", {"deterministic": False, "overlap": True}),
        pytest.param("gae", {"deterministic": False, "overlap": True}, marks=pytest.mark.slow),
    ],
    ids=["deterministic", "in turns", "overlapping", "overlapping, with a critic"],
)
def test_every_group_is_learned_from_once_and_whole_or_counted(estimator, options, make):
    config = settings(adv_estimator=estimator, group_size=2 if estimator == "grpo" else 1, **options)
    with make(config) as trainer:
        before = weights(trainer)
        watch = Watch(trainer)
        history = trainer.fit()
        assert not torch.equal(weights(trainer), before)
        stream = trainer.source.stream
        assert (stream.num_open, stream.num_unfinished) == (0, 0)
        begun = stream.next_position
    size = config.training.episodes_per_task
    groups = Counter(t.group for episodes in watch.episodes for t in episodes)
    assert set(groups.values()) == {size} and sorted(groups) == list(range(begun))
    tasks = {t.group: t.task.task_id for episodes in watch.episodes for t in episodes}
    for figures, episodes in zip(history, watch.episodes, strict=True):
        dropped = figures.get("batch/num_flat_groups", 0) * size
        assert figures["batch/num_episodes"] + dropped == len(episodes) == 4
        assert figures["staleness/max"] <= 2
    assert max(figures["staleness/mean"] for figures in history) > 0
    passes = [sorted(tasks.get(number, "?") for number in range(start, start + 5)) for start in range(0, 20, 5)]
    assert sum("?" not in found and len(set(found)) == 5 for found in passes) >= 2


@pytest.mark.parametrize("overlap", [pytest.param(False, marks=pytest.mark.slow), True])
def test_every_token_knows_the_weights_that_sampled_it_and_is_weighed_by_its_own_ratio(overlap, make, untaught):
    """Log-probabilities under the weights of a token's version are the sampled ones; the ratio of those before the update
    to them, cut at 2, is what the token's loss is multiplied by."""
    with make(settings(deterministic=False, overlap=overlap)) as trainer:
        watch = Watch(trainer)
        history = trainer.fit()
    probe = untaught["model"]
    num_older, shift = 0, 0.0
    for iteration, batch in enumerate(watch.batches):
        usable = [t for t in watch.episodes[iteration] if t.reward is not None]
        versions = torch.tensor([version for t in usable for version in t.segments[0].policy_versions])
        under = {version: logprobs(probe, watch.weights[version], batch) for version in range(iteration + 1)}
        for version, found in under.items():
            own = batch.loss_mask & (versions == version)
            if own.any():
                assert (found - batch.sampled_logprobs)[own].abs().max() < logit_tolerance(probe, 256)
        older = batch.loss_mask & (versions < iteration)
        assert torch.equal(batch.ages, (iteration - versions) * batch.loss_mask)
        expected = (under[iteration] - batch.sampled_logprobs).exp().clamp(max=2.0)
        torch.testing.assert_close(
            batch.rollout_weights[batch.loss_mask], expected[batch.loss_mask], rtol=1e-3, atol=1e-4
        )
        if older.any():
            num_older += int(older.sum())
            shift = max(shift, float((under[iteration] - batch.sampled_logprobs)[older].abs().max()))
            assert history[iteration]["logprob_difference_older_max"] < logit_tolerance(probe, 256)
        newest = history[iteration]["logprob_difference_max"]
        assert math.isnan(newest) or newest < logit_tolerance(probe, 256)
        ages = (iteration - versions)[batch.loss_mask].double()
        assert history[iteration]["staleness/mean"] == pytest.approx(float(ages.mean()))
        assert history[iteration]["staleness/max"] == int(ages.max())
    assert num_older > 20 and shift > 1e-2  # or the test would show nothing


@torch.no_grad()
def logprobs(model, state, batch: TokenBatch):
    model.load_state_dict(state)
    found = torch.zeros(batch.num_tokens)
    found[batch.loss_mask] = token_outputs(model.eval(), batch).logprobs
    return found


@pytest.mark.slow
def test_an_evaluation_between_two_iterations_changes_neither(make):
    histories = []
    for validate_every in (0, 1):
        config = settings(num_iters=3, validate_every=validate_every, num_validation_questions=3)
        with make(config, validation=QUESTIONS) as trainer:
            histories.append(json.dumps(without_clocks(trainer.fit())))  # NaN equals NaN
    assert histories[0] == histories[1]


def test_max_seconds_counts_the_wall_clock_because_phases_overlap(make):
    with make(settings(num_iters=50)) as trainer:
        (first,) = trainer.fit(max_seconds=1e-9)
        assert first["time/wall"] > first["time/update_seconds"]
        trainer.metrics_history[0]["time/wall"] = 1e6
        assert len(trainer.fit(max_seconds=1e5)) == 1


def test_a_rollout_by_hand_is_refused_because_episodes_would_go_on_between_two_calls(make):
    message = r"outside fit\(\) with training.max_staleness=2.*set it to 0"
    with make(settings()) as trainer, pytest.raises(SettingsError, match=message):
        trainer.rollout()


def test_overlap_that_is_not_possible_is_refused_before_the_start(make, monkeypatch):
    with pytest.raises(SettingsError, match=r"overlap=true with inference.deterministic"):
        make(settings(overlap=True))
    monkeypatch.setattr(overlapping, "num_cores", lambda: 1)
    with pytest.raises(SettingsError, match=r"overlap=true with 1 CPU core.*set inference.overlap to false"):
        make(settings(overlap=True, deterministic=False))


def test_the_learner_ends_if_no_engine_starts(make, monkeypatch):
    closed = []
    monkeypatch.setattr(Learner, "close", lambda learner: closed.append(learner))
    monkeypatch.setattr(workers, "open_sources", lambda *_, **options: options["no engine"])
    with pytest.raises(KeyError, match="no engine"):
        make(settings())
    assert len(closed) == 1


def test_overlap_that_is_assigned_between_two_fits_is_followed_or_refused(make):
    with make(settings(deterministic=False, overlap=True)) as first:
        for number, overlap in enumerate([True, False, "auto", True], start=1):
            first.config.inference.overlap = overlap
            first.fit(number, num_iters_per_epoch=1)
            assert first.source.stream.overlaps == (overlap is True)
    with make(settings(deterministic=False, overlap=False)) as second:
        for _ in range(2):
            second.config.inference.overlap = True
            with pytest.raises(SettingsError, match=r"overlap=true was assigned.*give it to the constructor"):
                second.fit(1, num_iters_per_epoch=1)
        second.config.inference.overlap = "auto"
        second.fit(1, num_iters_per_epoch=1)
        assert not second.source.stream.overlaps


# -- from one process to the next ----------------------------------------------------------------------------------


def stop(trainer):
    trainer.save_checkpoint()
    raise KeyboardInterrupt


def test_a_run_that_was_stopped_and_gone_on_with_is_the_run_that_was_not(make, tmp_path):
    def trainer(name, **options):
        config = settings(num_iters=4, adv_estimator="grpo", group_size=2)
        config.checkpoint.save_interval = 10
        return make(config, run_path=tmp_path / name, **options)

    with trainer("whole") as whole:
        whole.fit()
    with trainer("stopped", callbacks=OnStep(stop, 2)) as stopped:
        with pytest.raises(KeyboardInterrupt):
            stopped.fit()
        num_unfinished = stopped.source.stream.num_unfinished
        assert num_unfinished
    with trainer("stopped", resume=True) as resumed:
        assert resumed.iteration == 2
        assert resumed.source.stream.num_unfinished == num_unfinished
        resumed.fit()
    histories = [without_clocks(each.metrics_history) for each in (resumed, whole)]
    for figures in [figures for history in histories for figures in history]:  # a new process has no older weights
        figures.pop("logprob_difference_older_max", None), figures.pop("logprob_difference_older_mean", None)
    assert histories[0] == histories[1]
    assert max(figures["staleness/mean"] for figures in whole.metrics_history) > 0
    first, second = (tmp_path / name for name in ("whole", "stopped"))
    shown = [without_clocks(lines(run / "trajectories.jsonl")) for run in (first, second)]
    assert shown[0] == shown[1]
    assert (first / "policy/model.safetensors").read_bytes() == (second / "policy/model.safetensors").read_bytes()


def test_after_a_restart_with_a_smaller_staleness_what_is_too_old_starts_again(make, tmp_path, caplog):
    def trainer(max_staleness, **options):
        return make(settings(num_iters=5, max_staleness=max_staleness), run_path=tmp_path / "run", **options)

    with trainer(4, callbacks=OnStep(stop, 3)) as first, pytest.raises(KeyboardInterrupt):
        first.fit()
    with trainer(1, resume=True, allow_changes=True) as second:
        history = second.fit()
        assert second.source.stream.num_open == 0
    assert "start again: they are too old for this training.max_staleness" in caplog.text
    assert all(figures["staleness/max"] <= 1 for figures in history[3:]) and len(history) == 5
    assert sorted(row["group"] for row in lines(tmp_path / "run/trajectories.jsonl")) == list(range(20))


@pytest.mark.parametrize("is_changed", [False, True], ids=["the same", "another learning rate"])
def test_a_run_killed_before_its_first_checkpoint_plays_nothing_again_unless_it_learns_otherwise_now(
    is_changed, make, tmp_path
):
    scored = []

    def by_length_once(trajectory):
        scored.append(trajectory.group)
        return by_length(trajectory)

    def trainer(**options):
        config = settings(num_iters=5, deterministic=False, overlap=False)
        config.training.learning_rate = 2e-3 if is_changed and "resume" in options else 3e-3
        return make(config, reward_fn=by_length_once, run_path=tmp_path / "run", **options)

    with trainer(callbacks=OnStep(power_cut, 2)) as first, pytest.raises(RuntimeError, match="power cut"):
        first.fit()
    known = [without_clocks(first.metrics_history)[0]["reward/mean"], set(scored)]
    with trainer(resume=True, allow_changes=True) as second:
        assert second.iteration == 0
        history = second.fit()
    again = {group for group, number in Counter(scored).items() if number > 1}
    assert again == (known[1] if is_changed else set())
    assert len(history) == 5 and (is_changed or history[0]["reward/mean"] == known[0])
    assert sorted(set(scored)) == list(range(20)) and not any(row["staleness/num_dropped"] for row in history)


def test_episodes_of_an_environment_begin_anew_after_a_restart_and_none_is_lost(make, tmp_path):
    def trainer(**options):
        return make(settings(num_iters=5), environment=Colours, run_path=tmp_path / "run", **options)

    def prompts(stream):
        """The prompts of the open groups' episodes, by the group's number."""
        groups = stream.state()["groups"]
        return {group["position"]: [episode["task"]["prompt"] for episode in group["episodes"]] for group in groups}

    with trainer(callbacks=OnStep(stop, 2)) as first:
        with pytest.raises(KeyboardInterrupt):
            first.fit()
        known = prompts(first.source.stream)
        assert known
    with trainer(resume=True) as second:
        assert prompts(second.source.stream) == known
        history = second.fit()
        assert [(row["episode/failed"], row["batch/num_episodes"]) for row in history] == [(0, 4)] * 5


@pytest.mark.slow
def test_a_checkpoint_with_open_episodes_can_be_gone_on_with_without_them(make, tmp_path, caplog):
    save = OnStep(lambda trainer: trainer.save_checkpoint(tmp_path / "here"), 2)
    with make(settings(num_iters=4), callbacks=save) as trainer:
        trainer.fit()
    with make(settings(max_staleness=0, num_iters=3)) as trainer:
        with caplog.at_level(logging.WARNING):
            trainer.load_checkpoint(tmp_path / "here")
        assert "episodes of the checkpoint that are not trained on yet are dropped" in caplog.text
        assert len(trainer.fit()) == 3


# -- faults that change no shape and raise no error ---------------------------------------------------------------


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
def test_a_planted_fault_stops_the_run_at_the_next_update(plant, overlap, make, monkeypatch):
    training = {"batch_size": 8, "mini_batch_size": 8, "learning_rate": 1e-2, "adv_estimator": "reinforce_plus_plus"}
    with make(settings(num_iters=8, deterministic=False, overlap=overlap, **training)) as trainer:
        if plant is None:
            history = trainer.fit()
            assert len(history) == 8 and 0 < max(row["staleness/max"] for row in history) <= 2
            return
        plant(trainer, monkeypatch)
        message = r"tokens of the (newest|older) weights differ|log-probabilities differ"
        with pytest.raises(TrainingStoppedError, match=message):
            trainer.fit()
        assert 1 <= trainer.iteration <= 3


# -- a learner in a process of its own -----------------------------------------------------------------------------


def kill(trainer):
    os.kill(trainer.learner.workers.process_id, signal.SIGKILL)


@pytest.mark.slow
def test_a_learner_that_is_killed_is_started_again_from_the_newest_checkpoint(make, tmp_path, caplog, monkeypatch):
    config = settings(num_iters=6, deterministic=False, overlap=True)
    config.checkpoint.save_interval = 2
    sampling, restore = [], CheckpointManager.restore

    def restored(*arguments):
        sampling.append(trainer.source.stream.engine.is_running)
        return restore(*arguments)

    monkeypatch.setattr(CheckpointManager, "restore", restored)
    with make(config, run_path=tmp_path / "run", callbacks=OnStep(kill, 3, 5)) as trainer:
        history = trainer.fit()
    assert sampling == [False, False]  # nothing is sampled while its weights change
    assert caplog.text.count("the learner's process was lost in 'score' (exit code -9)") == 2
    assert [figures["iteration"] for figures in history] == [1, 2, 3, 4, 5, 6]
    assert sorted(row["group"] for row in lines(tmp_path / "run/trajectories.jsonl")) == list(range(24))


@pytest.mark.slow
def test_a_learner_that_is_killed_before_the_first_checkpoint_ends_the_run_with_the_remedy(make, tmp_path):
    config = settings(num_iters=6, deterministic=False, overlap=True)
    with (
        make(config, run_path=tmp_path / "run", callbacks=OnStep(kill, 1)) as trainer,
        pytest.raises(LearnerLostError, match=r"exit code -9.*continue from the last checkpoint"),
    ):
        trainer.fit()


@pytest.mark.slow
def test_supervised_steps_are_taken_here_and_the_learner_apart_goes_on_with_their_policy(make):
    """Nothing is sampled meanwhile, so they have all cores of this process."""
    policies, demonstrations = [], {"num_steps": 2, "batch_tokens": 300, "warmup_steps": 0}
    for max_staleness in (2, 0):
        with make(settings(num_iters=1, max_staleness=max_staleness, deterministic=False)) as trainer:
            process_id = trainer.learner.workers.process_id if max_staleness else None
            trainer.sft(DEMONSTRATIONS, **demonstrations)
            policies.append(weights(trainer))
            if max_staleness:
                assert not Path(f"/proc/{process_id}").exists()
                assert trainer.learner.workers.process_id != process_id
                trainer.fit()
                assert not torch.equal(weights(trainer), policies[0])
    assert torch.equal(*policies)


def test_cleaning_up_ends_the_open_episodes_and_the_learner(make):
    trainer = make(settings(deterministic=False, overlap=True), callbacks=OnStep(stop, 1))
    with pytest.raises(SettingsError, match="save_checkpoint"):
        trainer.fit()
    stream, process_id = trainer.source.stream, trainer.learner.workers.process_id
    assert stream.num_open > 0
    trainer.cleanup()
    trainer.cleanup()
    assert (stream.num_open, stream.num_unfinished) == (0, 0)
    assert not Path(f"/proc/{process_id}").exists()
