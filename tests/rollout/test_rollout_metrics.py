"""Metrics of an iteration's episodes, worked by hand."""

from collections.abc import Sequence

import pytest

from midthought.rollout.rollout_metrics import rollout_metrics
from midthought.types import (
    Completion,
    Finish,
    Reward,
    StopReason,
    Task,
    ToolCall,
    ToolEvent,
    ToolOutcome,
    Trajectory,
    Turn,
)

TASK = Task(task_id="t", prompt="?", answer="!")


def sampled(*token_ids: int, logprobs: Sequence[float] = ()) -> Trajectory:
    """Returns an episode of one prompt token and these tokens of the policy."""
    trajectory, logprobs = Trajectory(TASK, [1]), tuple(logprobs or [-1.0] * len(token_ids))
    trajectory.add_sampled(Completion(token_ids=token_ids, sampled_logprobs=logprobs, finish=Finish.END))
    return trajectory


def played() -> Trajectory:
    """Returns an answered episode of two policy tokens."""
    trajectory = sampled(5, 6)
    trajectory.stop_reason, trajectory.reward = StopReason.ANSWERED, Reward(parts={"correct": 1.0})
    return trajectory


def test_the_figures_of_an_iteration_by_hand():
    done = [played() for _ in range(3)]
    done[1].reward = Reward(parts={"correct": 0.0})
    done[2].stop_reason, done[2].reward = StopReason.FAILED, None
    assert rollout_metrics(done)["episode/max_steps"] == 0.0
    done[1].stop_reason = StopReason.MAX_STEPS
    assert rollout_metrics(done)["episode/max_steps"] == pytest.approx(1 / 3)
    done[1].stop_reason = StopReason.ANSWERED
    metrics = rollout_metrics(done)
    assert metrics["reward/mean"] == 0.5 and metrics["reward/std"] == 0.5 and metrics["reward/correct"] == 0.5
    assert metrics["episode/answered"] == pytest.approx(2 / 3) and metrics["episode/failed"] == pytest.approx(1 / 3)
    assert metrics["episode/policy_tokens"] == metrics["episode/response_tokens"] == 2.0
    assert metrics["episode/calls"] == 0.0


def test_parts_that_only_some_episodes_have_count_as_nothing_elsewhere():
    done = [played() for _ in range(2)]
    done[1].reward = Reward(parts={"polite": 1.0})
    metrics = rollout_metrics(done)
    assert metrics["reward/correct"] == metrics["reward/polite"] == 0.5


def test_the_mean_of_the_reward_is_that_of_all_parts_whatever_their_names():
    done = [played()]
    done[0].reward = Reward(parts={"correct": 1.0, "mean": 5.0, "std": 7.0})
    metrics = rollout_metrics(done)
    assert (metrics["reward/mean"], metrics["reward/std"]) == (13.0, 0.0)


def test_the_figures_of_every_tool_by_hand():
    def event(name, outcome, seconds):
        return ToolEvent(call=ToolCall(tool_name=name), outcome=outcome, seconds=seconds)

    done = [played() for _ in range(4)]
    done[0].tool_events = [event("look", ToolOutcome.OK, 1.0), event("look", ToolOutcome.TIMED_OUT, 4.0)]
    done[1].tool_events = [event("look", ToolOutcome.NO_CALLS_LEFT, 0.0), event("add", ToolOutcome.OK, 0.5)]
    done[2].tool_events = [
        event("<b>\n" * 50, ToolOutcome.UNKNOWN_TOOL, 0.0),
        event(None, ToolOutcome.MALFORMED, 0.0),
        event("nowhere", ToolOutcome.NO_CALLS_LEFT, 0.0),
    ]
    done[3].tool_events = [event("gone", ToolOutcome.UNAVAILABLE, 0.0), event("gone", ToolOutcome.RAISED, 0.0)]
    metrics = rollout_metrics(done)
    kinds = ("calls", "failures", "bad_arguments", "raised", "timed_out", "unavailable", "episodes")
    counted = {
        "look": (0.75, 2 / 3, 0, 0, 1 / 3, 0, 0.5),
        "add": (0.25, 0, 0, 0, 0, 0, 0.25),
        "gone": (0.5, 1, 0, 0.5, 0, 0.5, 0.25),
    }
    expected = {"time/tool/look_seconds": 5 / 3, "time/tool/add_seconds": 0.5, "time/tool/gone_seconds": 0}
    for name, values in counted.items():
        expected |= {f"tool/{name}/{kind}": value for kind, value in zip(kinds, values, strict=True)}
    assert {name: value for name, value in metrics.items() if "tool/" in name} == pytest.approx(expected)
    assert metrics["episode/invalid_calls"] == 0.75 and metrics["episode/calls"] == 9 / 4
    assert metrics["episode/no_calls_left"] == 2 / 4 and metrics["episode/repeated_calls"] == 2 / 9


@pytest.mark.parametrize(
    ("token_ids", "expected"), [([1, 2, 3], 0.0), ([1, 2, 3, 4, 5], 0.0), ([7] * 7, 3 / 4), ([1, 2, 3, 4] * 2, 1 / 5)]
)
def test_repeated_sequences_of_four_tokens_are_counted(token_ids, expected):
    assert rollout_metrics([sampled(*token_ids)])["episode/repetition"] == pytest.approx(expected)


def test_the_uncertainty_of_the_samples_is_the_mean_of_their_negative_logprobs():
    assert "episode/sampled_nats" not in rollout_metrics([Trajectory(TASK, [1])])
    done = [sampled(2, 3, logprobs=(-1.0, -3.0)), sampled(2, logprobs=(-2.0,))]
    assert rollout_metrics(done)["episode/sampled_nats"] == pytest.approx(2.0)


def test_empty_thoughts_are_counted_if_there_are_thoughts():
    outputs = ["<think>\n</think>red", "<think>it is red</think>red", "</think>red", "red"]
    opened = [False, False, True, False]
    done = [played() for _ in outputs]
    for trajectory, text, begins in zip(done, outputs, opened, strict=True):
        trajectory.turns = [Turn(turn_number=1, model_output=text, begins_in_thought=begins)]
    assert rollout_metrics(done)["episode/empty_thoughts"] == pytest.approx(2 / 3)
    assert "episode/empty_thoughts" not in rollout_metrics(done[3:])
