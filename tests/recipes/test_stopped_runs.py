"""`midthought train` exits with code 2 or 3 and the cause if a run cannot learn; nothing is exported then."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from small_runs import FEEDBACK, PODCAST, small_embedding_model

from midthought.cli import main
from midthought.report.trackers import TRACKERS, Tracker

DEAD_SERVER = ["inference.deterministic=false", "inference.backend=vllm", "inference.base_url=[http://127.0.0.1:9]"]
DEAD_SERVER += ["sft.num_steps=1", "inference.served_model_name=x"]
WITHOUT_WORDS = ["sft.num_steps=0", "training.overlong_buffer_tokens=0", "training.num_train_iters=12"]
WITHOUT_WORDS += ["inference.max_tokens=1"]
"""Every answer is one token and wrong, so all rewards are equal."""
DIVERGING = ["sft.learning_rate=1", "training.max_grad_norm=.inf", "sft.warmup_steps=0"]


def train(monkeypatch: pytest.MonkeyPatch, recipe: str, run: Path, *words: str) -> int | str | None:
    """The exit code of the command."""
    small = FEEDBACK if recipe == "feedback" else [*PODCAST, small_embedding_model()]
    monkeypatch.setattr(sys, "argv", ["midthought", "train", recipe, "--run", str(run), "--quiet", *small, *words])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


@pytest.mark.parametrize(
    ("words", "code", "cause"),
    [
        (["sft.learning_rate=1e30"], 2, "sft.learning_rate=1e+30: Input should be less than or equal to 1"),
        (DIVERGING, 3, "the loss of supervised steps diverges"),
        (WITHOUT_WORDS, 3, "none of the 10 iterations so far had anything to learn"),
        (DEAD_SERVER, 2, "no server answers (http://127.0.0.1:9"),
    ],
)
def test_a_run_that_cannot_learn_exits_with_the_cause(words, code, cause, monkeypatch, capsys, tmp_path):
    assert train(monkeypatch, "feedback", tmp_path / "run", *words) == code
    assert cause in capsys.readouterr().err
    assert not (tmp_path / "run" / "policy").exists()


def test_a_warmed_up_policy_with_a_nan_is_refused_before_anything_is_written(monkeypatch, capsys, tmp_path):
    assert train(monkeypatch, "feedback", tmp_path / "first", "--stage", "sft", "sft.num_steps=1") == 0
    file = tmp_path / "first" / "warmup" / "model.safetensors"
    weights = load_file(file)
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    (file.parent / "manifest.json").unlink()
    words = ["--stage", "rl", "--from", str(tmp_path / "first")]
    assert train(monkeypatch, "feedback", tmp_path / "second", *words) == 3
    assert "the model that the run starts from: 1 of" in capsys.readouterr().err
    assert not (tmp_path / "second" / "warmup").exists()


PRESSES: dict[tuple[str, int], int] = {}
"""Numbers of signals while the metrics of a step of a stage are logged, which is before its checkpoint."""


class Pressing(Tracker):
    def __init__(self, run):
        super().__init__(run)
        self.log("opened", 0, {})

    def log(self, stage, step, metrics):
        for _ in range(PRESSES.pop((stage, step), 0)):
            signal.raise_signal(signal.SIGINT)


TRACKERS["pressing"] = Pressing


@pytest.fixture
def interruptible():
    """SIGINT interrupts, also if the tests run in the background, where shells let programs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_a_stopped_run_says_what_is_saved(monkeypatch, capfd, tmp_path, interruptible):
    def stop(run, presses, *words):
        PRESSES.update(presses)
        assert train(monkeypatch, "feedback", run, "checkpoint.trackers=[pressing]", *words) == 130
        assert not PRESSES
        return capfd.readouterr().err

    run, always = tmp_path / "run", "checkpoint.save_minutes=1e-9"
    steps = run / "checkpoints/sft/checkpoints"
    assert "before the run began" in stop(run, {("opened", 0): 1}) and not run.exists()
    told = stop(run, {("sft", 3): 2}, "checkpoint.save_minutes=1e9")
    assert "Nothing that was learned is saved yet" in told and not steps.exists()
    for presses, words, saved in (
        ({("sft", 2): 1}, [], steps / "step_000002"),
        ({("sft", 6): 2}, [always], steps / "step_000005"),
        ({("ppo", 1): 2}, [], run / "warmup"),
        ({("ppo", 3): 2}, ["checkpoint.save_interval=9", always], run / "checkpoints/ppo/checkpoints/step_000002"),
    ):
        told = stop(run, presses, "--resume", *words)
        assert f"The newest that is saved is {saved}." in told and f"--run {run} --resume" in told


@pytest.mark.slow
def test_a_healthy_run_of_the_podcast_reports_nothing(monkeypatch, caplog, tmp_path):
    """Feedback: feedback/test_feedback_resume.py."""
    assert train(monkeypatch, "podcast", tmp_path / "run") == 0
    assert [record for record in caplog.records if record.name == "midthought.checks"] == []
    assert (tmp_path / "run" / "policy").is_dir()
