"""A run whose files are damaged: it continues to the same result, from an earlier checkpoint with a message, or is refused."""

from __future__ import annotations

import copy
import json
import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import Damage, damage
from safetensors.torch import load_file
from small_environments import QUESTIONS, settings
from typer.testing import CliRunner

from midthought import Trainer, TrainerCallback
from midthought.cli import app
from midthought.errors import CheckpointError, ModelPathError, UserError
from midthought.learning.checkpoint import load_checkpoint, step_path, step_paths
from midthought.pretrained import load_model

DEMONSTRATIONS = [
    [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}] for row in QUESTIONS
]


class PowerCut(TrainerCallback):
    def on_step(self, trainer: Trainer, metrics: Any) -> None:
        if trainer.iteration == 4:
            raise RuntimeError("power cut")


class Runs:
    """Runs of one small model: two supervised steps, then four iterations with a checkpoint after each."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer

    def train(self, run: Path, *, resume: bool = False, seed: int = 0, stops: bool = False) -> None:
        config = settings(num_train_iters=4, validate_every=2, kl_coef=0.05, seed=seed)
        config.checkpoint.save_interval, config.checkpoint.keep_last_n = 1, 3
        with Trainer(
            config,
            dataset=QUESTIONS,
            validation=QUESTIONS,
            model=copy.deepcopy(self._model),
            tokenizer=self._tokenizer,
            run_path=run,
            resume=resume,
            progress=False,
            callbacks=[PowerCut()] if stops else [],
        ) as trainer:
            trainer.sft(DEMONSTRATIONS, num_steps=2, batch_tokens=300, warmup_steps=0)
            trainer.fit()

    def stopped(self, run: Path, seed: int = 0) -> Path:
        with pytest.raises(RuntimeError, match="power cut"):
            self.train(run, seed=seed, stops=True)
        return run


@pytest.fixture(scope="module")
def runs(_talker: Any, tokenizer: Any) -> Runs:
    return Runs(_talker, tokenizer)


@pytest.fixture(scope="module")
def stopped(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted in its last iteration. Copy it."""
    return runs.stopped(tmp_path_factory.mktemp("stopped") / "run")


@pytest.fixture(scope="module")
def other(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with another seed."""
    return runs.stopped(tmp_path_factory.mktemp("other") / "run", seed=1)


@pytest.fixture(scope="module")
def result(runs: Runs, stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run leaves if nothing is damaged."""
    run = tmp_path_factory.mktemp("whole") / "run"
    shutil.copytree(stopped, run)
    runs.train(run, resume=True)
    return left(run)


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the interrupted run."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def left(run: Path) -> dict[str, Any]:
    """Metrics, shown episodes and weights of a finished run, without times."""

    def rows(name: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in (run / name).read_text("utf-8").splitlines()]
        return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in found]

    tensors = load_file(run / "policy/model.safetensors")
    weights = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    episodes = [{**row, "events": []} for row in rows("trajectories.jsonl")]
    return {"metrics": rows("metrics.jsonl"), "episodes": episodes, "weights": weights}


def read(run: Path, done: Damage, good: Path) -> None:
    """Reads the run as the commands do. Only errors of users are raised, and no model with other weights is loaded."""
    for words in (["report"], ["guard"], ["plan", "--against"]):
        error = CliRunner().invoke(app, [*words, str(run)]).exception
        if error is not None and not isinstance(error, SystemExit):
            assert isinstance(error, UserError), (done, words, error)
            assert str(run) in str(error), (done, error)
    for folder in ("warmup", *(str(path.relative_to(good) / "policy") for path in step_paths(good / "checkpoints/ppo"))):
        try:
            found = load_model(run / folder)
        except ModelPathError as error:
            assert done.is_named_in(str(error)), (done, error)
        else:
            expected = load_model(good / folder).state_dict()
            assert all(torch.equal(tensor, expected[name]) for name, tensor in found.state_dict().items()), done


def resume(runs: Runs, run: Path, done: Damage, result: dict[str, Any], caplog: pytest.LogCaptureFixture) -> str:
    """Resumes a damaged run. Returns `identical`, `earlier` or `refused`; the message names what is damaged."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        try:
            runs.train(run, resume=True)
        except UserError as error:
            assert done.is_named_in(str(error)), (done, error)
            assert "\n" not in str(error)
            return "refused"
    assert left(run) == result, done
    told = [record.getMessage() for record in caplog.records if "the run continues from" in record.getMessage()]
    assert all(done.is_named_in(message) for message in told), (done, told)
    return "earlier" if told else "identical"


def outcomes(
    seeds: range, runs: Runs, stopped: Path, other: Path, result: dict[str, Any], folder: Path, caplog: Any
) -> Counter[str]:
    """Damages a copy of the run for each seed, reads and resumes it. Returns the number of each outcome."""
    found: Counter[str] = Counter()
    for seed in seeds:
        run = Path(shutil.copytree(stopped, folder / f"run{seed}"))
        done = damage(run, other, seed)
        read(run, done, stopped)
        found[resume(runs, run, done, result, caplog)] += 1
        shutil.rmtree(run)
    return found


def test_a_damaged_run_continues_to_the_same_result_or_is_refused(runs, stopped, other, result, tmp_path, caplog):
    assert outcomes(range(15), runs, stopped, other, result, tmp_path, caplog).total() == 15


@pytest.mark.slow
def test_200_damaged_runs_continue_to_the_same_result_or_are_refused(runs, stopped, other, result, tmp_path, caplog):
    found = outcomes(range(200), runs, stopped, other, result, tmp_path, caplog)
    print(dict(found))
    assert found.total() == 200 and found["identical"] and found["earlier"] and found["refused"]
