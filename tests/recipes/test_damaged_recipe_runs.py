"""A run of a recipe whose files are damaged is resumed to the same result, or refused. docs/concepts.md, "Run folder"."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from command_process import CommandProcess
from damage import change_type, damage
from small_runs import SETTINGS, finish, metrics, start, stop_at, trajectories, weights, whole

pytestmark = pytest.mark.slow
NUM_SFT = 24


@pytest.mark.parametrize(("recipe", "num_damages"), [("feedback", 12), ("podcast", 12)])
def test_a_damaged_run_of_a_recipe_is_resumed_to_the_same_result_or_refused(recipe, num_damages, tmp_path):
    stopped, other, found = tmp_path / "stopped", tmp_path / "other", Counter()
    code = stop_at(start(recipe, stopped, *SETTINGS[recipe]), stopped, NUM_SFT + 3, signal.SIGKILL)
    assert code == -signal.SIGKILL
    whole(recipe, other, "training.seed=1")
    good = Path(shutil.copytree(stopped, tmp_path / "good"))
    finish(start(recipe, good, "--resume"))
    for seed in range(num_damages):
        run = Path(shutil.copytree(stopped, tmp_path / f"run{seed}"))
        done = damage(run, other, seed)
        process = start(recipe, run, "--resume")
        code = process.wait()
        assert code in (0, 2) and "Traceback" not in process.errors, (done, process.errors)
        if code == 2:
            assert done.is_named_in(process.errors), (done, process.errors)
        else:
            assert metrics(run) == metrics(good) and trajectories(run) == trajectories(good), done
            ours, expected = weights(run), weights(good)
            assert all(tensor.equal(expected[name]) for name, tensor in ours.items()), done
        found["refused" if code else "earlier" if "the run continues from" in process.errors else "identical"] += 1
        shutil.rmtree(run)
    print(recipe, dict(found))
    assert found.total() == num_damages


def outcome(process, run):
    """What a command has written, without times; None: it was refused with one message."""
    code = process.wait()
    assert code in (0, 2) and "Traceback" not in process.errors, process.errors
    return (metrics(run) if (run / "metrics.jsonl").is_file() else [], trajectories(run)) if code == 0 else None


@pytest.mark.parametrize("recipe", ["feedback", "podcast"])
def test_a_damaged_run_is_evaluated_and_started_from_as_it_was_or_refused(recipe, tmp_path):
    good, other = whole(recipe, tmp_path / "good"), whole(recipe, tmp_path / "other", "training.seed=1")
    settings = [words for words in SETTINGS[recipe] if "num_train_iters" not in words]

    def commands(run, out):
        words = ("evaluate", str(run), "--recipe", recipe, "--run", str(out / "evaluated"), "--quiet")
        yield CommandProcess(*words), out / "evaluated"
        words = ("--stage", "rl", "--from", str(run), "training.num_train_iters=1", *settings)
        yield start(recipe, out / "started", *words), out / "started"

    expected, found = [outcome(*each) for each in commands(good, tmp_path / "expected")], Counter()
    assert None not in expected
    for seed in range(24):
        run = Path(shutil.copytree(good, tmp_path / f"run{seed}"))
        if seed % 4:  # neither command reads them
            shutil.rmtree(run / "checkpoints")
        done = change_type(run, seed) if seed % 2 else damage(run, other, seed // 2)
        for (process, out), wanted in zip(commands(run, tmp_path / f"out{seed}"), expected, strict=True):
            seen = outcome(process, out)
            assert seen in (None, wanted), done
            assert seen or done.is_named_in(process.errors), (done, process.errors)
            found["refused" if seen is None else "the same"] += 1
        shutil.rmtree(run)
    print(recipe, dict(found))
    assert found.total() == 48 and len(found) == 2
