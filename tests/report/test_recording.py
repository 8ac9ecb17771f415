"""The files of a recording: numbered, bounded, dropped on resume; and the records that are read from them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midthought.errors import CheckpointError
from midthought.report.recorded_episodes import read_recording, recorded_row
from midthought.report.recording import Recording, read_rows, recorded_files
from midthought.report.run_folder import RunFolder
from midthought.types import Trajectory

MIB = 2**20


def names(recording: Recording) -> list[str]:
    recording.flush()
    return [path.name for path in recorded_files(recording.path)]


def fill(recording: Recording, steps: range, *, num_bytes: int = 0, max_bytes: int = MIB, arm: str = "train") -> None:
    noise = np.random.default_rng(0)
    for step in steps:
        row = {"step": step, "noise": noise.bytes(num_bytes).hex()}  # hex of noise: half of it compresses away
        recording.add(arm, step, [row], max_bytes=max_bytes)


def test_files_are_numbered_and_a_resumed_run_drops_the_later_ones(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").create() as run:
        assert run.recording.num_files == 0 and not run.recording.path.exists()
        fill(run.recording, range(1, 4))
        run.recording.add("after.sampled", 3, [{"step": 3}], max_bytes=MIB)
    resumed = Recording(tmp_path / "run" / "recording")
    assert resumed.num_files == 4
    (resumed.path / ".000005-train-000004.jsonl.gz.77.partial").touch()  # left by a killed process
    resumed.keep(2)
    assert [path.name for path in resumed.path.iterdir()] and len([*resumed.path.iterdir()]) == 2
    fill(resumed, range(3, 5))
    assert names(resumed) == [f"00000{n}-train-00000{n}.jsonl.gz" for n in (1, 2, 3, 4)]
    assert [[row["step"] for row in read_rows(path)] for path in recorded_files(resumed.path)] == [[1], [2], [3], [4]]
    resumed.close()


def test_the_size_is_bounded_and_the_kept_iterations_are_spread(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "recording")
    recording.add("before", 0, [{"step": 0}], max_bytes=40_000)
    fill(recording, range(1, 41), num_bytes=5_000, max_bytes=40_000)
    recording.close()
    steps = [int(path.name[13:19]) for path in recorded_files(recording.path) if "train" in path.name]
    assert steps == [8, 16, 24, 32, 40] and names(recording)[0] == "000001-before-000000.jsonl.gz"
    assert sum(path.stat().st_size for path in recording.path.iterdir()) <= 40_000


def test_a_file_larger_than_the_limit_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recording = Recording(tmp_path / "recording")
    fill(recording, range(1, 3), num_bytes=5_000, max_bytes=1_000, arm="after")
    assert names(recording) == [] and "checkpoint.record_max_mib" in caplog.text
    recording.close()


def test_a_run_whose_recording_cannot_be_written_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "recording").write_text("a file", encoding="utf-8")
    recording = Recording(tmp_path / "recording")
    with caplog.at_level(logging.WARNING):
        fill(recording, range(1, 9))
        recording.close()
    assert caplog.text.count("The run continues without recording") == 1


def test_damaged_files_and_missing_recordings_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no recording; a run records with checkpoint\.record_episodes=16"):
        next(read_recording(tmp_path))
    recording = Recording(tmp_path / "recording")
    fill(recording, range(1, 3))
    recording.close()
    with pytest.raises(
        CheckpointError, match=r"000001-train-000001\.jsonl\.gz is no recording"
    ):  # no row of an episode
        next(read_recording(tmp_path))


def test_records_have_every_token_with_its_values(
    tmp_path: Path, make_episode: Callable[..., Trajectory], letters: Any
) -> None:
    called, plain = make_episode(1, calls=True, right=True), make_episode(2, calls=False, right=False)
    (segment,) = called.segments
    own = np.array(segment.loss_mask)
    noise = np.random.default_rng(1).normal(size=len(own)).astype(np.float32)
    learned = {"in_loss": np.where(own, 1.0, np.nan), "advantages": np.where(own, noise, np.nan)}
    rows: list[dict[str, Any]] = [
        recorded_row(called, letters, step=7, arm="train", exact_match=True, learned=[learned]),
        recorded_row(plain, letters, step=7, arm="train"),
    ]
    recording = Recording(tmp_path / "recording")
    recording.add("train", 7, rows, max_bytes=MIB)
    after = recorded_row(plain, letters, step=0, arm="after")
    recording.add("after", 0, [after], max_bytes=MIB)
    recording.close()
    first, second = read_recording(tmp_path, iterations=[7])
    assert (first.stage, first.arm, first.iteration, first.group, first.right) == ("training", "train", 7, 0, True)
    assert first.reward_parts == {"correct": 1.0, "format": 0.1, "call_cost": -0.05} and first.stop_reason == "answered"
    (found,) = first.segments
    assert found.token_ids.tolist() == segment.token_ids and "".join(found.texts) == "".join(
        map(chr, segment.token_ids)
    )
    assert (found.columns["advantages"][own] == noise[own]).all() and found.in_loss.tolist() == segment.loss_mask
    tokens = [*found]
    assert {token.author for token in tokens} == {"prompt", "policy", "tool"}
    policy = [token for token in tokens if token.author == "policy"]
    assert all(token.sampled_logprob == np.float32(-0.1) and token.policy_version == 0 for token in policy)
    others = [token for token in tokens if token.author != "policy"]
    assert all(math.isnan(token.advantage) and token.policy_version == -1 and not token.in_loss for token in others)
    (event,) = first.tool_events
    assert event["time/seconds"] == 0.0123 and tokens[event["token"]].author == "policy"
    assert tokens[event["token"] + 1].author == "tool"
    assert not second.segments[0].in_loss.any() and math.isnan([*second.segments[0]][-1].advantage)
    (other,) = read_recording(tmp_path, arms=["after"])
    assert (other.stage, other.iteration, other.tool_events) == ("evaluation", 0, [])
