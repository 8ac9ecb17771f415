"""Rewards of spans: the worked example of docs/algorithms.md, and that packing, order and recording change nothing."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_settings import training

from midthought.algo.advantages import compute_advantage
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.rollout.trajectory_json import load_trajectories, save_trajectories
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


@pytest.mark.parametrize("estimator", ["gae", "grpo_calls"])
def test_advantages_and_the_step_do_not_depend_on_packing_order_or_recording(
    estimator, make_policy, make_trajectory, tmp_path
):
    episodes = [make_trajectory(seed, group=seed // 2) for seed in range(4)]
    for number, trajectory in enumerate(episodes):
        end = len(trajectory.token_ids)
        spans = ((0, trajectory.call_ends[0][1], number + 1.0), (0, end - 1, -1.0), (end - 3, end, 0.5 * number))
        trajectory.reward = replace(trajectory.reward, spans=spans)
    save_trajectories(tmp_path / "episodes.jsonl", episodes)
    policy = make_policy()

    def learned(trajectories: list[Trajectory], packing: bool) -> tuple[dict[str, list[float]], dict[str, float]]:
        settings = training(adv_estimator=estimator, packing=packing, ppo_epochs=1, norm_adv_by_std=False)
        learner = Learner(copy.deepcopy(policy), None, None, settings)
        batch = TokenBatch.from_trajectories(trajectories)
        scored, _ = learner.score(batch)
        credited, _ = learner.credit(scored.with_fields(values=0.1 * batch.token_ids * batch.loss_mask))
        rows = credited.advantages.split(credited.lengths.tolist())
        names = [trajectory.task.task_id for trajectory in trajectories]
        advantages = {name: row.tolist() for name, row in zip(names, rows, strict=True)}
        metrics = learner.update(credited.with_fields(values=None, returns=None))
        return advantages, {name: metrics[name] for name in ("policy_loss", "grad_norm")}

    advantages, metrics = learned(episodes, packing=False)
    assert len({round(number, 4) for row in advantages.values() for number in row}) > 4
    for others, packing in (([*reversed(episodes)], True), (load_trajectories(tmp_path / "episodes.jsonl"), True)):
        found, figures = learned(others, packing)
        assert {name: pytest.approx(row, abs=1e-5) for name, row in advantages.items()} == found
        assert figures == pytest.approx(metrics, rel=1e-4, abs=1e-6)
