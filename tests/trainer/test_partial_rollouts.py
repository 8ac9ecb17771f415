"""Training with `inference.partial_rollouts`: what is carried over is learned from once, weighed rightly, and survives a
restart. Episodes are of random length: the model is one that was made and taught nothing."""

from __future__ import annotations

import copy
import json
import logging
import math
from collections import Counter

import pytest
import torch
from precision import logit_tolerance
from small_environments import QUESTIONS, Colours, weights, without_clocks

from midthought import RayPPOTrainer, RolloutData, TrainerCallback, create_default_config
from midthought.learning.batch import TokenBatch
from midthought.learning.model import token_outputs
from midthought.models.small_model import make_policy

QUESTIONS_OF_ONE_KIND = [{"question": f"Say {number}.", "answer": "red"} for number in range(5)]


@pytest.fixture(scope="module")
def _untaught(tokenizer):
    return make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=512, seed=0)


@pytest.fixture
def untaught(_untaught, tokenizer):
    return {"model": copy.deepcopy(_untaught), "tokenizer": tokenizer}


def settings(*, partial=True, deterministic=True, num_iters=6, **training):
    training = {"batch_size": 4, "mini_batch_size": 4, "num_train_iters": num_iters, "validate_every": 0} | training
    return create_default_config(
        preset="tiny",
        inference={
            "max_tokens": 96,
            "max_segment_length": 8,
            "deterministic": deterministic,
            "partial_rollouts": partial,
        },
        training={"learning_rate": 3e-3, **training},
    )


def by_length(trajectory):
    return float(trajectory.num_sampled % 3)


class Watch(TrainerCallback):
    """Keeps every iteration's episodes, the weights that it began with, and the batch that was learned from."""

    def __init__(self):
        self.episodes, self.weights, self.batches = [], [], []

    def follow(self, trainer):
        score = trainer.learner.score

        def scored(batch):
            self.weights.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
            batch, figures = score(batch)
            self.batches.append(batch)
            return batch, figures

        trainer.learner.score = scored
        gather = trainer.rollout

        def rollout():
            data = gather()
            self.episodes.append(list(data))
            return data

        trainer.rollout = rollout
        return self


def prompts(stream):
    """The prompts of the open groups' episodes, by the group's number."""
    groups = stream.state()["groups"]
    return {group["position"]: [episode["task"]["prompt"] for episode in group["episodes"]] for group in groups}


# -- what is learned from ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("estimator", "deterministic"), [("gae", True), ("grpo", False)])
def test_every_group_is_learned_from_once_and_whole_or_counted(estimator, deterministic, untaught):
    config = settings(deterministic=deterministic, adv_estimator=estimator, group_size=2 if estimator == "grpo" else 1)
    with RayPPOTrainer(config, dataset=QUESTIONS_OF_ONE_KIND, reward_fn=by_length, **untaught) as trainer:
        before = weights(trainer)
        watch = Watch().follow(trainer)
        history = trainer.fit()
        assert not torch.equal(weights(trainer), before)
        stream = trainer.source.stream
        begun, carried = stream.next_position, {group["position"] for group in stream.state()["groups"]}
    size = config.training.episodes_per_task
    groups = Counter(t.group for episodes in watch.episodes for t in episodes)
    assert set(groups.values()) == {size}
    tasks = {t.group: t.task.task_id for episodes in watch.episodes for t in episodes}
    for figures, episodes in zip(history, watch.episodes, strict=True):
        dropped = figures.get("batch/num_flat_groups", 0) * size
        assert figures["batch/num_episodes"] + dropped == len(episodes)
        assert len(episodes) >= 4
        assert figures["partial/max_staleness"] <= config.inference.partial_max_carry_overs
    assert len(watch.episodes) == 6
    assert sorted([*groups, *carried]) == list(range(begun))
    assert max(figures["partial/stale_token_share"] for figures in history) > 0
    passes = [sorted(tasks.get(number, "?") for number in range(start, start + 5)) for start in range(0, 20, 5)]
    assert sum("?" not in found and len(set(found)) == 5 for found in passes) >= 2


