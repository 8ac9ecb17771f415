"""An episode that is one question: nobody replies, and the reward is computed from the record."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from midthought.config import RewardConfig
from midthought.env.episode import call
from midthought.env.reasoning import Decode
from midthought.env.reward_functions import AsyncReward, WeightedReward
from midthought.env.rewards import correct, num_calls, well_formed_thought
from midthought.types import Reward, Trajectory


@dataclass(frozen=True, slots=True)
class QuestionEnvironment:
    """Implements the rollout loop's `EpisodeEnvironment`; the same one serves every episode."""

    reward: WeightedReward | AsyncReward
    timeout_seconds: float | None = None
    """Deadline of the reward functions, which then run in a thread (`async` ones on the environments' event loop), so that
    one that blocks holds nobody up. None: no deadline, and they are called where the episode runs."""
    follows_from_record: ClassVar[bool] = True
    """It keeps no state: an episode that was interrupted goes on from its record alone, in another process, too."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Nothing: the answer ends the episode."""
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        """What the reward functions say of the record. EpisodeError where there is a deadline and they raise or miss it."""
        if self.timeout_seconds is None:
            return await self.reward.score(trajectory)
        judge = functools.partial(self.reward, trajectory)
        scored: Reward = await call(judge, self.timeout_seconds, "the reward")
        return scored


def answer_reward(weights: RewardConfig, decode: Decode, end_tokens: Sequence[str] = ()) -> WeightedReward:
    """The reward of the settings' `reward` section: the right answer, a well-formed thought, a cost for every call."""
    return WeightedReward(
        {
            "correct": (weights.correct, correct(decode, end_tokens)),
            "thought": (weights.thought, well_formed_thought(decode, end_tokens)),
            "calls": (-weights.call_cost, num_calls),
        }
    )
