"""Single-question episodes: the environment never replies, and the reward is computed from the trajectory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

from midthought.config import RewardConfig
from midthought.env.episode import call
from midthought.env.reward_functions import AnyRewardFunction, WeightedReward
from midthought.env.rewards import correct, num_calls, well_formed_thought, wrong_answer
from midthought.types import Reward, Trajectory


@dataclass(frozen=True, slots=True)
class QuestionEnvironment:
    """Implements the rollout loop's `EpisodeEnvironment`. One instance is used for all episodes."""

    reward: WeightedReward
    timeout_seconds: float | None = None
    """Time limit of the reward functions, which then run in a thread (`async` ones on the environments' event loop), so that
    they do not block other episodes. None: no limit, and they are called directly."""
    follows_from_record: ClassVar[bool] = True
    """It has no state: an interrupted episode can continue from its trajectory, also in another process."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Returns None: the answer ends the episode."""
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        """Returns the reward. With a time limit, raises `EpisodeError` if a reward function raises or exceeds it."""
        if self.timeout_seconds is None:
            return await self.reward.score(trajectory)
        judge = functools.partial(self.reward, trajectory)
        scored: Reward = await call(judge, self.timeout_seconds, "the reward")
        return scored


class NullEnvironment:
    """Environment without replies and rewards. Implements the rollout loop's `EpisodeEnvironment`."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Returns None: the answer ends the episode."""
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        """Returns an empty reward: who needs one computes it from the record."""
        return Reward()


def answer_reward(weights: RewardConfig) -> WeightedReward:
    """Returns the reward of the `reward` settings: correct answer, well-formed thought, cost per call, cost of a wrong answer."""
    parts: dict[str, tuple[float, AnyRewardFunction]] = {
        "correct": (weights.correct, correct),
        "thought": (weights.thought, well_formed_thought),
        "calls": (-weights.call_cost, num_calls),
    }
    if weights.wrong_answer:
        parts["wrong_answer"] = (-weights.wrong_answer, wrong_answer)
    return WeightedReward(parts)
