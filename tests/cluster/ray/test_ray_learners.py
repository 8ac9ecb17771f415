"""Learner ranks as Ray actors: what one process learns, two do; one that dies is told with what to do then."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ray_worlds import Echo, settings
from test_ray_training import run

from midthought import RayPPOTrainer
from midthought.errors import EngineError, SettingsError


def config(num_learners: int, **sections: Any) -> Any:
    ray = {"use_ray": False, "num_learners": num_learners, "cpus_per_learner": 0.5}
    return settings(training={"num_train_iters": 2}, model={"critic": "separate"}, ray=ray, **sections)


def test_two_iterations_with_two_learner_ranks_are_those_of_this_process(cluster, policy, tokenizer):
    near = run(policy.double(), tokenizer, config=config(1), env=Echo)
    far = run(policy.double(), tokenizer, config=config(2), env=Echo)
    assert len(far[0]) == len(near[0]) == 2
    for name in ("loss", "grad_norm", "value_loss", "reward/mean", "logprob_difference_max"):
        assert [f[name] for f in far[0]] == pytest.approx([f[name] for f in near[0]], rel=1e-5, abs=1e-6)
    assert max(float((far[2][name] - tensor).abs().max()) for name, tensor in near[2].items()) < 1e-6
    assert any((near[2][name] != tensor).any() for name, tensor in policy.state_dict().items())


@pytest.mark.parametrize("num_learners", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_critic_on_a_rank_of_its_own_learns_what_it_learns_in_this_process(num_learners, cluster, policy, tokenizer):
    apart = config(num_learners)
    apart.ray.num_critics = 1
    near = run(policy.double(), tokenizer, config=config(1), env=Echo)
    far = run(policy.double(), tokenizer, config=apart, env=Echo)
    for name in ("loss", "grad_norm", "critic_grad_norm", "value_loss", "reward/mean"):
        assert [f[name] for f in far[0]] == pytest.approx([f[name] for f in near[0]], rel=1e-5, abs=1e-6)
    assert max(float((far[2][name] - tensor).abs().max()) for name, tensor in near[2].items()) < 1e-6


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"critic": "shared"}}, r"num_critics=1, but model\.critic='shared'"),
        (
            {"training": {"adv_estimator": "grpo", "group_size": 2}},
            r"num_critics=1, but training\.adv_estimator='grpo' has no critic",
        ),
    ],
)
def test_critic_ranks_without_a_critic_of_its_own_are_refused(sections, message, policy, tokenizer):
    asked = settings(ray={"use_ray": False, "num_critics": 1}, **({"model": {"critic": "separate"}} | sections))
    with pytest.raises(SettingsError, match=message):
        RayPPOTrainer(asked, env=Echo, model=policy, tokenizer=tokenizer)


def test_a_rank_that_dies_ends_the_run_with_the_way_to_go_on_and_a_checkpoint_goes_on(
    cluster, policy, tokenizer, tmp_path
):
    options = {"env": Echo, "tokenizer": tokenizer}
    with RayPPOTrainer(config(2), model=copy.deepcopy(policy), **options) as trainer:
        trainer.train_step(trainer.rollout())
        trainer.save_checkpoint(tmp_path / "one")
        cluster.kill(trainer.learner._workers._actors[1])
        with pytest.raises(EngineError, match=r"learner ranks was lost .* continue from the last checkpoint"):
            trainer.train_step(trainer.rollout())
        with pytest.raises(EngineError, match="ranks have ended; continue from the last checkpoint"):
            trainer.learner.state_dict()
    with RayPPOTrainer(config(2), model=copy.deepcopy(policy), **options) as trainer:
        trainer.load_checkpoint(tmp_path / "one")
        assert trainer.train_step(trainer.rollout())["num_optimizer_steps"] == 1
        assert trainer.iteration == 2
        assert trainer.learner.num_steps == 2


def test_ranks_that_have_no_room_are_an_error_that_names_their_setting(cluster, policy, tokenizer):
    wide = config(2)
    wide.ray.cpus_per_learner, wide.ray.start_timeout_seconds = 3.0, 1.0
    with RayPPOTrainer(wide, env=Echo, model=policy, tokenizer=tokenizer) as trainer:
        data = trainer.rollout()
        with pytest.raises(SettingsError, match=r"ray\.num_learners=2 with 3 CPUs .*ray\.cpus_per_learner"):
            trainer.train_step(data)


@pytest.mark.parametrize("name", ["compile", "offload_reference"])
def test_what_ranks_do_not_do_is_refused(name, policy, tokenizer):
    asked = config(2)
    setattr(asked.training, name, True)
    with pytest.raises(SettingsError, match=rf"ray\.num_learners=2 with training\.{name}"):
        RayPPOTrainer(asked, env=Echo, model=policy, tokenizer=tokenizer)
