"""`midthought compare` on run folders whose answers and curves are known."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from midthought.cli import app
from midthought.config import ConfigStore
from midthought.errors import CheckpointError, SettingsError
from midthought.report.comparison import Comparison, Row, compare, paired_permutation
from midthought.report.run_folder import RunFolder


def write_run(
    path: Path,
    right: Sequence[bool | None],
    *,
    settings: Mapping[str, Any] | None = None,
    rewards: Sequence[float] = (0.1, 0.5),
    ids: str = "q",
    is_finished: bool = True,
) -> Path:
    """A run with one held-out answer per value of `right`, and one training iteration per value of `rewards`."""
    config = ConfigStore()
    for name, value in (settings or {}).items():
        setattr(config.training, name, value)
    with RunFolder(path).create() as run:
        run.write_file("config.yaml", config.to_yaml())
        for step, reward in enumerate(rewards, start=1):
            run.log("ppo", step, {"reward/mean": reward})
        run.add_trajectories(
            {
                "step": 0,
                "arm": "after",
                "task_id": f"{ids}{number}",
                "question": f"Question {number}?",
                "answer": f"truth {number}",
                "exact_match": value,
                "reward": {"total": float(value or 0) - 0.1 * number, "parts": {}},
                "num_calls": number % 3,
                "spans": [
                    {"kind": "prompt", "text": "Q", "num_tokens": 9},
                    {"kind": "policy", "text": "A", "num_tokens": 5 + number},
                ],
            }
            for number, value in enumerate(right)
        )
        if is_finished:
            run.write_summary({"num_questions": len(right), "after.exact_match": sum(map(bool, right)) / len(right)})
    return path


def rows_of(comparison: Comparison) -> dict[str, Row]:
    """The rows of a comparison of two, by measure."""
    assert len(comparison.names) == 2
    return {row.measure: row for row in comparison.rows}


def test_two_runs_are_compared_by_question(tmp_path: Path) -> None:
    first = write_run(tmp_path / "small", [True] * 2 + [False] * 10, rewards=[0.1] * 9 + [0.2])
    rate = {"learning_rate": 3e-5}
    second = write_run(tmp_path / "large", [False] + [True] * 9 + [False] * 2, settings=rate, rewards=[0.2] * 10)
    comparison = compare([first, second])
    assert comparison.settings == {"training.learning_rate": [ConfigStore().training.learning_rate, 3e-5]}
    assert comparison.names == ("small", "large") and not comparison.notes
    rows = rows_of(comparison)
    assert list(rows) == ["exact_match", "reward", "calls", "policy_tokens", "training_reward"]
    found = rows["exact_match"]
    assert (found.run, found.arm, found.baseline, found.value) == ("large", "after", 2 / 12, 9 / 12)
    assert found.test is not None and found.test.num_pairs == 12
    assert found.test.p_value == pytest.approx(2 * (1 + 9) / 512)  # McNemar: 8 wrong→right, 1 right→wrong
    assert rows["calls"].test is not None and rows["calls"].test.p_value == 1.0 and rows["policy_tokens"].value == 10.5
    reward = rows["training_reward"]
    assert (reward.baseline, reward.value, reward.test, reward.arm) == (0.2, 0.2, None, "")


def test_runs_of_other_questions_share_the_training_reward_only(tmp_path: Path) -> None:
    found = compare([write_run(tmp_path / "a", [True] * 4), write_run(tmp_path / "b", [True] * 4, ids="other")])
    assert list(rows_of(found)) == ["training_reward"]
    assert any("b and a share no held-out question" in note for note in found.notes)


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / folder / "run", [True] * 2) for folder in ("a", "b")]
    assert compare(paths).names == tuple(map(str, paths))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", [True] * 8)
    other = write_run(tmp_path / "b", [True] * 8, is_finished=False, settings={"clip_ratio": 0.4})
    assert any(f"{other} is unfinished (iteration 2)" in note for note in compare([first, other]).notes)
    with RunFolder(other).create(resume=True):
        assert any("b is unfinished (iteration 2)" in note for note in compare([first, other]).notes)
    (other / "config.yaml").unlink()
    assert any("b has no config.yaml" in note for note in compare([first, other]).notes)


def test_few_recorded_questions_of_a_validation_and_other_tasks_are_named(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        task = {"learned_from": {"dataset": "9 rows", "rewards": {name: 1.0}}, "call_format": "native", "tools": []}
        with RunFolder(tmp_path / name).create() as run:
            run.write_file("conversation.json", json.dumps(task))
            run.log("ppo", 10, {"reward/mean": 0.5})
            run.log("validation", 10, {"exact_match": 0.5, "episode/count": 100})
            spans = [{"kind": "policy", "text": "A", "num_tokens": 5}]
            row = {"step": 10, "arm": "validation", "exact_match": True, "num_calls": 0, "spans": spans}
            run.add_trajectories({**row, "task_id": str(number), "question": "?"} for number in range(8))
            run.write_summary({"reward/mean": 0.5})
        runs.append(tmp_path / name)
    found = compare(runs)
    assert any(note.startswith("8 of 100 questions are recorded") for note in found.notes)
    assert found.settings == {"task.rewards.a": [1.0, None], "task.rewards.b": [None, 1.0]}
    assert rows_of(found)["exact_match"].value == 1.0


def test_wrong_runs_are_refused_with_their_path(tmp_path: Path) -> None:
    run, other = write_run(tmp_path / "a", [True]), write_run(tmp_path / "b", [True])
    (tmp_path / "empty").mkdir()
    for error, runs, options, words in (
        (SettingsError, [run], {}, "1 run given; give two or more"),
        (SettingsError, [run, tmp_path / "." / "a"], {}, "a is given twice"),
        (CheckpointError, [run, tmp_path / "nowhere"], {}, "nowhere is not a folder"),
        (CheckpointError, [run, tmp_path / "empty"], {}, "empty is not a run folder"),
        (SettingsError, [run, other], {"arm": "sampled"}, r"no run has answers of the arm 'sampled'.*Known: after"),
    ):
        with pytest.raises(error, match=words):
            compare(runs, **options)  # type: ignore[arg-type]
    (other / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"summary\.json: not JSON"):
        compare([run, other])


def test_the_command_prints_one_table_or_json(tmp_path: Path) -> None:
    runs = [str(write_run(tmp_path / "a", [True, False] * 4)), str(write_run(tmp_path / "b", [False, True] * 4))]
    shown = CliRunner().invoke(app, ["compare", *runs]).stdout
    assert "paired permutation, n = 8" in shown and "exact match, after" in shown
    as_json = json.loads(CliRunner().invoke(app, ["compare", *runs, "--json"]).stdout)
    assert as_json["rows"][0]["test"]["num_pairs"] == 8


def test_few_signs_are_flipped_in_all_ways_and_many_in_the_same_sample() -> None:
    assert paired_permutation([0.0] * 3, [1.0, 2.0, 3.0]).p_value == pytest.approx(
        2 / 8
    )  # of 8, +++ and --- are as far
    assert paired_permutation([0.5] * 5, [0.5] * 5).p_value == 1.0
    source = random.Random(3)
    drawn = [source.gauss(0, 1) for _ in range(200)]
    noise = [value - sum(drawn) / len(drawn) + 0.05 for value in drawn]
    same, shifted = paired_permutation([0.0] * 200, noise), paired_permutation([-0.5] * 200, noise)
    assert paired_permutation([0.0] * 200, noise) == same and same.p_value > 0.05 and same.low < 0 < same.high
    assert shifted.p_value < 0.001 and shifted.low > 0
