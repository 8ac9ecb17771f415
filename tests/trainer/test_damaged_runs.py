"""A run whose files are damaged: it continues to the same result, from an earlier checkpoint with a message, or is refused."""

import functools
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import Damage, damage
from interrupted_runs import Runs, left
from safetensors.torch import load_file
from small_environments import lines
from typer.testing import CliRunner

from midthought.cli import app
from midthought.errors import CheckpointError, ModelPathError, UserError
from midthought.learning.checkpoint_folder import step_paths
from midthought.models.pretrained import load_model


@functools.cache
def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return found


def read(run: Path, done: Damage, good: Path) -> None:
    """Reads the run as the commands do. Only errors of users are raised, and no model with other weights is loaded."""
    for words in (["report"], ["compare", str(good)]):
        error = CliRunner().invoke(app, [*words, str(run)]).exception
        if error is not None and not isinstance(error, SystemExit):
            assert isinstance(error, UserError), (done, words, error)
            assert str(run) in str(error), (done, error)
    steps = (str(path.relative_to(good) / "policy") for path in step_paths(good / "checkpoints/ppo"))
    for folder in ("warmup", *steps):
        try:
            found = load_model(run / folder)
        except ModelPathError as error:
            assert done.is_named_in(str(error)), (done, error)
        else:
            loaded = found.state_dict()
            assert all(loaded[name].equal(tensor) for name, tensor in weights(good / folder).items()), done


def resume(runs: Runs, run: Path, done: Damage, result: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Resumes a damaged run to the same result, or it is refused; the message names what is damaged."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        try:
            runs.train(run)
        except UserError as error:
            assert done.is_named_in(str(error)), (done, error)
            assert "\n" not in str(error)
            return
    assert left(run) == result, done
    told = [record.getMessage() for record in caplog.records if "the run continues from" in record.getMessage()]
    assert all(done.is_named_in(message) for message in told), (done, told)


CHECKPOINTS = "checkpoints/ppo/checkpoints"


def change(file: Path, before: bytes, after: bytes) -> None:
    data = file.read_bytes()
    assert before in data
    file.write_bytes(data.replace(before, after, 1))


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(runs, run, caplog):
    newest = run / CHECKPOINTS / "step_000003"
    (newest / "optimizer.safetensors").unlink()
    with runs.trainer(run) as trainer:
        assert trainer.iteration == 2
    assert (
        f"checkpoint {newest} is not whole: optimizer.safetensors is missing; the run continues from step_000002, and the "
        f"damaged checkpoint is now {newest}.damaged"
    ) in caplog.text
    assert (run / CHECKPOINTS / "step_000003.damaged/policy").is_dir()
    assert [row["step"] for row in lines(run / "metrics.jsonl")] == [1, 2, 1, 2, 2]


def test_a_run_without_an_intact_checkpoint_is_refused_and_nothing_is_changed(runs, run):
    for step in (1, 2, 3):
        change(run / CHECKPOINTS / f"step_00000{step}/learner.json", b"num_steps", b"num_stepz")
    before = sorted(path.name for path in (run / CHECKPOINTS).iterdir())
    message = r"step_000003 is damaged: learner.json .* 2 earlier ones cannot .* delete"
    with pytest.raises(CheckpointError, match=message):
        runs.trainer(run)
    assert sorted(path.name for path in (run / CHECKPOINTS).iterdir()) == before
    shutil.rmtree(run / "checkpoints/ppo")
    with runs.trainer(run) as trainer:
        assert trainer.iteration == 0


def test_a_checkpoint_under_the_name_of_another_step_is_not_used(runs, run, caplog):
    shutil.rmtree(run / CHECKPOINTS / "step_000003")
    shutil.copytree(run / CHECKPOINTS / "step_000001", run / CHECKPOINTS / "step_000003")
    with runs.trainer(run) as trainer:
        assert trainer.iteration == 2
    assert "step_000003 is of step 1; the run continues from step_000002" in caplog.text


def test_a_checkpoint_is_used_only_with_the_lines_that_the_logs_had(runs, run, caplog):
    logged = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(logged[:5]))  # up to the validation of iteration 2
    with runs.trainer(run) as trainer:
        assert trainer.iteration == 2
    assert f"the first 6 lines of {run / 'metrics.jsonl'} are not as they were written; the run" in caplog.text
    assert (run / CHECKPOINTS / "step_000003").is_dir()


def test_without_the_lines_of_any_checkpoint_the_run_is_refused(runs, run):
    (run / "trajectories.jsonl").unlink()
    message = r"lines of .*trajectories\.jsonl are not as .*start another run .*--from"
    with pytest.raises(CheckpointError, match=message):
        runs.trainer(run)


@pytest.mark.parametrize("name", ["config.yaml", "settings_history.yaml", "manifest.json"])
def test_a_damaged_file_of_the_settings_is_refused_with_the_remedy(name, runs, run):
    change(run / name, b"s", b"t")
    with pytest.raises(CheckpointError, match=rf"{name}.*delete .*manifest\.json"):
        runs.trainer(run)


def test_a_run_that_lost_its_policy_of_the_supervised_steps_is_refused(runs, run):
    shutil.rmtree(run / "warmup")
    with pytest.raises(CheckpointError, match="is not whole: warmup/ is missing"):
        runs.trainer(run)


def test_a_model_or_checkpoint_is_compared_with_its_digests_wherever_it_is_loaded(runs, run):
    policy = run / CHECKPOINTS / "step_000003/policy"
    for folder in (policy, run / "warmup"):
        change(folder / "tokenizer.json", b"red", b"rad")
        with pytest.raises(ModelPathError, match=r"tokenizer\.json is not as it was written; take a checkpoint"):
            load_model(folder)
    (run / "warmup/manifest.json").unlink()
    load_model(run / "warmup")


def test_a_damaged_run_continues_to_the_same_result_or_is_refused(runs, stopped, other, result, tmp_path, caplog):
    for seed in range(4):
        run = Path(shutil.copytree(stopped, tmp_path / f"run{seed}"))
        done = damage(run, other, seed)
        read(run, done, stopped)
        resume(runs, run, done, result, caplog)
