"""Rewards as named, weighted functions of the record: what happened and the ground truth, never a label, never a claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from midthought.env.thought import Decode, final_answer, is_well_formed, matches
from midthought.types import Reward, Trajectory

RewardFunction = Callable[[Trajectory], float]


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """The weighted sum of named parts, each recorded. `score` is given to the rollout loop.

    >>> from midthought.types import Task
    >>> reward = WeightedReward({"calls": (-0.5, lambda trajectory: trajectory.num_calls)})
    >>> reward(Trajectory(Task(task_id="t", prompt="?", answer="!"), [1])).total
    -0.0
    """

    parts: Mapping[str, tuple[float, RewardFunction]]

    def __call__(self, trajectory: Trajectory) -> Reward:
        return Reward(parts={name: weight * function(trajectory) for name, (weight, function) in self.parts.items()})


def correct(decode: Decode, end_tokens: Sequence[str] = ()) -> RewardFunction:
    """1 where the answer after the last thought is the ground truth or one of its aliases, else 0."""

    def judge(trajectory: Trajectory) -> float:
        task = trajectory.task
        return float(matches(final_answer(trajectory, decode, end_tokens), (task.answer, *task.aliases)))

    return judge


def well_formed_thought(decode: Decode, end_tokens: Sequence[str] = ()) -> RewardFunction:
    """1 for one thought, closed once, with an answer after it, else 0."""
    return lambda trajectory: float(is_well_formed(trajectory, decode, end_tokens))


def num_calls(trajectory: Trajectory) -> float:
    """Calls that were asked for, counted from the events."""
    return float(trajectory.num_calls)
