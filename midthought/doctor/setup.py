"""What the checks examine: the settings, the tasks and the policy of a run that has not started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig
from midthought.plan.choices import Choice
from midthought.rollout.episode import EpisodeEnvironment
from midthought.rollout.local_rollouts import Rollouts
from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.registry import ToolRegistry
from midthought.types import Task


class SkippedError(Exception):
    """A check that cannot run here. The message is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyParts:
    """The policy, and how its prompts and calls are written."""

    model: Any
    renderer: Renderer
    call_format: ToolCallFormat
    registry: ToolRegistry
    messages: Callable[[Task], Sequence[Mapping[str, str]]]
    """Returns the messages before the policy's first token."""
    episode: Callable[[Task], EpisodeEnvironment]
    """Returns the environment of a training episode, which computes the reward."""
    max_seq_len: int
    """Maximum tokens of a sequence, including the prompt."""


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
    """Returns so many training tasks to sample, also of an environment."""
    has_replies: bool = False
    """Whether the environment or a user may reply to an answer."""
    policy: PolicyParts | None = None
    source: Rollouts | None = None
    """Runs training episodes with the policy."""
    why_no_tasks: str = "the prompts and answers of an environment are known only when it runs"
    why_no_policy: str = "there is no policy"
    why_not_sampled: str = ""
    """Why no episodes are sampled; empty: they are."""
    memo: dict[str, Any] = field(default_factory=dict)
    """What a check has computed and another one needs."""

    @property
    def parts(self) -> PolicyParts:
        """The policy's parts. Raises `SkippedError` if there are none."""
        if self.policy is None:
            raise SkippedError(self.why_no_policy)
        return self.policy

    @property
    def known_tasks(self) -> Sequence[Task]:
        """`tasks`. Raises `SkippedError` if there are none."""
        if not self.tasks:
            raise SkippedError(self.why_no_tasks)
        return self.tasks

    @property
    def tasks_with_answers(self) -> list[Task]:
        """The tasks that have a gold answer. Raises `SkippedError` if there are none."""
        found = [task for task in self.known_tasks if task.answer]
        if not found:
            raise SkippedError("the tasks have no gold answer")
        return found


MAX_TASKS = 256
"""Number of tasks that are examined."""
