"""Control arms: trained from the run's warm-up or its initial model, evaluated as the run, resumed, shown side by side.

In `make test` one arm is trained: the podcast's, in `podcast/test_evaluate.py`.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from one_thread import in_one_thread
from small_runs import FEEDBACK, SHORT_TRANSCRIPTS, finish, metrics, start, stop_at, trajectories, weights
from typer.testing import CliRunner

from midthought.cli import app
from midthought.config import read_yaml
from midthought.errors import SettingsError

SMALL = [
    *FEEDBACK,
    "sft.num_steps=3",
    "training.num_train_iters=2",
    "training.validate_every=1",
    "evaluation.sampled=true",
]


def train(recipe: str, *words: str) -> str:
    with in_one_thread():  # as `start` does
        result = CliRunner().invoke(app, ["train", recipe, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run without arms."""
    run = tmp_path_factory.mktemp("arms") / "finished"
    train("feedback", "--run", str(run), *SMALL)
    return run


@pytest.fixture(scope="module")
def compared(finished, tmp_path_factory) -> tuple[Path, str]:
    """The finished run, resumed with every arm of the recipe, and what the command printed."""
    run = tmp_path_factory.mktemp("arms") / "compared"
    shutil.copytree(finished, run)
    return run, train("feedback", "--run", str(run), "--resume", "--arms", "rft,rft_seconds,retry_only,clean")


ARMS = ("rft", "rft_seconds", "retry_only", "clean")


@pytest.mark.slow
def test_every_arm_is_evaluated_as_the_run_and_shown_beside_it(compared):
    run, output = compared
    heading = next(line for line in output.splitlines() if "before RL" in line)
    assert heading.split() == ["before", "RL", "after", "RL", *ARMS]
    page = (run / "report.html").read_text("utf-8")
    assert "Control arms" in page and 'href="arms/rft/report.html"' in page
    summary = summary_of(run)
    after = {key.removeprefix("after.") for key in summary if key.startswith("after.")}
    assert {"exact_match", "sampled.exact_match", "none.exact_match", "wrong.exact_match"} <= after
    for arm in ARMS:
        own = {key.removeprefix(f"arms.{arm}.") for key in summary if key.startswith(f"arms.{arm}.")}
        assert own == after | {"train_seconds", "num_steps" if arm == "clean" else "num_iters"}
    shown = {row["arm"] for row in trajectories(run)}
    assert {f"arms.{arm}{kind}" for arm in ARMS for kind in ("", ".sampled", ".none", ".wrong")} <= shown


@pytest.mark.slow
def test_what_the_run_learned_and_its_figures_stay_as_they_were(finished, compared):
    run, _ = compared
    before, after = summary_of(finished), summary_of(run)
    timed = {"seconds", "peak_rss_mib"}
    assert {key: after[key] for key in before.keys() - timed} == {key: before[key] for key in before.keys() - timed}
    assert after["seconds"] == pytest.approx(
        sum(after[f"seconds.{stage}"] for stage in ("warmup", "before", "rl", "after"))
    )
    assert [row["stage"] for row in metrics(run)].count("sft") == 3, "no arm repeats the warm-up"


@pytest.mark.slow
def test_arms_of_reinforcement_learning_differ_from_the_run_in_their_own_settings_alone(finished, compared):
    run, _ = compared
    own = read_yaml(finished / "config.yaml")
    rft = read_yaml(run / "arms" / "rft" / "config.yaml")
    assert (rft["training"]["algorithm"], rft["training"]["policy_loss"]) == ("rft", "nll")
    for key in ("learning_rate", "batch_size", "group_size", "num_train_iters", "seed", "overlong_buffer_tokens"):
        assert rft["training"][key] == own["training"][key]
    retry_only = read_yaml(run / "arms" / "retry_only" / "config.yaml")
    assert retry_only["feedback"] == own["feedback"] | {"critic": "none"}
    assert {key: retry_only[key] for key in ("training", "reward", "sft")} == {
        key: own[key] for key in ("training", "reward", "sft")
    }
    summary = summary_of(run)
    assert summary["arms.rft.num_iters"] == summary["arms.retry_only.num_iters"] == summary["num_iters"] == 2
    assert summary["arms.rft_seconds.num_iters"] >= 1 and summary["arms.clean.num_steps"] >= 1


@pytest.mark.slow
def test_an_arm_is_a_run_folder_whose_policy_can_be_evaluated(compared, tmp_path):
    run, _ = compared
    assert (run / "arms" / "rft" / "report.html").is_file()
    for arm in ARMS:
        learned = weights(run, f"arms/{arm}/{'warmup' if arm == 'clean' else 'policy'}")
        assert any(not tensor.equal(weights(run, "warmup")[key]) for key, tensor in learned.items())
    path = tmp_path / "again"
    command = ["evaluate", str(run / "arms" / "rft"), "--recipe", "feedback", "--run", str(path)]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    again, own = summary_of(path), summary_of(run)
    assert again["after.exact_match"] == own["arms.rft.exact_match"]
    assert again["after.sampled.exact_match"] == own["arms.rft.sampled.exact_match"]


@pytest.mark.slow
def test_a_run_that_is_killed_in_an_arms_training_and_in_its_evaluation_goes_on_there(finished, compared, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    words = ["--resume", "evaluation.control_arms=[rft]"]
    assert stop_at(start("feedback", run, *words), run / "arms" / "rft", 1, signal.SIGKILL) == -signal.SIGKILL
    evaluated = len(trajectories(run)) + 1
    process = start("feedback", run, *words)
    assert stop_at(process, run, evaluated, signal.SIGKILL, file_name="trajectories.jsonl") == -signal.SIGKILL
    assert "arms.rft" not in json.loads((run / "progress.json").read_text())["done"]
    finish(start("feedback", run, *words))
    reference, _ = compared
    assert metrics(run / "arms" / "rft") == metrics(reference / "arms" / "rft")
    assert all(
        tensor.equal(weights(run, "arms/rft/policy")[key])
        for key, tensor in weights(reference, "arms/rft/policy").items()
    )
    one, other = summary_of(run), summary_of(reference)
    keys = {key for key in other if key.startswith("arms.rft.")} - {"arms.rft.train_seconds"}
    assert {key: one[key] for key in keys} == {key: other[key] for key in keys}


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        (
            "podcast",
            [SHORT_TRANSCRIPTS, "--arms", "retry_only"],
            "unknown arm 'retry_only'. Known: clean, rft, rft_seconds",
        ),
        ("feedback", ["evaluation.control_arms=[rtf]"], "unknown arm 'rtf'. Did you mean 'rft'"),
        ("feedback", ["--arms", "rft", "--engine", "verl"], "verl trains no control arms"),
        ("feedback", ["--arms", "clean", "--stage", "rl"], "'clean' starts before the warm-up"),
        ("feedback", ["--arms", "clean", "sft.num_steps=0"], "'clean' starts before the warm-up"),
        (
            "podcast",
            [SHORT_TRANSCRIPTS, "--arms", "rft", "training.batch_size=12"],
            "control arm 'rft': .*batch_size=12 is not a multiple of group_size=8",
        ),
    ],
)
def test_an_arm_that_cannot_be_trained_is_refused_before_anything_is_written(recipe, words, message, tmp_path):
    with pytest.raises(SettingsError, match=message):
        train(recipe, "--run", str(tmp_path / "run"), *words)
    assert not (tmp_path / "run").exists()
