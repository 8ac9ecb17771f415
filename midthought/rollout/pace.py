"""When groups of episodes start and are taken, so that no token is too old when it is trained on. Pure functions of counts.

Every group has a deadline: the last batch that may train on it, which is the version of the policy at its start plus the
largest staleness. Batch n is the one that trains version n, so a group taken by its deadline holds no token that is more than
`max_staleness` updates old. The rule is that of earliest-deadline-first scheduling, in which every batch serves
`num_groups` groups: as long as `is_kept` holds, every open group can still be taken in time, whatever finishes first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from midthought.config import RecipeConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The rule of one run. A group is open from its start until it is taken, also after it has finished."""

    num_groups: int
    """Groups per batch."""
    max_staleness: int
    """Largest number of updates between the version that sampled a token and the version that is trained on it."""
    max_open: int
    """Largest number of open groups."""
    max_taken: int
    """Groups after which a batch ends, those without variance included."""

    @classmethod
    def of(cls, config: RecipeConfig) -> Pace:
        training = config.training
        return cls(
            num_groups=training.num_groups,
            max_staleness=training.max_staleness,
            max_open=math.ceil(config.num_in_flight * training.num_groups),
            max_taken=training.num_groups * training.max_dynamic_batches,
        )

    def room(self, num_kept: int, num_taken: int) -> int:
        """Returns how many groups a batch still needs: `num_kept` of the `num_taken` groups are trained on. 0: it is complete."""
        return min(self.num_groups - num_kept, self.max_taken - num_taken)

    def deadline(self, version: int) -> int:
        """Returns the last batch that may train on a group whose oldest token is of this version."""
        return version + self.max_staleness

    def is_kept(self, deadlines: Sequence[int], batch: int, room: int) -> bool:
        """Whether all open groups can be taken in time if `batch` takes `room` more of them: for every k, at most
        `room + k * num_groups` of their `deadlines` are at most `batch + k`, and none has passed."""
        return all(
            deadline >= batch and number <= room + (deadline - batch) * self.num_groups
            for number, deadline in enumerate(sorted(deadlines), start=1)
        )

    def may_start(self, deadlines: Sequence[int], version: int, batch: int, room: int, num_left: int | None) -> bool:
        """Whether a group may start now, beside open groups with these `deadlines`.

        `num_left`: batches that follow `batch` in this run, so that none starts that nobody will take; None: unlimited.
        """
        most = self.max_open if num_left is None else min(self.max_open, room + num_left * self.num_groups)
        return len(deadlines) < most and self.is_kept([*deadlines, self.deadline(version)], batch, room)

    def may_take(self, deadlines: Sequence[int], deadline: int, batch: int, room: int) -> bool:
        """Whether `batch` may take the group with this `deadline`, one of `deadlines`: the others must still be in time."""
        others = list(deadlines)
        others.remove(deadline)
        return self.is_kept(others, batch, room - 1)
