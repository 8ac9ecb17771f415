"""Parses the policy's text: the thought, the answer after it, whether the format is correct."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from midthought.types import StopReason, Trajectory, Turn
from midthought.types.turn import THINK_TAGS

Decode = Callable[[Sequence[int]], str]

THINK_OPEN, THINK_CLOSE = THINK_TAGS


def own_text(trajectory: Trajectory, decode: Decode) -> str:
    """Returns the policy's text, its sampled runs joined by newlines, without prompts and tool results."""
    return "\n".join(decode(run) for run in trajectory.sampled_runs())


def final_answer(trajectory: Trajectory, decode: Decode, end_tokens: Sequence[str] = ()) -> str | None:
    """Returns the policy's text after its last closed thought, without `end_tokens`; None if no thought was closed."""
    _, closed, answer = own_text(trajectory, decode).rpartition(THINK_CLOSE)
    if not closed:
        return None
    for token in end_tokens:
        answer = answer.replace(token, "")
    return answer.strip()


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


def is_well_formed(trajectory: Trajectory, decode: Decode, end_tokens: Sequence[str] = ()) -> bool:
    """Whether there is exactly one thought, closed by the policy, with an answer after it, and the episode was not cut off."""
    text = own_text(trajectory, decode)
    prompt = decode(trajectory.segments[0].token_ids[: trajectory.segments[0].spans[0].end])
    opened = text.count(THINK_OPEN) + prompt.rstrip().endswith(THINK_OPEN)
    return (
        trajectory.stop_reason is StopReason.ANSWERED
        and opened == 1
        and text.count(THINK_CLOSE) == 1
        and bool(final_answer(trajectory, decode, end_tokens))
    )


def normalised(answer: str) -> str:
    """Returns the answer for comparison: NFKC, case-folded, without punctuation and repeated whitespace."""
    text = unicodedata.normalize("NFKC", answer).casefold()
    return " ".join(re.sub(r"[^\w\s]|_", " ", text).split())
