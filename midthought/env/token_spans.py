"""Characters of the policy's text as positions of tokens, for `Reward.spans`."""

from __future__ import annotations

import bisect

from midthought.env.reasoning import Decode
from midthought.errors import RecordError
from midthought.types import Trajectory


def token_span(trajectory: Trajectory, start: int, end: int, decode: Decode) -> tuple[int, int]:
    """Returns the record's positions `(start, end)` of the tokens that wrote the characters `start:end` of
    `reasoning.own_text(trajectory, decode)`.

    A token that wrote only a part of them is included. If the characters come from before and after a tool's result, the
    result is between the positions. Raises `RecordError` if these characters are not in the text.
    """
    masks = [flag for segment in trajectory.segments for flag in segment.loss_mask]
    positions = [position for position, flag in enumerate(masks) if flag]
    found: list[int] = []
    num_tokens, num_characters = 0, 0
    for run in trajectory.sampled_runs():

        def length(num: int, run: list[int] = run) -> int:
            return len(decode(run[:num]))

        written = length(len(run))
        first, last = max(start - num_characters, 0), min(end - num_characters, written)
        if first < last:
            begin = bisect.bisect_right(range(len(run) + 1), first, key=length) - 1
            stop = bisect.bisect_left(range(len(run) + 1), last, key=length)
            found += positions[num_tokens + begin : num_tokens + stop]
        num_tokens += len(run)
        num_characters += written + 1  # the newline that joins two runs
    if not found or start < 0 or end >= num_characters:
        raise RecordError(
            f"task {trajectory.task.task_id!r}: the characters {start}:{end} are not in the policy's text, which has "
            f"{max(num_characters - 1, 0)}; take them from own_text(trajectory, decode)"
        )
    return found[0], found[-1] + 1
