"""An endless stream of tasks from an environment, for a training loop: every iteration's groups are freshly reset."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, EpisodeError
from midthought.env.episode import EnvironmentEpisode, EnvironmentTasks, RewardFunction
from midthought.types import Task

MAX_TRIES = 3
"""How often the resets of a batch are begun before their error goes through."""

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
        self._seed = seed
        self._purpose = purpose
        self._made: dict[str, EnvironmentTasks] = {}

    def draw(self, iteration: int, num_groups: int, attempt: int = 0) -> list[Task]:
        """One task per group. `attempt` counts the batches of one iteration; the first one begins a new iteration.

        Where a `reset` fails, all of them begin anew from other seeds. EpisodeError: it failed `MAX_TRIES` times.
        """
        if attempt == 0:
            self._made.clear()
        parts: tuple[object, ...] = (self._seed, self._purpose, iteration, attempt)
        for number in range(1, MAX_TRIES):
            try:
                return self._reset(num_groups, parts)
            except EpisodeError as error:
                _log.warning("%s; trying other seeds (%d of %d)", error, number, MAX_TRIES - 1)
                parts = (*parts[:4], number)
        return self._reset(num_groups, parts)

    def episode(self, task: Task) -> EnvironmentEpisode:
        """A new episode of a task: what the rollout loop calls. EpisodeError for a task of an older iteration."""
        made = self._made.get(task.task_id)
        if made is None:
            raise EpisodeError(
                f"task {task.task_id!r} is not of the newest iteration; draw tasks, then run them at once"
            )
        return made.episode(task)

    def _reset(self, num_groups: int, parts: tuple[object, ...]) -> list[Task]:
        made = self._tasks()
        tasks = made.make(num_groups, seed=_seed(*parts))
        self._made |= {task.task_id: made for task in tasks}
        return tasks


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest())
