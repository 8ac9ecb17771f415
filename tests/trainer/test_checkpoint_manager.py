import copy
import itertools
import json
import math
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from one_thread import in_one_thread
from small_environments import COLOURS, Colours, OnStep, lines, settings, without_clocks

from midthought import BaseEnvironment, RayPPOTrainer
from midthought.errors import CheckpointError
from midthought.learning.checkpoint_folder import save_checkpoint, step_paths
from midthought.models.small_model import make_policy


def steps(run):
    return [path.name for path in step_paths(run / "checkpoints/ppo")]


def four_iterations(estimator="gae"):
    config = settings(estimator, num_train_iters=4, validate_every=2, lr_schedule="linear", kl_coef=0.05)
    config.checkpoint.save_interval = 2
    return config


@pytest.fixture(scope="module")
def whole(_talker, tokenizer, tmp_path_factory) -> SimpleNamespace:
    """A run of four iterations: its folder, settings and metrics. Tests only read it."""
    path = tmp_path_factory.mktemp("runs") / "finished"
    given = {"model": copy.deepcopy(_talker), "tokenizer": tokenizer}
    with in_one_thread(), RayPPOTrainer(four_iterations(), Colours, run_path=path, **given) as trainer:
        return SimpleNamespace(path=path, config=trainer.config.to_dict(), history=trainer.fit())


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of its folder."""
    return Path(shutil.copytree(whole.path, tmp_path / "finished"))


# -- what stands in the folder -------------------------------------------------------------------------------------


def test_a_run_folder_holds_settings_metrics_episodes_summary_checkpoints_policy_and_report(whole):
    run, history = whole.path, whole.history
    assert yaml.safe_load((run / "config.yaml").read_text("utf-8")) == whole.config
    rows = lines(run / "metrics.jsonl")
    assert [(row["stage"], row["step"]) for row in rows] == [
        ("ppo", 1), ("ppo", 2), ("validation", 2), ("ppo", 3), ("ppo", 4), ("validation", 4)
    ]  # fmt: skip
    assert [row["reward/mean"] for row in rows if row["stage"] == "ppo"] == [f["reward/mean"] for f in history]
    shown = lines(run / "trajectories.jsonl")
    assert [sum(row["arm"] == arm for row in shown) for arm in ("train", "validation")] == [16, 6]
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert summary["reward/mean"] == history[-1]["reward/mean"]
    assert summary["validation/env/return_mean"] == rows[-1]["env/return_mean"]
    assert summary["seconds"] == pytest.approx(sum(figures["time/seconds"] for figures in history))
    assert {folder.name for folder in (run / "tensorboard").iterdir()} == {"ppo", "validation"}
    assert all(next(folder.glob("events*")).stat().st_size > 500 for folder in (run / "tensorboard").iterdir())
    assert (run / "policy/model.safetensors").is_file()
    report = (run / "report.html").read_text("utf-8")
    for words in ("Reinforcement learning", "Validation", "env/success_share", "22 episodes", "step_timeout_seconds"):
        assert words in report


def test_without_a_run_folder_nothing_is_written(talker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RayPPOTrainer(settings(validate_every=1), Colours, **talker) as trainer:
        trainer.fit()
        with pytest.raises(ValueError, match="where to"):
            trainer.save_checkpoint()
    assert list(tmp_path.iterdir()) == []


def test_the_newest_checkpoints_and_the_best_stay_though_the_run_was_gone_on_with(talker, tmp_path):
    rewards = {1: 0.5, 2: 0.9, 3: 0.1, 4: 0.2}
    config = settings(validate_every=1)
    config.checkpoint.save_interval, config.checkpoint.keep_last_n = 1, 1
    for num_iters, kept in ((2, ["step_000002"]), (4, ["step_000002", "step_000004"])):
        config.training.num_train_iters = num_iters
        options = {"reward_fn": lambda trajectory: rewards[max(1, trainer.iteration)], "resume": num_iters == 4}
        with RayPPOTrainer(config, Colours, run_path=tmp_path, **options, **talker) as trainer:
            trainer.fit()
        assert steps(tmp_path) == kept


# -- going on ------------------------------------------------------------------------------------------------------


def test_a_run_that_was_stopped_and_gone_on_with_is_the_run_that_was_not(whole, _talker, tokenizer, tmp_path):
    """Other ends, on a data set: test_trainer_sft.py, test_disk_errors.py."""

    def trainer(**options):
        options |= {"run_path": tmp_path, "model": copy.deepcopy(_talker), "tokenizer": tokenizer}
        return RayPPOTrainer(four_iterations(), Colours, **options)

    press_ctrl_c = OnStep(lambda trainer: signal.raise_signal(signal.SIGINT), 3)
    with trainer(callbacks=press_ctrl_c) as stopped, pytest.raises(KeyboardInterrupt):
        stopped.fit()
    assert len(lines(tmp_path / "metrics.jsonl")) == 4
    with trainer(resume=True) as resumed:
        assert resumed.iteration == 3
        assert len(lines(tmp_path / "metrics.jsonl")) == resumed.iteration + 1
        resumed.fit()
    assert without_clocks(resumed.metrics_history) == without_clocks(whole.history)
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        first, second = (without_clocks(lines(run / name)) for run in (whole.path, tmp_path))
        assert first == second
    policies = [(run / "policy/model.safetensors").read_bytes() for run in (whole.path, tmp_path)]
    assert policies[0] == policies[1]


def test_a_checkpoint_at_any_place_is_gone_on_from_in_a_fresh_trainer(_talker, tokenizer, tmp_path):
    def trainer():
        return RayPPOTrainer(four_iterations("grpo"), Colours, model=copy.deepcopy(_talker), tokenizer=tokenizer)

    first = trainer()
    first.fit(num_epochs=1, num_iters_per_epoch=2)
    first.save_checkpoint(tmp_path / "here")
    first.fit()
    second = trainer()
    second.load_checkpoint(tmp_path / "here")
    assert (second.iteration, second.learner.num_steps) == (2, 2)
    second.fit()
    assert without_clocks(second.metrics_history) == without_clocks(first.metrics_history)


def test_figures_that_are_no_numbers_come_back_as_such(talker, tmp_path):
    with RayPPOTrainer(settings(), Colours, lambda trajectory: 1 / 0, **talker) as trainer:
        trainer.train_step(trainer.rollout())
        trainer.save_checkpoint(tmp_path / "here")
        before = trainer.metrics_history
        trainer.load_checkpoint(tmp_path / "here")
        assert trainer.metrics_history == [pytest.approx(figures, nan_ok=True) for figures in before]
        assert math.isnan(trainer.metrics_history[0]["reward/mean"])


def test_going_back_in_the_own_run_folder_drops_what_came_later(talker, tmp_path):
    config = settings(num_train_iters=3)
    config.checkpoint.save_interval, config.checkpoint.keep_last_n = 1, 5

    def logged(name):
        return [row["step"] for row in lines(tmp_path / f"{name}.jsonl")]

    with RayPPOTrainer(config, Colours, run_path=tmp_path, **talker) as trainer:
        trainer.fit()
        assert steps(tmp_path) == ["step_000001", "step_000002", "step_000003"]
        trainer.load_checkpoint(tmp_path / "checkpoints/ppo/checkpoints/step_000001")
        assert (logged("metrics"), logged("trajectories")) == ([1], [1] * 4)
        trainer.train_step(trainer.rollout())
        trainer.save_checkpoint()
        assert (steps(tmp_path), logged("metrics")) == (["step_000001", "step_000002"], [1, 2])


def test_a_checkpoint_from_elsewhere_leaves_the_run_folder_alone(talker, tmp_path):
    with RayPPOTrainer(settings(), Colours, run_path=tmp_path / "run", **talker) as trainer:
        trainer.save_checkpoint(tmp_path / "elsewhere")
        trainer.train_step(trainer.rollout())
        trainer.load_checkpoint(tmp_path / "elsewhere")
        assert trainer.iteration == 0
        assert len(lines(tmp_path / "run/metrics.jsonl")) == 1


def test_a_made_tokenizer_is_the_checkpoints_own_though_the_world_now_speaks_otherwise(tmp_path):
    said = itertools.count()

    class Forgetful(BaseEnvironment):
        """Its `reset` takes no seed."""

        def reset(self):
            return f"Say {COLOURS[next(said) // 50 % 3] * 3} {next(said)}."

        def step(self, action):
            return "", float(len(action)), True, {}

    with RayPPOTrainer(settings(), Forgetful, run_path=tmp_path) as trainer:
        trainer.fit()
        vocabulary = trainer.tokenizer.get_vocab()
    with RayPPOTrainer(settings(), Forgetful) as other:
        assert other.tokenizer.get_vocab() != vocabulary
        with pytest.raises(CheckpointError, match="another tokenizer"):
            other.load_checkpoint(tmp_path / "checkpoints/ppo/checkpoints/step_000002")
    with RayPPOTrainer(settings(), Forgetful, run_path=tmp_path, resume=True) as resumed:
        assert (resumed.tokenizer.get_vocab(), resumed.iteration) == (vocabulary, 2)


def test_a_checkpoint_of_another_model_or_another_trainer_is_refused(talker, tmp_path):
    model = make_policy(talker["tokenizer"], hidden_size=64, num_layers=1, num_heads=2, max_length=512, seed=0)
    with RayPPOTrainer(settings(), Colours, model=model, tokenizer=talker["tokenizer"]) as other:
        other.save_checkpoint(tmp_path / "smaller")
    with RayPPOTrainer(settings(), Colours, **talker) as trainer:
        save_checkpoint(tmp_path / "other", trainer.learner, state={"step": 3})
        for name, message in (
            ("other", "not written by a Trainer"),
            ("nowhere", "no checkpoint"),
            ("smaller", "of other models"),
        ):
            with pytest.raises(CheckpointError, match=message):
                trainer.load_checkpoint(tmp_path / name)
        assert trainer.iteration == 0


# -- resuming with other settings ----------------------------------------------------------------------------------


def test_allowed_changes_are_recorded_with_the_step(talker, finished):
    config = four_iterations()
    config.training.num_train_iters = 6
    given = {"run_path": finished, "resume": True, **talker}
    with RayPPOTrainer(config, Colours, **given) as trainer:  # harmless
        trainer.fit()
    config.training.clip_ratio = 0.1
    RayPPOTrainer(config, Colours, allow_changes=True, **given).cleanup()
    RayPPOTrainer(config, Colours, **given).cleanup()  # as it was last
    history = yaml.safe_load_all((finished / "settings_history.yaml").read_text("utf-8"))
    assert [(entry["stage"], entry["step"], entry["changes"]) for entry in history] == [
        ("ppo", 0, {}),
        ("ppo", 4, {"training.num_train_iters": {"before": 4, "now": 6}}),
        ("ppo", 6, {"training.clip_ratio": {"before": 0.2, "now": 0.1}}),
    ]
    assert yaml.safe_load((finished / "config.yaml").read_text("utf-8"))["training"]["clip_ratio"] == 0.1
