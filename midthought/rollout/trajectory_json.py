"""Converts a Trajectory to JSON values and back without loss. Checkpoints contain carried-over episodes in this form."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from midthought.errors import DataError
from midthought.files.regular import atomic_path
from midthought.report.json_lines import json_value
from midthought.types import (
    ParsedAction,
    Reward,
    Segment,
    Span,
    SpanKind,
    StopReason,
    Task,
    ToolCall,
    ToolEvent,
    ToolOutcome,
    Trajectory,
    Turn,
)


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """Returns the record as JSON values. What JSON cannot represent is written as text: in labels of the task, parameters of
    calls, metadata of tools, and an environment's `info`."""
    row = vars(trajectory) | {
        "task": trajectory.task.to_dict(),
        "segments": [_segment_to_json(segment) for segment in trajectory.segments],
        "tool_events": [
            {**asdict(replace(each, metadata={})), "metadata": each.metadata} for each in trajectory.tool_events
        ],
        "reward": None if trajectory.reward is None else trajectory.reward.to_dict(),
        "turns": [turn_to_json(turn) for turn in trajectory.turns],
    }
    return {name: json_value(value, str) for name, value in row.items()}


def trajectory_from_json(row: Mapping[str, Any]) -> Trajectory:
    """Returns the record that `trajectory_to_json` wrote; numbers that were not finite are NaN. Raises RecordError if it is
    invalid."""
    segments = [_segment_from_json(segment) for segment in row["segments"]]
    task = Task.from_dict(row["task"])
    trajectory = Trajectory(task, segments[0].token_ids)
    vars(trajectory).update({name: row[name] for name in vars(trajectory)})
    trajectory.task, trajectory.segments = task, segments
    trajectory.tool_events = [_event_from_json(event) for event in row["tool_events"]]
    trajectory.stop_reason = None if row["stop_reason"] is None else StopReason(row["stop_reason"])
    trajectory.reward = None if row["reward"] is None else Reward.from_dict(row["reward"])
    trajectory.turns = [turn_from_json(turn) for turn in row["turns"]]
    trajectory.turn_ends = [(segment, index) for segment, index in row["turn_ends"]]
    trajectory.call_ends = [(segment, index) for segment, index in row["call_ends"]]
    trajectory.values = list(map(_number, row["values"]))
    trajectory.check()
    return trajectory


def save_trajectories(path: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> None:
    """Writes complete records, one JSON line each, replacing the file."""
    rows = [json.dumps(trajectory_to_json(trajectory), allow_nan=False) + "\n" for trajectory in trajectories]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(Path(path)) as written:
        written.write_text("".join(rows), encoding="utf-8")


def load_trajectories(path: str | os.PathLike[str]) -> list[Trajectory]:
    """Reads the records of `save_trajectories`. Raises DataError if there is no such file, or a line is not a record."""
    file, found = Path(path), list[Trajectory]()
    if not file.is_file():
        raise DataError(f"{file} is no file of recorded episodes; save_trajectories writes one")
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            found.append(trajectory_from_json(json.loads(line.decode())))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise DataError(f"{file}, line {number} is not a recorded episode: {error!r:.200}") from None
    return found


def _segment_to_json(segment: Segment) -> dict[str, Any]:
    """Writes log-probabilities and versions of the policy's tokens only: other tokens have none."""
    own = [index for index, flag in enumerate(segment.loss_mask) if flag]
    return {
        "token_ids": segment.token_ids,
        "spans": [[span.kind, span.start, span.end, span.temperature] for span in segment.spans],
        "sampled_logprobs": [segment.sampled_logprobs[index] for index in own],
        "policy_versions": [segment.policy_versions[index] for index in own],
    }


def _segment_from_json(row: Mapping[str, Any]) -> Segment:
    spans = [Span(SpanKind(kind), *rest) for kind, *rest in row["spans"]]
    mask = [span.kind is SpanKind.SAMPLED for span in spans for _ in range(span.start, span.end)]
    return Segment(
        token_ids=list(row["token_ids"]),
        loss_mask=mask,
        sampled_logprobs=_spread(map(_number, row["sampled_logprobs"]), mask, math.nan),
        policy_versions=_spread(row["policy_versions"], mask, -1),
        spans=spans,
    )


def _spread(values: Any, mask: Sequence[bool], missing: Any) -> list[Any]:
    found = iter(values)
    return [next(found) if flag else missing for flag in mask]


def _event_from_json(row: Mapping[str, Any]) -> ToolEvent:
    return ToolEvent(**{**row, "call": ToolCall(**row["call"]), "outcome": ToolOutcome(row["outcome"])})


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """Returns a turn as JSON values, with the environment's `info` if it has one."""
    row = asdict(replace(turn, info=None))  # which copies, and an info may hold what cannot be copied
    del row["info"]
    return row if turn.info is None else {**row, "info": json_value(turn.info, str)}


def turn_from_json(row: Mapping[str, Any]) -> Turn:
    """Returns the turn that `turn_to_json` wrote."""
    fields = {**row, "tool_call": ToolCall(**row["tool_call"]), "reward": _number(row["reward"])}
    fields |= {"think_tags": tuple(row["think_tags"])} if "think_tags" in row else {}
    if row["parsed_action"] is not None:
        fields["parsed_action"] = ParsedAction(**row["parsed_action"])
    return Turn(**fields)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
