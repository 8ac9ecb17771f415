"""Parses the policy's text: the thought, the answer after it, whether the format is correct."""

from __future__ import annotations

import re
import unicodedata

from midthought.types import StopReason, Trajectory, Turn
from midthought.types.turn import THINK_TAGS

THINK_OPEN, THINK_CLOSE = THINK_TAGS


def last_answer(trajectory: Trajectory) -> str | None:
    """Returns `Turn.answer` of the last turn; None without a turn."""
    return trajectory.turns[-1].answer if trajectory.turns else None


def thought_of(turn: Turn) -> str | None:
    """Returns the text of a turn's thoughts, with the calls in them; None if the turn has no thought."""
    before, closed, after = turn.model_output.rpartition(THINK_CLOSE)
    text = before if closed else after
    if not (closed or THINK_OPEN in text or turn.begins_in_thought):
        return None
    start = 0 if turn.begins_in_thought else text.find(THINK_OPEN) + len(THINK_OPEN) if THINK_OPEN in text else 0
    return text[start:].replace(THINK_OPEN, "").replace(THINK_CLOSE, "")


def is_well_formed(trajectory: Trajectory) -> bool:
    """Whether there is exactly one thought, closed by the policy, with an answer after it, and the episode was not cut off."""
    text = "\n".join(turn.model_output for turn in trajectory.turns)
    return (
        trajectory.stop_reason is StopReason.ANSWERED
        and text.count(THINK_OPEN) + sum(turn.begins_in_thought for turn in trajectory.turns) == 1
        and text.count(THINK_CLOSE) == 1
        and bool(last_answer(trajectory))
    )


def normalised(answer: str) -> str:
    """Returns the answer for comparison: NFKC, case-folded, without punctuation and repeated whitespace."""
    text = unicodedata.normalize("NFKC", answer).casefold()
    return " ".join(re.sub(r"[^\w\s]|_", " ", text).split())
