"""What the checks before a run look at: its settings, its tasks and its policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig
from midthought.plan.choices import Choice
from midthought.rollout.local_rollouts import Rollouts
from midthought.rollout.written import PolicyParts
from midthought.types import Task

MAX_TASKS = 256
"""Number of tasks that are examined."""


class SkippedError(Exception):
    """A check that cannot run here. The message is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """A run before its start. Properties raise `SkippedError` if a part is missing, so a check need not test for it."""

    config: RecipeConfig
    choice: Choice | None = None
    """What replaced `auto`, with the plan of the run."""
    path: Path | None = None
    """The run folder. None: the run writes none."""
    tasks: Sequence[Task] = ()
    """Tasks of a data set, at most `MAX_TASKS`; empty for an environment."""
    all_tasks: Sequence[Task] = ()
    """All tasks of the data set."""
    held_out: Sequence[Task] = ()
    """The tasks of the validation, at most `MAX_TASKS`; empty for an environment."""
    draw: Callable[[int], Sequence[Task]] | None = None
    """Returns so many training tasks to sample, also of an environment. None: the episodes were recorded before."""
    has_replies: bool = False
    """Whether the environment or a user may reply to an answer."""
    policy: PolicyParts | None = None
    source: Rollouts | None = None
    """Runs training episodes with the policy."""
    why_no_policy: str = "there is no policy"
    why_not_sampled: str = ""
    """Why no episodes are sampled; empty: they are."""
    memo: dict[str, Any] = field(default_factory=dict)
    """What a check has computed and another one needs."""

    @property
    def parts(self) -> PolicyParts:
        """The policy's parts."""
        if self.policy is None:
            raise SkippedError(self.why_no_policy)
        return self.policy

    @property
    def known_tasks(self) -> Sequence[Task]:
        """`tasks`, if there are any."""
        if not self.tasks:
            raise SkippedError("there are no tasks whose prompts and answers are known before the run")
        return self.tasks
