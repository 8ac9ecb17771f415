"""An endless stream of tasks from an environment, for a training loop: every iteration's groups are freshly reset."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, EpisodeError
from midthought.env.episode import FAILED_RESET, EnvironmentEpisode, EnvironmentTasks, RewardFunction
from midthought.types import Task

MAX_TRIES = 3
"""How often the resets of a batch are begun, if all of them fail, before their error goes through."""

_log = logging.getLogger(__name__)


class EnvironmentStream:
    """Draws the groups of an iteration; what they begin with follows from the seed and the iteration alone.

    Episodes can be had of the tasks of the newest iteration only, of all its batches; older environments are let go.
    """

    def __init__(
        self,
        environment: BaseEnvironment | Callable[[], BaseEnvironment],
        reward_fn: RewardFunction | None = None,
        *,
        seed: int,
        purpose: str = "train",
        config: EnvironmentConfig | None = None,
    ) -> None:
        """`purpose` keeps streams of one seed apart; `config` as for `EnvironmentTasks`, which says what is raised."""
        self._tasks = functools.partial(EnvironmentTasks, environment, reward_fn, config=config)
        self._tasks()
        self._drawn_from = (seed, purpose)
        self._num_failed_in_a_row = 0
        """Resets since one that did not fail."""
        self._made: dict[str, EnvironmentTasks] = {}

    def draw(self, iteration: int, num_groups: int, attempt: int = 0) -> list[Task]:
        """One task per group. `attempt` counts the batches of one iteration; the first one begins a new iteration.

        A `reset` that fails is logged, and fails the episodes of its group; if all fail, they begin anew from other seeds.
        EpisodeError: all failed `MAX_TRIES` times, and so did those of the draw before if it was of one group only.
        """
        if attempt == 0:
            self._made.clear()
        for number in range(MAX_TRIES):
            parts = (*self._drawn_from, iteration, attempt, *([number] if number else []))
            made = self._tasks()
            tasks = made.make(num_groups, _seed(*parts), raise_if_all_failed=False)
            errors = [task.labels[FAILED_RESET] for task in tasks if FAILED_RESET in task.labels]
            if errors:
                _log.warning("%d of %d environments not reset; the first: %s", len(errors), len(tasks), errors[0])
            if not errors or len(errors) < len(tasks):
                self._num_failed_in_a_row = 0
                break
            self._num_failed_in_a_row += len(errors)
            if number + 1 == MAX_TRIES and self._num_failed_in_a_row >= 2 * MAX_TRIES:
                raise EpisodeError(f"{errors[0]} ({self._num_failed_in_a_row} resets in a row failed)")
        self._made |= {task.task_id: made for task in tasks}
        return tasks

    def episode(self, task: Task) -> EnvironmentEpisode:
        """A new episode of a task: what the rollout loop calls. EpisodeError for a task of an older iteration."""
        made = self._made.get(task.task_id)
        if made is None:
            raise EpisodeError(
                f"task {task.task_id!r} is not of the newest iteration; draw tasks, then run them at once"
            )
        return made.episode(task)


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest())
