"""Rewards of spans: a worked example."""

import pytest
import torch

from midthought.algo.advantages import compute_advantage
from midthought.learning.batch import TokenBatch
from midthought.types import Completion, Finish, Reward, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory


def example() -> Trajectory:
    """Returns a record of 2 tokens of the prompt, 3 policy tokens, 1 token of a result and 2 policy tokens."""
    trajectory = Trajectory(Task(task_id="t", prompt="?", answer="!"), [1, 1])
    trajectory.add_sampled(Completion(token_ids=(5, 6, 7), sampled_logprobs=(-1.0,) * 3, finish=Finish.CALL))
    trajectory.add_results([ToolEvent(call=ToolCall(tool_name="look"), outcome=ToolOutcome.OK)], [9])
    trajectory.add_sampled(Completion(token_ids=(8, 3), sampled_logprobs=(-1.0,) * 2, finish=Finish.END))
    trajectory.reward = Reward(parts={"right": 1.0}, spans=((2, 4, 1.0), (4, 8, 0.5)))
    return trajectory


def test_the_returns_of_spans_are_those_worked_by_hand():
    batch = TokenBatch.from_trajectories([example()])
    mask, calls = batch.by_episode(batch.loss_mask), batch.by_episode(batch.calls, missing=-1)

    def returns(name: str, gamma: float = 1.0) -> list[float]:
        options = {"index": torch.zeros(1), "calls": calls, "gamma": gamma}
        return compute_advantage(name, batch.by_episode(batch.rewards), mask, **options)[1][mask].tolist()

    assert mask[0].nonzero()[:, 0].tolist() == [2, 3, 4, 6, 7]
    assert batch.rewards[mask[0]].tolist() == [0, 1, 0, 0, 1.5]
    assert returns("reinforce_plus_plus") == [2.5, 2.5, 1.5, 1.5, 1.5]
    assert returns("reinforce_plus_plus", 0.5) == pytest.approx([0.59375, 1.1875, 0.375, 0.75, 1.5])
    assert returns("grpo_calls") == [2.5, 2.5, 2.5, 1.5, 1.5]
    assert returns("grpo_calls", 0.0) == [1, 1, 1, 1.5, 1.5]
    assert example().reward.total == 2.5