def test_every_token_knows_the_weights_that_sampled_it_and_is_weighed_by_its_own_ratio(untaught):
    """Log-probabilities under the weights of a token's version are the sampled ones; the ratio of those before the update
    to them, cut at 2, is what the token's loss is multiplied by."""
    with RayPPOTrainer(settings(), dataset=QUESTIONS_OF_ONE_KIND, reward_fn=by_length, **untaught) as trainer:
        watch = Watch().follow(trainer)
        history = trainer.fit()
    probe = copy.deepcopy(untaught["model"])
    num_stale, shift = 0, 0.0
    for iteration, batch in enumerate(watch.batches):
        usable = [t for t in watch.episodes[iteration] if t.reward is not None]
        versions = torch.tensor([version for t in usable for version in t.segments[0].policy_versions])
        under = {version: logprobs(probe, watch.weights[version], batch) for version in range(iteration + 1)}
        for version, found in under.items():
            own = batch.loss_mask & (versions == version)
            if own.any():
                assert (found - batch.sampled_logprobs)[own].abs().max() < logit_tolerance(probe, 256)
        stale = batch.loss_mask & (versions < iteration)
        assert torch.equal(batch.is_stale, stale)
        expected = (under[iteration] - batch.sampled_logprobs).exp().clamp(max=2.0)
        torch.testing.assert_close(
            batch.rollout_weights[batch.loss_mask], expected[batch.loss_mask], rtol=1e-3, atol=1e-4
        )
        if stale.any():
            num_stale += int(stale.sum())
            shift = max(shift, float((under[iteration] - batch.sampled_logprobs)[stale].abs().max()))
        fresh = history[iteration]["logprob_difference_max"]
        assert math.isnan(fresh) or fresh < logit_tolerance(probe, 256)
        share = int(stale.sum()) / int(batch.loss_mask.sum())
        assert history[iteration]["partial/stale_token_share"] == pytest.approx(share)
        assert history[iteration]["partial/max_staleness"] == iteration - int(versions[batch.loss_mask].min())
    assert num_stale > 20 and shift > 1e-2  # or the test would show nothing


@torch.no_grad()
def logprobs(model, state, batch: TokenBatch):
    model.load_state_dict(state)
    found = torch.zeros(batch.num_tokens)
    found[batch.loss_mask] = token_outputs(model.eval(), batch).logprobs
    return found


@pytest.mark.slow
def test_an_evaluation_between_two_iterations_changes_neither(_untaught, tokenizer):
    histories = []
    for validate_every in (0, 1):
        config = settings(num_iters=3, validate_every=validate_every, num_validation_questions=3)
        model = copy.deepcopy(_untaught)
        options = {"dataset": QUESTIONS_OF_ONE_KIND, "reward_fn": by_length, "validation": QUESTIONS}
        with RayPPOTrainer(config, model=model, tokenizer=tokenizer, **options) as trainer:
            histories.append(without_clocks(trainer.fit()))
    assert histories[0] == histories[1]


def test_asking_for_a_rollout_again_gives_the_same_episodes_until_they_were_learned_from(untaught):
    with RayPPOTrainer(settings(), dataset=QUESTIONS_OF_ONE_KIND, reward_fn=by_length, **untaught) as trainer:
        first = trainer.rollout()
        assert trainer.rollout() is first
        trainer.train_step(RolloutData(trajectories=list(first)))
        assert not {id(t) for t in trainer.rollout()} & set(map(id, first))


# -- from one process to the next ----------------------------------------------------------------------------------


