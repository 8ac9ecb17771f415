"""`midthought compare` on run folders whose answers and curves are known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from midthought.cli import app
from midthought.config import ConfigStore
from midthought.errors import CheckpointError, SettingsError
from midthought.report.comparison import Comparison, Row, compare
from midthought.report.recorded_episodes import packed
from midthought.report.run_folder import RunFolder


def write_run(
    path: Path,
    right: Sequence[bool | None],
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    rewards: Sequence[float] = (0.1, 0.5),
    ids: str = "q",
    is_finished: bool = True,
) -> Path:
    """A run with one held-out answer per value of `right`, and one training iteration per value of `rewards`."""
    config = ConfigStore()
    config.training.seed = seed
    for name, value in (settings or {}).items():
        setattr(config.training, name, value)
    with RunFolder(path).create() as run:
        run.write_config(config.to_yaml())
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
    assert found.test.p_value == pytest.approx(2 * (1 + 9) / 512)  # 8 wrong→right, 1 right→wrong
    assert rows["calls"].test is not None and rows["calls"].test.p_value == 1.0 and rows["policy_tokens"].value == 10.5
    reward = rows["training_reward"]
    assert (reward.baseline, reward.value, reward.test, reward.arm) == (0.2, 0.2, None, "")


def seeds(folder: Path, name: str, shares: Sequence[int], **settings: Any) -> list[Path]:
    return [
        write_run(folder / f"{name}-{seed}", [True] * num + [False] * (10 - num), seed=seed, settings=settings)
        for seed, num in enumerate(shares, start=1)
    ]


def test_runs_that_differ_in_their_seed_are_one_configuration_paired_by_seed(tmp_path: Path) -> None:
    base, changed = seeds(tmp_path, "base", [3, 4, 5]), seeds(tmp_path, "clip", [6, 8, 8], clip_ratio=0.3)
    comparison = compare([base[0], changed[2], base[1], changed[0], base[2], changed[1]])
    assert comparison.names == ("base-1 and 2 more", "clip-3 and 2 more")
    assert list(comparison.settings) == ["training.clip_ratio"]
    found = rows_of(comparison)["exact_match"].test  # differences 0.3, 0.4, 0.3: mean 1/3, s = 0.1 / √3, t = 10
    assert found is not None and (found.num_pairs, found.name) == (3, "paired t")
    assert found.p_value == pytest.approx(1 - 10 / 102**0.5)


def test_seeds_of_one_configuration_and_repeated_runs_are_compared_with_each_other(tmp_path: Path) -> None:
    runs = seeds(tmp_path, "base", [3, 4])
    assert compare(runs).names == ("base-1", "base-2")
    again = compare([*runs, *seeds(tmp_path / "again", "base", [3, 4])])
    assert len(again.names) == 2 and "again" in again.names[1]
    assert rows_of(again)["exact_match"].test is None
    assert any("the same settings" in note for note in again.notes)


def test_questions_need_to_be_the_same_within_a_seed_only(tmp_path: Path) -> None:
    """Recipes choose their held-out questions by the seed."""
    groups = [
        [
            write_run(
                tmp_path / f"{name}-{seed}",
                [True] * num + [False] * (8 - num),
                seed=seed,
                ids=f"s{seed}-",
                settings=own,
            )
            for seed, num in shares.items()
        ]
        for name, own, shares in (("base", {}, {1: 2, 2: 3, 9: 8}), ("clip", {"clip_ratio": 0.3}, {1: 6, 2: 6}))
    ]
    comparison = compare([*groups[0], *groups[1]])
    found = rows_of(comparison)["exact_match"].test
    assert found is not None and (found.num_pairs, found.name) == (2, "paired t")
    assert any("without base-9" in note for note in comparison.notes)
    one_shared = rows_of(compare([groups[0][0], groups[0][2], groups[1][0]]))["exact_match"].test
    assert one_shared is not None and one_shared.num_pairs == 8
    other_seeds = compare([groups[0][2], groups[1][0]])
    assert list(rows_of(other_seeds)) == ["training_reward"]
    assert any("choose questions by training.seed" in note for note in other_seeds.notes)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", [True] * 8)
    other = write_run(tmp_path / "b", [True] * 8, is_finished=False, settings={"clip_ratio": 0.4})
    assert any(f"{other} is unfinished (iteration 2)" in note for note in compare([first, other]).notes)
    with RunFolder(other).create(resume=True):
        assert any("b is running (iteration 2)" in note for note in compare([first, other]).notes)
    (other / "config.yaml").unlink()
    assert any("b has no config.yaml" in note for note in compare([first, other]).notes)


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
    assert "4 wrong→right, 4 right→wrong, n = 8" in shown and "exact match, after" in shown
    as_json = json.loads(CliRunner().invoke(app, ["compare", *runs, "--json"]).stdout)
    assert as_json["rows"][0]["test"]["num_pairs"] == 8


def test_recorded_questions_are_compared_too(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, [True, False]) for name in ("a", "b")]
    tokens = {"texts": ["Q", "o", "k"], "token_ids": packed([1, 2, 3], "<i4"), "in_loss": packed([0, 0], "u1")}
    segment = {"spans": [["prompt", 1], ["policy", 2]], "policy_versions": packed([0, 0], "<i4"), **tokens}
    for path in runs:
        rows = [
            {"arm": "after", "step": 0, "task_id": f"r{number}", "question": "?", "exact_match": path.name == "b"}
            | {"events": [], "segments": [segment]}
            for number in range(7)
        ]
        with RunFolder(path).create(resume=True) as run:
            run.recording.add("after", 0, rows, max_bytes=2**20)
    found = rows_of(compare(runs))
    test = found["exact_match"].test
    assert test is not None and test.num_pairs == 2 + 7 and test.p_value == pytest.approx(2 / 2**7)
    assert found["policy_tokens"].value == pytest.approx((5 + 6 + 7 * 2) / 9)
