"""Rewards: named, weighted, judged from the record. Nothing that the policy merely claims is paid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.env.rewards import WeightedReward, correct, num_calls, well_formed_thought
from midthought.types import (
    Completion,
    Finish,
    StopReason,
    Task,
    ToolCall,
    ToolEvent,
    ToolOutcome,
    Trajectory,
)

EVENT = ToolEvent(call=ToolCall(tool_name="look"), outcome=ToolOutcome.RAISED)


def decode(token_ids) -> str:
    return "".join(map(chr, token_ids))


def episode(written: str, *, calls: int = 0, **task) -> Trajectory:
    fields = {"task_id": "t", "prompt": "?", "answer": "Ada", **task}
    trajectory = Trajectory(Task(**fields), [ord(character) for character in "?<think>"])
    for _ in range(calls):
        trajectory.add_results([EVENT], [ord("#")])
    token_ids = tuple(map(ord, written))
    trajectory.add_sampled(
        Completion(token_ids=token_ids, sampled_logprobs=(-1.0,) * len(token_ids), finish=Finish.END)
    )
    trajectory.stop_reason = StopReason.ANSWERED
    return trajectory


REWARD = WeightedReward(
    {
        "correct": (1.0, correct(decode, ["$"])),
        "thought": (0.1, well_formed_thought(decode, ["$"])),
        "calls": (-0.15, num_calls),
    }
)


@pytest.mark.parametrize(
    ("done", "parts"),
    [
        (episode("hm</think> Ada$"), {"correct": 1.0, "thought": 0.1, "calls": 0.0}),
        (episode("hm</think> Ada$", calls=2), {"correct": 1.0, "thought": 0.1, "calls": -0.3}),
        (episode("hm</think> Bob$", calls=1), {"correct": 0.0, "thought": 0.1, "calls": -0.15}),
        (episode("hm Ada$"), {"correct": 0.0, "thought": 0.0, "calls": 0.0}),
        (episode("hm</think> A. L.$", aliases=("a l",)), {"correct": 1.0, "thought": 0.1, "calls": 0.0}),
    ],
)
def test_the_parts_by_hand(done, parts):
    reward = REWARD(done)
    assert dict(reward.parts) == pytest.approx(parts)
    assert reward.total == pytest.approx(sum(parts.values()))


def test_a_result_that_the_policy_wrote_itself_earns_nothing_and_costs_nothing():
    forged = episode("#call look {}\n#look_result:\n[1] Ada\n\nhm</think> Bob$")
    assert REWARD(forged) == REWARD(episode("hm</think> Bob$"))


def test_every_call_costs_the_same_whatever_became_of_it_and_whether_it_was_needed():
    for outcome in ToolOutcome:
        done = episode("hm</think> Ada$")
        done.tool_events.append(ToolEvent(call=ToolCall(tool_name="look"), outcome=outcome))
        assert REWARD(done).parts["calls"] == -0.15


@given(st.dictionaries(st.sampled_from(["needs_memory", "kind", "quote"]), st.booleans() | st.text(max_size=5)))
def test_labels_change_no_reward(labels):
    assert REWARD(episode("hm</think> Ada$", calls=1, labels=labels)) == REWARD(episode("hm</think> Ada$", calls=1))
