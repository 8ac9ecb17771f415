"""Learner ranks as Ray actors: what one process learns, two do; one that dies is told with what to do then."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray_worlds
from ray_worlds import Echo, settings

from midthought import RayPPOTrainer
from midthought.errors import EngineError, SettingsError

FIGURES = ("loss", "grad_norm", "value_loss", "reward/mean", "logprob_difference_max")


def config(num_learners: int, **sections: Any) -> Any:
    ray = {"use_ray": False, "num_learners": num_learners, "cpus_per_learner": 0.5}
    return settings(training={"num_train_iters": 2}, model={"critic": "separate"}, ray=ray, **sections)


@pytest.fixture(scope="module")
def near(tokenizer: Any) -> Any:
    """Figures and weights of two iterations in this process."""
    model = ray_worlds.policy(tokenizer).double()
    with RayPPOTrainer(config(1), environment=Echo, model=model, tokenizer=tokenizer) as trainer:
        return trainer.fit(), trainer.model.state_dict()


@pytest.fixture(scope="module")
def on_ranks(cluster: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A trainer with two ranks after two iterations, with a checkpoint of the first one."""
    checkpoint = tmp_path_factory.mktemp("ranks") / "one"
    others = actor_processes()
    model = ray_worlds.policy(tokenizer).double()
    with RayPPOTrainer(config(2), environment=Echo, model=model, tokenizer=tokenizer) as trainer:
        figures = [trainer.train_step(trainer.rollout())]
        trainer.save_checkpoint(checkpoint)
        figures.append(trainer.train_step(trainer.rollout()))
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        yield SimpleNamespace(
            trainer=trainer,
            figures=figures,
            weights=weights,
            checkpoint=checkpoint,
            processes=actor_processes() - others,
        )


def actor_processes() -> set[int]:
    """Processes of the actors of the cluster that this process has started. Ray writes their class into the command line."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                title = (folder / "cmdline").read_bytes()
                if title.startswith(b"ray::") and not title.startswith(b"ray::IDLE"):
                    found |= {int(folder.name)} if parent(parent(int(folder.name))) == os.getpid() else set()
    return found


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
def test_two_iterations_with_two_learner_ranks_are_those_of_this_process(on_ranks, near, tokenizer):
    assert len(on_ranks.figures) == len(near[0]) == 2
    for name in FIGURES:
        assert [f[name] for f in on_ranks.figures] == pytest.approx([f[name] for f in near[0]], rel=1e-5, abs=1e-6)
    assert max(float((on_ranks.weights[name] - tensor).abs().max()) for name, tensor in near[1].items()) < 1e-6
    initial = ray_worlds.policy(tokenizer).double().state_dict()
    assert any((near[1][name] != tensor).any() for name, tensor in initial.items())


@pytest.mark.slow
def test_ranks_go_on_from_a_checkpoint_and_one_that_dies_ends_the_run_with_the_way_to_go_on(on_ranks, tokenizer):
    trainer = on_ranks.trainer
    trainer.load_checkpoint(on_ranks.checkpoint)
    again = trainer.train_step(trainer.rollout())
    assert (trainer.iteration, trainer.learner.num_steps, again["num_optimizer_steps"]) == (2, 2, 1)
    for name in FIGURES:
        assert again[name] == pytest.approx(on_ranks.figures[1][name], rel=1e-9, abs=1e-12)

    assert len(on_ranks.processes) == 2
    os.kill(max(on_ranks.processes), signal.SIGKILL)
    with pytest.raises(EngineError, match=r"learner ranks was lost .* continue from the last checkpoint"):
        trainer.train_step(trainer.rollout())
    with pytest.raises(EngineError, match="ranks have ended; continue from the last checkpoint"):
        trainer.learner.state_dict()

    model = ray_worlds.policy(tokenizer).double()
    with RayPPOTrainer(config(1), environment=Echo, model=model, tokenizer=tokenizer) as alone:
        alone.load_checkpoint(on_ranks.checkpoint)
        figures = alone.train_step(alone.rollout())
        assert (alone.iteration, alone.learner.num_steps) == (2, 2)
    for name in FIGURES:
        assert figures[name] == pytest.approx(on_ranks.figures[1][name], rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_ranks_that_have_no_room_are_an_error_that_names_their_setting(cluster, policy, tokenizer):
    wide = config(2)
    wide.ray.cpus_per_learner, wide.ray.start_timeout_seconds = 3.0, 1.0
    with RayPPOTrainer(wide, environment=Echo, model=policy, tokenizer=tokenizer) as trainer:
        data = trainer.rollout()
        with pytest.raises(SettingsError, match=r"ray\.num_learners=2 with 3 CPUs .*ray\.cpus_per_learner"):
            trainer.train_step(data)


@pytest.mark.parametrize(
    ("name", "value"), [("offload", "reference"), ("offload", "optimizer"), ("optimizer", "adamw_8bit")]
)
def test_what_ranks_do_not_do_is_refused(name, value, policy, tokenizer):
    asked = config(2)
    setattr(asked.training, name, value)
    with pytest.raises(
        SettingsError, match=rf"ray\.num_learners=2 with training\.{name}={value!r}: .*set training\.{name} to"
    ):
        RayPPOTrainer(asked, environment=Echo, model=policy, tokenizer=tokenizer)
