"""Training with rollouts on Ray: the same run as in this process, with tools, environments and data sets."""

import math
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray_worlds
from precision import logit_tolerance
from ray_worlds import Echo, LoggedReward, settings

from midthought import RayPPOTrainer


def without_times(figures: dict[str, float]) -> dict[str, str]:
    return {name: repr(value) for name, value in figures.items() if not name.startswith("time/")}


@pytest.fixture(scope="module")
def trained(cluster: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, SimpleNamespace]:
    """By `ray.use_ray`: two iterations, and the second one again from a checkpoint. The trainer is cleaned up."""
    found = {}
    for use_ray in (True, False):
        folder = tmp_path_factory.mktemp("run")
        config = settings(training={"num_train_iters": 2}, ray={"use_ray": use_ray})
        policy = ray_worlds.policy(tokenizer)
        reward = LoggedReward(folder / "processes", seconds=0.0)
        with RayPPOTrainer(config, Echo, reward, model=policy, tokenizer=tokenizer) as trainer:
            figures = [trainer.train_step(trainer.rollout())]
            trainer.save_checkpoint(folder / "one")
            figures.append(trainer.train_step(trainer.rollout()))
            judged = trainer.evaluate(2)
            weights = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
            trainer.load_checkpoint(folder / "one")
            again = trainer.train_step(trainer.rollout())
            processes = {int(line.split()[0]) for line in (folder / "processes").read_text().splitlines()}
            running = {process: is_running(process) for process in processes}
        trainer.cleanup()
        found[use_ray] = SimpleNamespace(
            figures=figures, judged=judged, weights=weights, again=again, running=running, policy=policy
        )
    return found


def is_running(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def test_two_iterations_with_one_worker_are_those_of_this_process(trained):
    far, near = trained[True], trained[False]
    assert [without_times(figures) for figures in far.figures] == [without_times(figures) for figures in near.figures]
    assert without_times(far.judged) == without_times(near.judged)
    assert all((far.weights[name] == tensor).all() for name, tensor in near.weights.items())
    assert math.isfinite(far.figures[-1]["loss"])
    assert far.figures[-1]["logprob_difference_max"] < logit_tolerance(far.policy, 256)


@pytest.mark.parametrize("use_ray", [True, False])
def test_a_checkpoint_goes_on_as_if_it_had_never_stopped(use_ray, trained):
    assert without_times(trained[use_ray].again) == without_times(trained[use_ray].figures[1])


def test_cleaning_up_ends_the_worker_and_leaves_the_cluster(trained, cluster):
    assert set(trained[False].running) == {os.getpid()}
    ((process, was_running),) = trained[True].running.items()
    assert was_running and process != os.getpid()
    deadline = time.monotonic() + 60
    while is_running(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(process)
    assert cluster.is_initialized()
