"""A run of a recipe whose files are damaged is resumed to the same result, or refused. docs/library.md, "Files"."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from damage import damage
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
