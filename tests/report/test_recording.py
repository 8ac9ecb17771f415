"""The tokens of recorded episodes with their values, as they are written and read again."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midthought.errors import CheckpointError
from midthought.report.recorded_episodes import read_recording, token_values, trajectory_row
from midthought.report.run_folder import RunFolder
from midthought.types import Trajectory


def test_what_was_recorded_comes_back_to_the_bit(
    tmp_path: Path, make_episode: Callable[..., Trajectory], letters: Any
) -> None:
    episode = make_episode(3, calls=True, right=True)
    (segment,) = episode.segments
    own = np.array(segment.loss_mask)
    noise = np.random.default_rng(1).normal(size=len(own)).astype(np.float32)
    learned = [{"advantages": np.where(own, noise, np.nan), "in_loss": np.where(own, 1.0, np.nan)}]

    def row(arm: str, step: int, tokens: dict[str, Any]) -> dict[str, Any]:
        return trajectory_row(episode, letters.decode, step=step, arm=arm, exact_match=True) | tokens

    with RunFolder(tmp_path).create() as run:
        run.add_trajectories([row("train", 6, {}), row("train", 7, token_values(episode, letters, learned))])
        run.add_trajectories([row("after", 0, token_values(episode, letters))])
    (first,) = read_recording(tmp_path, iterations=[6, 7])
    assert (first.arm, first.step, first.facts["group"], first.right) == ("train", 7, 0, True)
    assert first.facts["reward"]["parts"] == {"correct": 1.0, "format": 0.1, "call_cost": -0.05}
    (found,) = first.segments or ()
    assert found.token_ids.tolist() == segment.token_ids
    assert "".join(found.texts) == "".join(map(chr, segment.token_ids))
    assert first.spans == [(s["kind"], s["text"], s["num_tokens"]) for s in row("", 0, {})["spans"]]
    assert (found.columns["advantages"][own] == noise[own]).all() and found.in_loss.tolist() == segment.loss_mask
    assert {*found.authors} == {"prompt", "policy", "tool"} and [each == "policy" for each in found.authors] == [*own]
    assert (found.columns["sampled_logprobs"][own] == np.float32(-0.1)).all() and (
        found.policy_versions == own - 1
    ).all()
    assert np.isnan(found.columns["advantages"][~own]).all()
    (event,) = first.facts["events"]
    assert event["time/seconds"] == 0.0123 and found.authors[event["token"] : event["token"] + 2] == ["policy", "tool"]
    (other,) = read_recording(tmp_path, arms=["after"])
    assert other.segments and not other.segments[0].in_loss.any()
    assert math.isnan(other.segments[0].columns["advantages"][-1])


def test_a_run_without_tokens_and_damaged_ones_are_named(
    tmp_path: Path, make_episode: Callable[..., Trajectory], letters: Any
) -> None:
    episode = make_episode(3, calls=True, right=True)
    row = trajectory_row(episode, letters.decode, step=4, arm="train")
    with RunFolder(tmp_path).create() as run:
        run.add_trajectories([row])
        with pytest.raises(CheckpointError, match=r"no recorded tokens; .*checkpoint\.record_episodes"):
            list(read_recording(tmp_path))
        (segment,) = token_values(episode, letters)["segments"]
        run.add_trajectories([row | {"segments": [segment | {"texts": ["x"]}]}])
    with pytest.raises(
        CheckpointError, match=r"trajectories.jsonl: the tokens of episode 'who-003' of train 4 cannot be"
    ):
        list(read_recording(tmp_path))
