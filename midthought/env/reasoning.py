"""Reads an episode's own words: the thought, the answer after it, whether the form is right. Knows no task's truth."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from midthought.types import StopReason, Trajectory

Decode = Callable[[Sequence[int]], str]

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


def own_text(trajectory: Trajectory, decode: Decode) -> str:
    """What the policy wrote, its runs joined by line ends; what tools and prompts said is left out."""
    return "\n".join(decode(run) for run in trajectory.sampled_runs())


def final_answer(trajectory: Trajectory, decode: Decode, end_tokens: Sequence[str] = ()) -> str | None:
    """The policy's words after its last closed thought, without `end_tokens`; None where no thought was closed."""
    _, closed, answer = own_text(trajectory, decode).rpartition(THINK_CLOSE)
    if not closed:
        return None
    for token in end_tokens:
        answer = answer.replace(token, "")
    return answer.strip()


def last_answer(trajectory: Trajectory) -> str | None:
    """The last turn's words after its last closed thought, or all of them where it holds no thought; needs no `decode`.

    None without a turn, and where a thought is left open, whether the policy opened it or the chat template did.
    """
    if not trajectory.turns:
        return None
    turn = trajectory.turns[-1]
    _, closed, answer = turn.model_output.rpartition(THINK_CLOSE)
    is_open = THINK_OPEN in answer or (turn.begins_in_thought and not closed)
    return None if is_open else answer.strip()


def is_well_formed(trajectory: Trajectory, decode: Decode, end_tokens: Sequence[str] = ()) -> bool:
    """One thought, opened by the prompt or the policy, closed once by the policy; an answer after it; ended by itself."""
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
    """For comparing answers: case folded, compatibility characters unified, punctuation and surplus blanks gone."""
    text = unicodedata.normalize("NFKC", answer).casefold()
    return " ".join(re.sub(r"[^\w\s]|_", " ", text).split())


def matches(answer: str | None, truths: Sequence[str]) -> bool:
    """Exact match after `normalised`, with any of the truths; an answer without a word matches nothing."""
    said = normalised(answer or "")
    return bool(said) and any(said == normalised(truth) for truth in truths)
