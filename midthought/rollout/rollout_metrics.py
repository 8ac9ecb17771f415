"""Metrics of an iteration's episodes: rewards, calls, lengths, stop reasons. Pure functions of the records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from midthought.types import StopReason, ToolOutcome, Trajectory


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means over the episodes: reward and its parts, calls, lengths, stop reasons. The shares include failed episodes."""
    judged = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    totals = [reward.total for reward in judged]
    mean = sum(totals) / len(totals) if totals else math.nan
    metrics = {
        "reward/mean": mean,
        "reward/std": math.sqrt(sum((total - mean) ** 2 for total in totals) / len(totals)) if totals else math.nan,
    }
    for name in dict.fromkeys(name for reward in judged for name in reward.parts):
        metrics[f"reward/{name}"] = sum(reward.parts.get(name, 0.0) for reward in judged) / len(judged)
    if any(reward.turns for reward in judged):
        metrics["reward/turns"] = sum(sum(reward.turns) for reward in judged) / len(judged)
    if any(reward.calls for reward in judged):  # a part may have the name `calls`
        metrics["reward/per_call"] = sum(sum(reward.calls) for reward in judged) / len(judged)
    if any(reward.spans for reward in judged):
        metrics["reward/per_span"] = sum(value for reward in judged for _, _, value in reward.spans) / len(judged)
    count = len(trajectories)
    metrics["episode/calls"] = sum(trajectory.num_calls for trajectory in trajectories) / count
    metrics["episode/policy_tokens"] = sum(trajectory.num_sampled for trajectory in trajectories) / count
    metrics["episode/response_tokens"] = sum(trajectory.num_response for trajectory in trajectories) / count
    for reason in (StopReason.ANSWERED, StopReason.LENGTH, StopReason.FAILED):
        metrics[f"episode/{reason.value}"] = sum(t.stop_reason is reason for t in trajectories) / count
    metrics["time/episode/tool_seconds"] = sum(trajectory.tool_seconds for trajectory in trajectories) / count
    metrics["time/episode/engine_seconds"] = sum(trajectory.engine_seconds for trajectory in trajectories) / count
    return metrics | _tool_metrics(trajectories)


_REACHED = (
    ToolOutcome.OK,
    ToolOutcome.BAD_ARGUMENTS,
    ToolOutcome.RAISED,
    ToolOutcome.TIMED_OUT,
    ToolOutcome.UNAVAILABLE,
)
"""Outcomes that only a registered tool can have. Any other tool name was invented by the policy."""


def _tool_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of each registered tool that was called.

    `calls` per episode; the shares of calls that failed (`failures`), that the open circuit breaker refused
    (`unavailable`), and that received the result of an equal call (`shared`); the share of `episodes` that called it; seconds
    per call. `episode/invalid_calls`: calls of unregistered tools, per episode.
    """
    events = [(number, event) for number, t in enumerate(trajectories) for event in t.tool_events]
    names = {event.call.tool_name for _, event in events if event.outcome in _REACHED}
    metrics = {}
    for name in sorted(name for name in names if name is not None):
        called = [(number, event) for number, event in events if event.call.tool_name == name]
        failed = sum(event.outcome is not ToolOutcome.OK for _, event in called)
        metrics[f"tool/{name}/calls"] = len(called) / len(trajectories)
        unavailable = sum(event.outcome is ToolOutcome.UNAVAILABLE for _, event in called)
        metrics[f"tool/{name}/failures"] = failed / len(called)
        metrics[f"tool/{name}/unavailable"] = unavailable / len(called)
        metrics[f"tool/{name}/shared"] = sum("shared" in event.metadata for _, event in called) / len(called)
        metrics[f"tool/{name}/episodes"] = len({number for number, _ in called}) / len(trajectories)
        metrics[f"time/tool/{name}_seconds"] = sum(event.seconds for _, event in called) / len(called)
    invalid = sum(event.call.tool_name not in names for _, event in events)
    return {**metrics, "episode/invalid_calls": invalid / len(trajectories)}
