"""Rewards of spans: the worked example of docs/algorithms.md."""

from pathlib import Path

import pytest
import torch

from midthought.algo.advantages import compute_advantage
from midthought.learning.batch import TokenBatch
from midthought.types import Completion, Finish, Reward, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"


def example() -> Trajectory:
    trajectory = Trajectory(Task(task_id="t", prompt="?", answer="!"), [1, 1])
    trajectory.add_sampled(Completion(token_ids=(5, 6, 7), sampled_logprobs=(-1.0,) * 3, finish=Finish.CALL))
    trajectory.add_results([ToolEvent(call=ToolCall(tool_name="look"), outcome=ToolOutcome.OK)], [9])
    trajectory.add_sampled(Completion(token_ids=(8, 3), sampled_logprobs=(-1.0,) * 2, finish=Finish.END))
    trajectory.reward = Reward(parts={"right": 1.0}, spans=((2, 4, 1.0), (4, 8, 0.5)))
    return trajectory


def test_the_worked_example_on_the_page_is_what_the_estimators_give():
    batch = TokenBatch.from_trajectories([example()])
    mask, calls = batch.by_episode(batch.loss_mask), batch.by_episode(batch.calls, missing=-1)

    def returns(name: str, gamma: float = 1.0) -> list[float]:
        options = {"index": torch.zeros(1), "calls": calls, "gamma": gamma}
        return compute_advantage(name, batch.by_episode(batch.rewards), mask, **options)[1][mask].tolist()

    section = PAGE.read_text("utf-8").partition("### Rewards per span of tokens")[2].partition("\n### ")[0]
    lines = [line.strip("| ").split(" | ")[1:] for line in section.splitlines() if line.startswith("| ")]
    on_page = [[float(cell) for cell in cells] for cells in lines if "---" not in cells[0]]
    assert on_page == [
        mask[0].nonzero()[:, 0].tolist(),
        batch.rewards[mask[0]].tolist(),
        returns("reinforce_plus_plus"),
        pytest.approx(returns("reinforce_plus_plus", 0.5), abs=5e-5),
        returns("grpo_calls"),
        returns("grpo_calls", 0.0),
        [example().reward.total] * 5,
    ]
