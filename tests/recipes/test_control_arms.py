"""Control arms: trained from the run's warm-up or its initial model, evaluated as the run, resumed, shown side by side.

In `make test` one arm is trained: the podcast's, in `podcast/test_evaluate.py`.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from one_thread import in_one_thread
from small_runs import FEEDBACK, SHORT_TRANSCRIPTS, finish, metrics, start, stop_at, summary, trajectories, weights
from typer.testing import CliRunner

from midthought.cli import app
from midthought.config import read_yaml
from midthought.errors import SettingsError

SMALL = [*FEEDBACK, "sft.num_steps=3", "training.num_train_iters=2", "training.validate_every=1"]
SMALL += ["evaluation.sampled=true"]


def train(recipe: str, *words: str) -> str:
    with in_one_thread():  # as `start` does
        result = CliRunner().invoke(app, ["train", recipe, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run without arms."""
    run = tmp_path_factory.mktemp("arms") / "finished"
    train("feedback", "--run", str(run), *SMALL)
    return run


ARMS = ("rft", "rft_seconds", "retry_only", "clean")


@pytest.fixture(scope="module")
def compared(finished, tmp_path_factory) -> tuple[Path, str]:
    """The finished run, resumed with every arm of the recipe, and what the command printed."""
    run = Path(shutil.copytree(finished, tmp_path_factory.mktemp("arms") / "compared"))
    return run, train("feedback", "--run", str(run), "--resume", "--arms", ",".join(ARMS))


@pytest.mark.slow
def test_every_arm_is_evaluated_as_the_run_and_shown_beside_it_and_the_runs_own_figures_stay(finished, compared):
    run, output = compared
    heading = next(line for line in output.splitlines() if "before RL" in line)
    assert heading.split() == ["before", "RL", "after", "RL", *ARMS]
    page = (run / "report.html").read_text("utf-8")
    assert "Control arms" in page and 'href="arms/rft/report.html"' in page
    before, found = summary(finished), summary(run)
    after = {key.removeprefix("after.") for key in found if key.startswith("after.")}
    assert {"exact_match", "sampled.exact_match", "none.exact_match", "wrong.exact_match"} <= after
    for arm in ARMS:
        own = {key.removeprefix(f"arms.{arm}.") for key in found if key.startswith(f"arms.{arm}.")}
        assert own == after | {"train_seconds", "num_steps" if arm == "clean" else "num_iters"}
    shown = {row["arm"] for row in trajectories(run)}
    assert {f"arms.{arm}{kind}" for arm in ARMS for kind in ("", ".sampled", ".none", ".wrong")} <= shown
    own = before.keys() - {"seconds", "peak_rss_mib"}
    assert {key: found[key] for key in own} == {key: before[key] for key in own}
    stages = [found[f"seconds.{stage}"] for stage in ("warmup", "before", "rl", "after")]
    assert found["seconds"] == pytest.approx(sum(stages))
    assert [row["stage"] for row in metrics(run)].count("sft") == 3, "no arm repeats the warm-up"


@pytest.mark.slow
def test_arms_of_reinforcement_learning_differ_from_the_run_in_their_own_settings_alone(finished, compared):
    run, _ = compared
    own, rft, retry_only = (
        read_yaml(folder / "config.yaml") for folder in (finished, run / "arms/rft", run / "arms/retry_only")
    )
    assert (rft["training"]["algorithm"], rft["training"]["policy_loss"]) == ("rft", "nll")
    for key in ("learning_rate", "batch_size", "group_size", "num_train_iters", "seed", "overlong_buffer_tokens"):
        assert rft["training"][key] == own["training"][key]
    assert retry_only["feedback"] == own["feedback"] | {"critic": "none"}
    assert all(retry_only[section] == own[section] for section in ("training", "reward", "sft"))
    found = summary(run)
    assert found["arms.rft.num_iters"] == found["arms.retry_only.num_iters"] == found["num_iters"] == 2
    assert found["arms.rft_seconds.num_iters"] >= 1 and found["arms.clean.num_steps"] >= 1


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
    again, own = summary(path), summary(run)
    assert again["after.exact_match"] == own["arms.rft.exact_match"]
    assert again["after.sampled.exact_match"] == own["arms.rft.sampled.exact_match"]


@pytest.mark.slow
def test_a_run_that_is_killed_in_an_arms_training_and_in_its_evaluation_goes_on_there(finished, compared, tmp_path):
    run, (reference, _) = Path(shutil.copytree(finished, tmp_path / "run")), compared
    words, arm, other = ["--resume", "evaluation.control_arms=[rft]"], run / "arms/rft", reference / "arms/rft"
    assert stop_at(start("feedback", run, *words), arm, 1, signal.SIGKILL) == -signal.SIGKILL
    evaluated = len(trajectories(run)) + 1
    process = start("feedback", run, *words)
    assert stop_at(process, run, evaluated, signal.SIGKILL, file_name="trajectories.jsonl") == -signal.SIGKILL
    assert "arms.rft" not in json.loads((run / "progress.json").read_text())["done"]
    finish(start("feedback", run, *words))
    assert metrics(arm) == metrics(other)
    assert all(tensor.equal(weights(arm)[key]) for key, tensor in weights(other).items())
    found, expected = summary(run), summary(reference)
    keys = {key for key in expected if key.startswith("arms.rft.")} - {"arms.rft.train_seconds"}
    assert {key: found[key] for key in keys} == {key: expected[key] for key in keys}


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        ("podcast", [SHORT_TRANSCRIPTS, "--arms", "retry_only"], "arm 'retry_only'. Known: clean, rft, rft_seconds"),
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
