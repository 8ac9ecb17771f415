"""A Trajectory as one readable JSON row of `trajectories.jsonl`. Does not depend on the tokenizer: the caller decodes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from midthought.types import Trajectory

Decode = Callable[[list[int]], str]


def trajectory_row(
    trajectory: Trajectory, decode: Decode, *, step: int, arm: str, exact_match: bool | None = None
) -> dict[str, Any]:
    """Returns the row of one episode: its task, its end, its reward, the texts of its spans, and its tool events.

    `arm` is its origin (`before`, `after`, `after.tool_off`, `train`); rows of one `task_id` are shown side by side.
    `exact_match` is whether the answer was right, None if it was not judged. Spans are in order over all segments (a
    later prompt starts a new segment), each decoded separately. `token` of an event is the place, over all segments, of the last
    policy token before the result.
    """
    task, reward = trajectory.task, trajectory.reward
    starts = [0, *accumulate(len(segment.token_ids) for segment in trajectory.segments)]
    places: list[dict[str, int]] = [{"token": starts[segment] + index} for segment, index in trajectory.call_ends]
    places += [{}] * (len(trajectory.tool_events) - len(places))
    return {
        "step": step,
        "arm": arm,
        "task_id": task.task_id,
        "group": trajectory.group,
        "labels": dict(task.labels),
        "question": task.prompt,
        "answer": task.answer,
        "exact_match": exact_match,
        "stop_reason": trajectory.stop_reason,
        "error": trajectory.error,
        "policy_version": max([0, *(max(segment.policy_versions) for segment in trajectory.segments)]),
        "reward": None if reward is None else {"total": reward.total, "parts": dict(reward.parts)},
        "num_calls": trajectory.num_calls,
        "time/tool_seconds": trajectory.tool_seconds,
        "time/engine_seconds": trajectory.engine_seconds,
        "spans": [
            {
                "kind": span.kind,
                "text": decode(segment.token_ids[span.start : span.end]),
                "num_tokens": span.end - span.start,
            }
            for segment in trajectory.segments
            for span in segment.spans
        ],
        "events": [
            {
                "tool_name": event.call.tool_name,
                "parameters": dict(event.call.parameters),
                "outcome": event.outcome,
                "time/seconds": event.seconds,
                "result": event.call.result,
                "metadata": dict(event.metadata),
                **place,
            }
            for event, place in zip(trajectory.tool_events, places, strict=True)
        ],
    }
