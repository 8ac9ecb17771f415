"""Metrics of an iteration's episodes: rewards, calls, thoughts, lengths, stop reasons. Pure functions of the records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from midthought.env.rewards import thought_of
from midthought.types import StopReason, ToolOutcome, Trajectory

NGRAM = 4
"""Tokens of a sequence that counts as a repetition if it occurred before in the same episode."""
MAX_COMPARED = 1024
"""Last policy tokens of an episode in which repetitions are counted."""


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means over the episodes: reward and its parts, calls, lengths, stop reasons. The shares include failed episodes.

    `reward/mean` and `reward/std` are of the whole reward, also if a part has the name `mean` or `std`.
    `episode/count`: number of episodes. `episode/repetition`: share of repeated sequences of `NGRAM` policy tokens.
    `episode/sampled_nats`: mean negative log-probability of a policy token, which estimates the entropy without a learner.
    `episode/empty_thoughts`: share of thoughts without a word, if there is a thought. `episode/repeated_calls`: share of calls
    that equal an earlier one of their episode. `episode/no_calls_left`: share of episodes with a call beyond the limit.
    """
    judged = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    totals = [reward.total for reward in judged]
    mean = sum(totals) / len(totals) if totals else math.nan
    metrics = {
        "reward/mean": mean,
        "reward/std": math.sqrt(sum((total - mean) ** 2 for total in totals) / len(totals)) if totals else math.nan,
    }
    for name in dict.fromkeys(name for reward in judged for name in reward.parts):
        metrics.setdefault(f"reward/{name}", sum(reward.parts.get(name, 0.0) for reward in judged) / len(judged))
    if any(reward.turns for reward in judged):
        metrics["reward/turns"] = sum(sum(reward.turns) for reward in judged) / len(judged)
    if any(reward.calls for reward in judged):  # a part may have the name `calls`
        metrics["reward/per_call"] = sum(sum(reward.calls) for reward in judged) / len(judged)
    count = len(trajectories)
    metrics["episode/calls"] = sum(trajectory.num_calls for trajectory in trajectories) / count
    metrics["episode/policy_tokens"] = sum(trajectory.num_sampled for trajectory in trajectories) / count
    metrics["episode/response_tokens"] = sum(trajectory.num_response for trajectory in trajectories) / count
    metrics["episode/count"] = count
    for reason in StopReason:
        if reason is not StopReason.CANCELLED:  # such an episode is in no batch
            metrics[f"episode/{reason.value}"] = sum(t.stop_reason is reason for t in trajectories) / count
    metrics["time/episode/tool_seconds"] = sum(trajectory.tool_seconds for trajectory in trajectories) / count
    metrics["time/episode/engine_seconds"] = sum(trajectory.engine_seconds for trajectory in trajectories) / count
    return metrics | _text_metrics(trajectories) | _tool_metrics(trajectories)


def _text_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    metrics = {"episode/repetition": sum(map(repetition, trajectories)) / len(trajectories)}
    segments = [segment for t in trajectories for segment in t.segments]
    nats = [-each for segment in segments for each in segment.sampled_logprobs if math.isfinite(each)]
    if nats:
        metrics["episode/sampled_nats"] = math.fsum(nats) / len(nats)
    thoughts = [thought for t in trajectories for turn in t.turns if (thought := thought_of(turn)) is not None]
    if thoughts:
        metrics["episode/empty_thoughts"] = sum(not thought.strip() for thought in thoughts) / len(thoughts)
    return metrics


def repetition(trajectory: Trajectory) -> float:
    """Returns the share of sequences of `NGRAM` policy tokens that occurred before, in the last `MAX_COMPARED` policy tokens; 0
    for fewer than `NGRAM`. Source: seq-rep-4 of Welleck et al. (arXiv 1908.04319), section 6.1."""
    tokens = [token for run in trajectory.sampled_runs() for token in run][-MAX_COMPARED:]
    ngrams = list(zip(*(tokens[start:] for start in range(NGRAM)), strict=False))
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def _tool_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of each registered tool that was called.

    `calls` per episode; the shares of calls that failed (`failures`), of these for wrong arguments (`bad_arguments`), with an
    exception (`raised`), at the time limit (`timed_out`), and not run because many late calls still run (`unavailable`); the
    share of `episodes` that called it; seconds per call.
    `episode/invalid_calls`: calls that cannot be parsed or name no registered tool, per episode; a call beyond the limit names
    none if others of the iteration reached a tool, and it did not.
    """
    events = [(number, event) for number, t in enumerate(trajectories) for event in t.tool_events]
    names = {event.call.tool_name for _, event in events if event.outcome.is_of_tool}
    failures = [outcome for outcome in ToolOutcome if outcome.is_of_tool and outcome is not ToolOutcome.OK]
    metrics = {}
    for name in sorted(name for name in names if name is not None):
        called = [(number, event) for number, event in events if event.call.tool_name == name]
        failed = sum(event.outcome is not ToolOutcome.OK for _, event in called)
        metrics[f"tool/{name}/calls"] = len(called) / len(trajectories)
        metrics[f"tool/{name}/failures"] = failed / len(called)
        for outcome in failures:
            metrics[f"tool/{name}/{outcome.value}"] = sum(e.outcome is outcome for _, e in called) / len(called)
        metrics[f"tool/{name}/episodes"] = len({number for number, _ in called}) / len(trajectories)
        metrics[f"time/tool/{name}_seconds"] = sum(event.seconds for _, event in called) / len(called)
    refused = {number for number, event in events if event.outcome is ToolOutcome.NO_CALLS_LEFT}
    judged = [event for _, event in events if names or event.outcome is not ToolOutcome.NO_CALLS_LEFT]
    of_episodes = {
        "invalid_calls": sum(event.call.tool_name not in names for event in judged) / len(trajectories),
        "no_calls_left": len(refused) / len(trajectories),
        "repeated_calls": sum(map(_num_repeated_calls, trajectories)) / max(len(events), 1),
    }
    return metrics | {f"episode/{name}": number for name, number in of_episodes.items()}


def _num_repeated_calls(trajectory: Trajectory) -> int:
    calls = [(event.call.tool_name, repr(event.call.parameters)) for event in trajectory.tool_events]
    return len(calls) - len(set(calls))
