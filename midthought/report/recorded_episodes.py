"""Recorded episodes: writes a Trajectory with the values of its tokens as a row, and reads a run's recording as typed records.

Columns of numbers are base64 of little-endian arrays, so they are exact and short.
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from midthought.errors import CheckpointError
from midthought.report.quantities import recorded_columns
from midthought.report.recording import FOLDER, TRAINING_ARM, arm_and_step, read_rows, recorded_files
from midthought.report.trajectory_row import episode_row, event_row
from midthought.tokenization import Renderer
from midthought.types import Segment, Trajectory

Array = np.ndarray[Any, Any]
COLUMNS = recorded_columns()
"""Columns of float32 numbers, with the field of `RecordedToken`. The file has them for the policy's tokens only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedToken:
    """One token. Numbers are NaN if the token has none: it is not the policy's, or the episode was not trained on."""

    token_id: int
    text: str
    """The text that the token completes; empty within a character of several tokens."""
    author: str
    """`policy`, `tool`, `prompt` or `reply` (of the environment or user)."""
    in_loss: bool
    """Whether the update trained on it."""
    policy_version: int
    """-1 if it was not sampled."""
    sampled_logprob: float
    """As recorded by the engine."""
    logprob: float
    """Recomputed by the learner before the update."""
    reference_logprob: float
    ratio: float
    """`exp(log π - log π_old)` in the token's latest pass of the update."""
    advantage: float
    """As the loss uses it, except that losses of pairs replace it in each step."""
    value: float
    """The critic's, before the update."""
    entropy: float
    """Of the distribution at this token, in its latest pass, in nats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedSegment:
    """A sequence of T tokens; a later prompt starts a new segment."""

    token_ids: Array  # [T] int32
    texts: list[str]
    authors: list[str]
    in_loss: Array  # [T] bool
    policy_versions: Array  # [T] int32
    columns: Mapping[str, Array]
    """By the names of `COLUMNS`: [T] float32, NaN if a token has no value."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def __iter__(self) -> Iterator[RecordedToken]:
        for index in range(len(self)):
            yield RecordedToken(
                token_id=int(self.token_ids[index]),
                text=self.texts[index],
                author=self.authors[index],
                in_loss=bool(self.in_loss[index]),
                policy_version=int(self.policy_versions[index]),
                **{name: float(self.columns[column][index]) for column, name in COLUMNS.items()},
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedEpisode:
    """One episode of a recording."""

    stage: str
    """`training` or `evaluation`."""
    arm: str
    """`train`, `validation`, `before`, `after.sampled`, …"""
    iteration: int
    """Training iterations done; 0 for the arms of a recipe's evaluation."""
    task_id: str
    question: str
    answer: str
    """The expected one."""
    labels: Mapping[str, Any]
    group: int
    """Episodes of one group have the same prompt."""
    right: bool | None
    """None if it was not judged."""
    reward: float | None
    reward_parts: Mapping[str, float]
    stop_reason: str | None
    error: str | None
    tool_events: list[dict[str, Any]]
    """As in `trajectories.jsonl` (`tool_name`, `parameters`, `outcome`, `result`, `time/seconds`), with `segment` and `token`:
    the place of the last policy token before the result."""
    tool_seconds: float
    engine_seconds: float
    segments: list[RecordedSegment]


def recorded_row(
    trajectory: Trajectory,
    renderer: Renderer,
    *,
    step: int,
    arm: str,
    exact_match: bool | None = None,
    learned: Sequence[Mapping[str, Array]] = (),
) -> dict[str, Any]:
    """Returns the row of one episode. `learned`: per segment, columns of the update ([T], NaN without a value) and `in_loss`."""
    events = [
        {**event_row(event), "segment": segment, "token": index}
        for event, (segment, index) in zip(trajectory.tool_events, trajectory.call_ends, strict=False)
    ]
    per_segment = learned or [{}] * len(trajectory.segments)
    return {
        "stage": "training" if arm == TRAINING_ARM else "evaluation",
        **episode_row(trajectory, step=step, arm=arm, exact_match=exact_match),
        "group": trajectory.group,
        "events": events,
        "segments": [
            _segment_row(segment, renderer, columns)
            for segment, columns in zip(trajectory.segments, per_segment, strict=True)
        ],
    }


def _segment_row(segment: Segment, renderer: Renderer, columns: Mapping[str, Array]) -> dict[str, Any]:
    own = np.array(segment.loss_mask, dtype=bool)
    found: dict[str, Array] = {"sampled_logprobs": np.array(segment.sampled_logprobs, dtype=np.float32), **columns}
    in_loss = found.pop("in_loss", np.full(len(own), np.nan))
    return {
        "spans": [[str(span.kind), span.end - span.start] for span in segment.spans],
        "token_ids": packed(segment.token_ids, "<i4"),
        "texts": [
            text for span in segment.spans for text in _texts(segment.token_ids[span.start : span.end], renderer)
        ],
        "policy_versions": packed(np.array(segment.policy_versions)[own], "<i4"),
        "in_loss": packed(in_loss[own] == 1, "u1"),
        **{name: packed(values[own], "<f4") for name, values in found.items()},
    }


def _texts(token_ids: Sequence[int], renderer: Renderer) -> list[str]:
    stream = renderer.decode_stream()
    return [stream.step(token_id) for token_id in token_ids]


def read_recording(
    run_path: str | os.PathLike[str], *, arms: Collection[str] | None = None, iterations: Collection[int] | None = None
) -> Iterator[RecordedEpisode]:
    """Yields the recorded episodes of a run in the order of writing; of these arms and iterations, if given.

    Reads one file at a time, also of a running run. Raises `CheckpointError` if nothing was recorded, or a file is damaged.
    """
    files = recorded_files(Path(run_path) / FOLDER)
    if not files:
        raise CheckpointError(f"{run_path} has no recording; a run records with checkpoint.record_episodes=16")
    for path in files:
        arm, step = arm_and_step(path)
        if (arms is None or arm in arms) and (iterations is None or step in iterations):
            yield from read_rows(path, _episode)


def _episode(row: Mapping[str, Any]) -> RecordedEpisode:
    reward = row["reward"] or {"total": None, "parts": {}}
    same = ("stage", "arm", "task_id", "question", "answer", "labels", "group", "stop_reason", "error")
    return RecordedEpisode(
        **{name: row[name] for name in same},
        iteration=row["step"],
        right=row["exact_match"],
        reward=reward["total"],
        reward_parts=reward["parts"],
        tool_events=row["events"],
        tool_seconds=row["time/tool_seconds"],
        engine_seconds=row["time/engine_seconds"],
        segments=[_segment(segment) for segment in row["segments"]],
    )


def _segment(row: Mapping[str, Any]) -> RecordedSegment:
    token_ids = unpacked(row["token_ids"], "<i4")
    authors = [author for author, length in row["spans"] for _ in range(length)]
    own = np.array([author == "policy" for author in authors], dtype=bool)

    def spread(name: str, dtype: str, missing: float) -> Array:
        column = np.full(len(token_ids), missing, dtype=dtype)
        if name in row:
            column[own] = unpacked(row[name], dtype)
        return column

    return RecordedSegment(
        token_ids=token_ids,
        texts=row["texts"],
        authors=authors,
        in_loss=spread("in_loss", "u1", 0).astype(bool),
        policy_versions=spread("policy_versions", "<i4", -1),
        columns={name: spread(name, "<f4", math.nan) for name in COLUMNS},
    )


def packed(values: Any, dtype: str) -> str:
    """Returns an array as base64 of its bytes; `dtype` as numpy names it (`<f4`, `<i4`, `u1`)."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode("ascii")


def unpacked(text: str, dtype: str) -> Array:
    """The inverse of `packed`: [n]."""
    return np.frombuffer(base64.b64decode(text), dtype=dtype)
