"""Splits an episode into rounds, and rewards it: right or wrong, cost per call, bonus for feedback that corrected an answer,
penalty for ignoring it.

Reads only turns, tool events and the ground truth of the record.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import Field

from midthought.config import Section
from midthought.data.tasks import DATASET_LABEL
from midthought.env.answers import CHECKS, task_is_right
from midthought.tools.call_formats import THINK_CLOSE
from midthought.tools.call_formats.json_calls import HermesFormat
from midthought.types import ParsedAction, Reward, Task, ToolEvent, ToolOutcome, Trajectory, Turn

CALL_FORMAT = HermesFormat()
"""How calls are written in the recipe's conversations."""


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of the policy."""

    answer: str
    """Text of the turn without its thought and its calls; if that is empty, the answer in its first usable call."""
    key: str
    """The answer in normalized form: equal answers have equal keys."""
    is_right: bool
    num_asks: int
    """Number of calls, including calls that could not be run."""
    told_right: bool = False
    """Whether feedback confirmed an answer as right."""
    told_wrong: frozenset[str] = field(default_factory=frozenset)
    """Keys of the answers that feedback rejected as wrong."""


def rounds_of(trajectory: Trajectory) -> list[Round]:
    """Returns one round per turn, in order. Blocks while answers are judged."""
    events = iter(trajectory.tool_events)
    return [_round(trajectory.task, turn, events) for turn in trajectory.turns]


def _round(task: Task, turn: Turn, events: Iterator[ToolEvent]) -> Round:
    calls = CALL_FORMAT.parse_all(turn.model_output, in_thought=turn.begins_in_thought)
    own = list(itertools.islice(events, len(calls)))
    answer = _said(turn, calls)
    told = [event for event in own if event.outcome is ToolOutcome.OK and "is_right" in event.metadata]
    wrong = [event for event in told if not event.metadata["is_right"]]
    return Round(
        answer=answer,
        key=_key(task, answer),
        is_right=bool(answer) and _is_right(_data_set(task), (task.answer, *task.aliases), answer),
        num_asks=len(calls),
        told_right=any(event.metadata["is_right"] for event in told),
        told_wrong=frozenset(_key(task, str(event.call.parameters.get("current_answer", ""))) for event in wrong),
    )


@functools.lru_cache(maxsize=10_000)
def _is_right(data_set: str, truths: tuple[str, ...], answer: str) -> bool:
    """Cached: the reward, the metrics and the shown episodes need the same verdicts."""
    task = Task(task_id="", prompt="", answer=truths[0], aliases=truths[1:], labels={DATASET_LABEL: data_set})
    return task_is_right(task, answer)


def _said(turn: Turn, calls: list[ParsedAction]) -> str:
    text = turn.model_output
    _, mark, after_thought = text.rpartition(THINK_CLOSE)
    if mark:
        text = after_thought
    elif turn.begins_in_thought:
        return ""
    for call in calls:
        text = text.replace(call.raw_text, "")
    if text.strip():
        return text.strip()
    asked = (str(call.parameters.get("current_answer", "")).strip() for call in calls if call.success)
    return next(filter(None, asked), "")


def _key(task: Task, answer: str) -> str:
    check = CHECKS.get(_data_set(task))
    found = check.extract(answer) if check is not None else None
    return found if found is not None else " ".join(answer.split())


def _data_set(task: Task) -> str:
    return str(task.labels.get(DATASET_LABEL, ""))


# -- the reward ----------------------------------------------------------------------------------------------------


class FeedbackRewardConfig(Section):
    """Weights of the reward's parts. docs/feedback.md has the order of episodes that they should keep."""

    preset: Literal["ordered", "original"] = "ordered"
    """`original`: the fixed reward of the published recipe, for comparison; the other keys are then unused. It pays 0.1 for every
    call before a right answer, so a wrong first answer, or a call about a right one, earns more than a right answer at once."""
    correct: float = Field(1.0, gt=0)
    """Reward of a right last answer; penalty of a wrong one."""
    ask_cost: float = Field(0.2, ge=0)
    """Penalty per tool call, whatever its outcome is."""
    mended_bonus: float = Field(0.16, ge=0)
    """Reward per feedback between a wrong first answer and a right last answer. Not below `ask_cost` by much, or two calls that
    correct an answer earn less than one needless call; not above it, or a wrong first answer earns more than a right one."""
    tried_bonus: float = Field(0.25, ge=0)
    """Reward per feedback that was followed by another answer, if the last answer is wrong. Above `ask_cost` by little."""
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
