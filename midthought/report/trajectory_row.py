"""A Trajectory as one readable JSON row of `trajectories.jsonl`. Does not depend on the tokenizer: the caller decodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from midthought.types import ToolEvent, Trajectory

Decode = Callable[[list[int]], str]


def trajectory_row(
    trajectory: Trajectory, decode: Decode, *, step: int, arm: str, exact_match: bool | None = None
) -> dict[str, Any]:
    """Returns the row of one episode: `episode_row` with the texts of its spans and its tool events.

    `arm` is its origin (`before`, `after`, `after.tool_off`, `train`); rows of one `task_id` are shown side by side.
    `exact_match` is whether the answer was right, None if it was not judged. Spans are in order over all segments (a
    later prompt starts a new segment), each decoded separately.
    """
    return {
        **episode_row(trajectory, step=step, arm=arm, exact_match=exact_match),
        "spans": [
            {
                "kind": span.kind,
                "text": decode(segment.token_ids[span.start : span.end]),
                "num_tokens": span.end - span.start,
            }
            for segment in trajectory.segments
            for span in segment.spans
        ],
        "events": [event_row(event) for event in trajectory.tool_events],
    }


def episode_row(trajectory: Trajectory, *, step: int, arm: str, exact_match: bool | None) -> dict[str, Any]:
    """Returns what a row has about the episode as a whole."""
    reward = trajectory.reward
    return {
        "step": step,
        "arm": arm,
        "task_id": trajectory.task.task_id,
        "labels": dict(trajectory.task.labels),
        "question": trajectory.task.prompt,
        "answer": trajectory.task.answer,
        "exact_match": exact_match,
        "stop_reason": trajectory.stop_reason,
        "error": trajectory.error,
        "policy_version": trajectory.policy_version,
        "reward": None if reward is None else {"total": reward.total, "parts": dict(reward.parts)},
        "num_calls": trajectory.num_calls,
        "time/tool_seconds": trajectory.tool_seconds,
        "time/engine_seconds": trajectory.engine_seconds,
    }


def event_row(event: ToolEvent) -> dict[str, Any]:
    """Returns a tool event as a row has it."""
    return {
        "tool_name": event.call.tool_name,
        "parameters": dict(event.call.parameters),
        "outcome": event.outcome,
        "time/seconds": event.seconds,
        "result": event.call.result,
        "metadata": dict(event.metadata),
    }