def test_a_run_that_was_stopped_and_gone_on_with_is_the_run_that_was_not(_untaught, tokenizer, tmp_path):
    def trainer(name, num_iters=4, **options):
        config = settings(num_iters=num_iters, adv_estimator="grpo", group_size=2)
        config.checkpoint.save_interval = 10
        options |= {"dataset": QUESTIONS_OF_ONE_KIND, "reward_fn": by_length, "run_path": tmp_path / name}
        return RayPPOTrainer(config, model=copy.deepcopy(_untaught), tokenizer=tokenizer, **options)

    with trainer("whole") as whole:
        whole.fit()
    with trainer("stopped", num_iters=2) as stopped:
        stopped.fit()
        num_unfinished = stopped.source.stream.num_unfinished
    with trainer("stopped", resume=True) as resumed:
        assert resumed.iteration == 2
        assert resumed.source.stream.num_unfinished == num_unfinished
        resumed.fit()
    assert without_clocks(resumed.metrics_history) == without_clocks(whole.metrics_history)
    assert max(figures["partial/stale_token_share"] for figures in whole.metrics_history) > 0
    first, second = (
        [without_clocks([json.loads(line)]) for line in (tmp_path / name / "trajectories.jsonl").open()]
        for name in ("whole", "stopped")
    )
    assert first == second
    names = [tmp_path / name / "policy/model.safetensors" for name in ("whole", "stopped")]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_episodes_that_were_rolled_out_and_not_learned_from_are_in_the_checkpoint(_untaught, tokenizer, tmp_path):
    def trainer():
        options = {"dataset": QUESTIONS_OF_ONE_KIND, "reward_fn": by_length, "tokenizer": tokenizer}
        return RayPPOTrainer(settings(), model=copy.deepcopy(_untaught), **options)

    with trainer() as first, trainer() as second:
        first.train_step(first.rollout())
        rolled_out = first.rollout()
        first.save_checkpoint(tmp_path / "here")
        second.load_checkpoint(tmp_path / "here")
        again = second.rollout()
        assert [t.token_ids for t in again] == [t.token_ids for t in rolled_out]
        first.train_step(rolled_out)
        second.train_step(again)
        first.train_step(first.rollout())
        second.train_step(second.rollout())
        last = [without_clocks(trainer.metrics_history)[-1] for trainer in (first, second)]
        for figures in last:
            del figures["partial/num_resumed"]
        assert last[0] == last[1]


def test_episodes_of_an_environment_begin_anew_after_a_restart_and_none_is_lost(_untaught, tokenizer, tmp_path):
    def trainer():
        return RayPPOTrainer(settings(num_iters=4), Colours, model=copy.deepcopy(_untaught), tokenizer=tokenizer)

    with trainer() as first, trainer() as second:
        stream = first.source.stream
        while not stream.num_unfinished:
            first.train_step(first.rollout())
        known = prompts(stream)
        first.save_checkpoint(tmp_path / "here")
        second.load_checkpoint(tmp_path / "here")
        assert prompts(second.source.stream) == known
        second.config.training.num_train_iters = first.iteration + 3
        history = second.fit()
        assert all(figures["episode/failed"] == 0 for figures in history)
        assert [figures["batch/num_episodes"] for figures in history] == [4] * (first.iteration + 3)


@pytest.mark.slow
def test_a_checkpoint_with_carried_episodes_can_be_gone_on_with_without_the_switch(
    _untaught, tokenizer, tmp_path, caplog
):
    options = {"dataset": QUESTIONS_OF_ONE_KIND, "reward_fn": by_length, "tokenizer": tokenizer}
    with RayPPOTrainer(settings(num_iters=2), model=copy.deepcopy(_untaught), **options) as trainer:
        trainer.fit()
        num_carried = trainer.source.stream.num_episodes
        trainer.save_checkpoint(tmp_path / "here")
    with RayPPOTrainer(settings(partial=False, num_iters=3), model=copy.deepcopy(_untaught), **options) as trainer:
        with caplog.at_level(logging.WARNING):
            trainer.load_checkpoint(tmp_path / "here")
        assert f"{num_carried} episodes that the checkpoint carries over are dropped" in caplog.text
        assert len(trainer.fit()) == 3
        trainer.save_checkpoint(tmp_path / "there")
    with RayPPOTrainer(settings(num_iters=5), model=copy.deepcopy(_untaught), **options) as trainer:
        trainer.load_checkpoint(tmp_path / "there")
        assert {t.group for t in trainer.rollout()} <= set(range(12, 18))


def test_cleaning_up_ends_what_is_carried_over(untaught):
    trainer = RayPPOTrainer(settings(), dataset=QUESTIONS_OF_ONE_KIND, reward_fn=by_length, **untaught)
    trainer.train_step(trainer.rollout())
    stream = trainer.source.stream
    assert stream.num_open > 0
    trainer.cleanup()
    trainer.cleanup()
    assert (stream.num_open, stream.num_unfinished) == (0, 0)
