"""Reward: right or wrong, cost per call, bonus for feedback that corrected an answer, penalty for ignoring it.

Computed from the episode's record and the ground truth. `broken_order` finds weights that reward the wrong behaviour.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from midthought.config import Section
from midthought.recipes.feedback.rounds import Round, rounds_of
from midthought.types import Reward, Trajectory


class FeedbackRewardConfig(Section):
    """Weights of the reward's parts. They are checked against the order in docs/feedback.md."""

    preset: Literal["ordered", "original"] = "ordered"
    """`original`: the fixed reward of the published recipe, for comparison; the other keys are then unused. It pays 0.1 for every
    call before a right answer, so a wrong first answer, or a call about a right one, earns more than a right answer at once."""
    correct: float = Field(1.0, gt=0)
    """Reward of a right last answer; penalty of a wrong one."""
    ask_cost: float = Field(0.2, ge=0)
    """Penalty per tool call, whatever its outcome is."""
    mended_bonus: float = Field(0.16, ge=0)
    """Reward per feedback between a wrong first answer and a right last answer."""
    tried_bonus: float = Field(0.25, ge=0)
    """Reward per feedback that was followed by another answer, if the last answer is wrong."""
    ignored_penalty: float = Field(0.3, ge=0)
    """Penalty per repetition of an answer that feedback had called wrong."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Summary of an episode, from which the reward is computed."""

    is_right: bool
    """Whether the last answer is right."""
    was_right: bool
    """Whether the first answer is right."""
    num_asks: int
    num_used: int
    """Feedback on a wrong answer that was followed by an answer not known to be wrong."""
    num_ignored: int
    """Feedback on a wrong answer that was followed by an answer known to be wrong."""

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Outcome:
        """Returns the outcome of an episode; an episode without an answer is wrong."""
        known_wrong: set[str] = set()
        num_used = num_ignored = 0
        for before, after in itertools.pairwise(rounds):
            known_wrong |= before.told_wrong
            if before.told_wrong:
                num_ignored += after.key in known_wrong
                num_used += after.key not in known_wrong
        return cls(
            is_right=bool(rounds) and rounds[-1].is_right,
            was_right=bool(rounds) and rounds[0].is_right,
            num_asks=sum(each.num_asks for each in rounds),
            num_used=num_used,
            num_ignored=num_ignored,
        )


def parts_of(outcome: Outcome, weights: FeedbackRewardConfig) -> dict[str, float]:
    """Returns the weighted parts of the reward."""
    if weights.preset == "original":
        return _original_parts(outcome)
    was_mended = outcome.is_right and not outcome.was_right
    return {
        "correct": weights.correct if outcome.is_right else -weights.correct,
        "asks": -weights.ask_cost * outcome.num_asks,
        "mended": weights.mended_bonus * outcome.num_used if was_mended else 0.0,
        "tried": 0.0 if outcome.is_right else weights.tried_bonus * outcome.num_used,
        "ignored": -weights.ignored_penalty * outcome.num_ignored,
    }


def _original_parts(outcome: Outcome) -> dict[str, float]:
    """Right: 1 + min(0.1 n, 0.3). Wrong: -1 without a call, else max(-1 + 0.15 n, -0.6). n: calls."""
    if outcome.is_right:
        return {"correct": 1.0, "asks": min(0.1 * outcome.num_asks, 0.3)}
    raised = max(-1.0 + 0.15 * outcome.num_asks, -0.6) if outcome.num_asks else -1.0
    return {"correct": -1.0, "asks": min(raised, 1.5) + 1.0}


# -- the order -----------------------------------------------------------------------------------------------------


ORDER: dict[str, Callable[[int], list[Outcome]]] = {
    "right at once and unasked": lambda most: [Outcome(True, True, 0, 0, 0)],
    "right after feedback": lambda most: [Outcome(True, False, asks, asks, 0) for asks in range(1, most + 1)],
    "right at once but asked": lambda most: [Outcome(True, True, asks, 0, 0) for asks in range(1, most + 1)],
    "wrong after using feedback": lambda most: [Outcome(False, False, asks, asks, 0) for asks in range(1, most + 1)],
    "wrong unasked": lambda most: [Outcome(False, False, 0, 0, 0)],
    "wrong and ignoring feedback": lambda most: [
        Outcome(False, False, asks, asks - ignored, ignored)
        for asks in range(1, most + 1)
        for ignored in range(1, asks + 1)
    ],
}
"""Possible outcomes, best first, each with every possible number of calls."""


def broken_order(weights: FeedbackRewardConfig, max_asks: int) -> str | None:
    """Returns a message about two outcomes that the weights do not rank as `ORDER` does (up to `max_asks` calls), else None."""
    scores = {
        name: [math.fsum(parts_of(outcome, weights).values()) for outcome in outcomes(max_asks)]
        for name, outcomes in ORDER.items()
    }
    for (better, high), (worse, low) in itertools.pairwise(scores.items()):
        if min(high) <= max(low) + 1e-9:
            return (
                f"with these weights {better!r} earns {min(high):g} and {worse!r} {max(low):g} (up to {max_asks} calls); "
                "the first must earn more. mended_bonus must lie below ask_cost and near it, tried_bonus above it, both by little"
            )
    return None


# -- the episode ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FeedbackEnvironment:
    """Implements the rollout loop's `EpisodeEnvironment`; only the tool replies. Judging may block, so it runs in a thread."""

    weights: FeedbackRewardConfig
    follows_from_record: ClassVar[bool] = True

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Returns None: an answer without a call ends the episode."""
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        """Returns the reward of an episode that has ended."""
        rounds = await asyncio.to_thread(rounds_of, trajectory)
        return Reward(parts=parts_of(Outcome.of(rounds), self.weights))
