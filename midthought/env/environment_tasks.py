"""Tasks from an environment: groups of episodes that start in the same state, and an unlimited supply of them for training."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, check_config
from midthought.env.episode import (
    EnvironmentEpisode,
    RewardFunction,
    call_blocking,
    closes,
    submit,
    takes_seed,
    wait_for,
)
from midthought.env.reward_functions import takes_environment, without_partial
from midthought.errors import EpisodeError, MidthoughtError, SettingsError
from midthought.types import Task
from midthought.types.task import number_of

MAX_TRIES = 3
"""Maximum number of attempts to reset a batch of which all resets fail."""

_log = logging.getLogger(__name__)


FAILED_RESET = "failed_reset"
"""Label of a task whose environment could not be created or reset. Its value is the error of all its episodes."""


@dataclass(slots=True)
class _Start:
    """A freshly reset environment from which all episodes of one task start."""

    seed: int
    environment: BaseEnvironment | None = None
    observation: str = ""
    is_given_away: bool = False
    """True if it could not be copied and the first episode uses it directly."""
    error: str = ""
    """Why it could not be created or reset."""

    @property
    def name(self) -> str:
        return "environment" if self.environment is None else type(self.environment).__name__

    @property
    def prompt(self) -> str:
        if self.error or self.environment is None:
            return f"{self.name}.reset failed"
        return "\n".join(part for part in (self.environment.get_prompt_prefix(), self.observation) if part)


class EnvironmentTasks:
    """Creates tasks from an environment or a factory; a task is one `reset`, shared by its group.

    >>> from midthought.env.game import SimpleGameEnvironment
    >>> tasks = EnvironmentTasks(SimpleGameEnvironment)
    >>> first, second = tasks.make(2, seed=0)
    >>> one, other = tasks.start(first), tasks.start(first)
    >>> one is other, one.get_state_description() == other.get_state_description()
    (False, True)
    """

    def __init__(
        self,
        environment: BaseEnvironment | Callable[[], BaseEnvironment],
        reward_fn: RewardFunction | None = None,
        *,
        config: EnvironmentConfig | None = None,
    ) -> None:
        """`config` is assigned to environments that are created without one.

        Raises `SettingsError` if `environment` is neither an environment nor callable, or if its own config differs from
        `config`; `RewardError` for a reward function that cannot be called.
        """
        if not isinstance(environment, BaseEnvironment) and not callable(environment):
            raise SettingsError(
                f"environment={environment!r}: give a BaseEnvironment, or a function without parameters that returns one; "
                "adapters (GymnasiumEnvironment(gym_env), …): docs/own_parts.md"
            )
        made = without_partial(environment)  # type: ignore[arg-type]
        if isinstance(made, type) and not issubclass(made, BaseEnvironment):
            raise SettingsError(
                f"environment={made.__name__}: the class does not extend BaseEnvironment; write class {made.__name__}("
                "BaseEnvironment) with reset and step, or give an adapter: docs/own_parts.md"
            )
        if config is not None and isinstance(environment, BaseEnvironment):
            check_config(environment, config)
        if reward_fn is not None:
            takes_environment(reward_fn)
        self._environment = environment
        self._reward_fn = reward_fn
        self._config = config
        self._starts: dict[str, _Start] = {}

    def make(self, num_groups: int, seed: int, *, raise_if_all_failed: bool = True) -> list[Task]:
        """Returns one task per group: a new environment each, reset with its own seed (if `reset` takes one).

        The prompt is `get_prompt_prefix()` and the first observation. Only tasks of the newest call can start episodes. If an
        environment cannot be created or reset, its task has the label `FAILED_RESET` and its episodes fail. Raises
        `EpisodeError`, with the first error, if all fail (not copyable, the factory returned something else, `reset` raised or
        timed out).
        """
        seeds = [random.Random(f"environment-{seed}-{number}").getrandbits(31) for number in range(num_groups)]
        starts = [self._made_for(own_seed) for own_seed in seeds]
        _reset_all([start for start in starts if not start.error])
        errors = [start.error for start in starts if start.error]
        if raise_if_all_failed and errors and len(errors) == len(starts):
            raise EpisodeError(errors[0])
        tasks = []
        self.close()
        for number, start in enumerate(starts):
            task_id = f"{start.name}-{seed}-{number}"
            labels = {FAILED_RESET: start.error} if start.error else {}
            tasks.append(Task(task_id=task_id, prompt=start.prompt, answer="", labels=labels))
            self._starts[task_id] = start
        return tasks

    def close(self) -> None:
        """Closes the environments of the newest call of `make`, except those that an episode got. Errors are logged."""
        for start in self._starts.values():
            if not start.is_given_away:
                _close(start)
        self._starts = {}

    def episode(self, task: Task) -> EnvironmentEpisode:
        """Returns a new episode of a task, for the rollout loop."""
        return EnvironmentEpisode(self.start(task), self._reward_fn)

    def start(self, task: Task) -> BaseEnvironment:
        """Returns an environment in the initial state of the task: a deep copy of the one that was reset.

        If it cannot be copied after its reset, the first episode gets it directly; for later ones another is created, whose reset
        with the same seed must return the same observation. Raises `EpisodeError` if it does not, or for an unknown task.
        """
        start = self._starts.get(task.task_id)
        if start is None:
            raise EpisodeError(
                f"task {task.task_id!r} is not of the newest make(); use one EnvironmentTasks for each set of tasks"
            )
        if start.error or start.environment is None:
            raise EpisodeError(start.error)
        if start.is_given_away:
            return self._made_alike(start, start.environment)
        try:
            return copy.deepcopy(start.environment)
        except Exception as error:
            _log.debug("%s is not copied: %s: %s", start.name, type(error).__name__, error)
        start.is_given_away = True
        return start.environment

    def _made_for(self, seed: int) -> _Start:
        """Returns a start with an environment that is not reset yet. Errors of the factory count as errors of `reset`."""
        try:
            return _Start(seed, self._new())
        except EpisodeError as error:
            return _Start(seed, error=str(error))
        except MidthoughtError:
            raise
        except Exception as error:
            return _Start(seed, error=f"the environment's factory raised {type(error).__name__}: {error}")

    def _new(self) -> BaseEnvironment:
        made = self._made()
        if self._config is not None and check_config(made, self._config):
            made.config = self._config
        return made

    def _made(self) -> BaseEnvironment:
        if isinstance(self._environment, BaseEnvironment):
            try:
                return copy.deepcopy(self._environment)
            except Exception as error:
                raise _not_copied(self._environment, error) from error
        made = self._environment()
        if not isinstance(made, BaseEnvironment):
            raise EpisodeError(
                f"the environment's factory returned a {type(made).__name__}; return a new BaseEnvironment"
            )
        return made

    def _made_alike(self, start: _Start, first: BaseEnvironment) -> BaseEnvironment:
        if not takes_seed(first):
            raise EpisodeError(
                f"{start.name} cannot be copied and its reset takes no seed, so its group cannot start in the same state; "
                "give reset a parameter `seed`, or use group_size=1"
            )
        made = _Start(start.seed, self._new())
        _reset_all([made])
        if made.error or made.environment is None:
            _close(made)
            raise EpisodeError(made.error)
        if made.observation != start.observation:
            _close(made)
            raise EpisodeError(
                f"{start.name} cannot be copied and reset(seed={start.seed}) returned another observation the second time; "
                "draw all random numbers from the seed"
            )
        return made.environment


class EnvironmentTaskSampler:
    """Draws the groups of an iteration; their initial states depend only on the seed and the iteration.

    Only tasks of the newest iteration (all its batches) can start episodes; older environments are released.
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
        """`purpose` distinguishes streams with the same seed. `config` and errors are as for `EnvironmentTasks`."""
        self._tasks = functools.partial(EnvironmentTasks, environment, reward_fn, config=config)
        self._tasks()
        self._drawn_from = (seed, purpose)
        self._num_failed_in_a_row = 0
        """Failed resets since the last successful one."""
        self._made: dict[str, EnvironmentTasks] = {}

    def draw(self, iteration: int, num_groups: int, attempt: int = 0) -> list[Task]:
        """Returns one task per group. `attempt` is the batch within the iteration; 0 starts a new iteration.

        A failed `reset` is logged and fails the episodes of its group; if all fail, they are repeated with other seeds. Raises
        `EpisodeError` if all fail `MAX_TRIES` times (with one group: in two draws in a row).
        """
        if attempt == 0:
            self.close()
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
            if number + 1 < MAX_TRIES:
                made.close()
        self._made |= {task.task_id: made for task in tasks}
        return tasks

    def close(self) -> None:
        """Closes the environments of the newest iteration that no episode got. Running episodes close their own."""
        for made in set(self._made.values()):
            made.close()
        self._made.clear()

    def episode(self, task: Task) -> EnvironmentEpisode:
        """Returns a new episode of a task, for the rollout loop. Raises `EpisodeError` for a task of an older iteration."""
        made = self._made.get(task.task_id)
        if made is None:
            raise EpisodeError(
                f"task {task.task_id!r} is not of the newest iteration; run tasks before you draw the next ones"
            )
        return made.episode(task)


def _not_copied(environment: BaseEnvironment, error: Exception) -> EpisodeError:
    return EpisodeError(
        f"{type(environment).__name__} cannot be copied ({type(error).__name__}: {error}); give a factory instead of "
        "an instance (a function that returns a new one), or define __deepcopy__"
    )


def _reset_all(starts: Sequence[_Start]) -> None:
    """Sets the first observations, or errors. Coroutines run concurrently; plain functions run one after the other, because
    they may share a random generator."""
    resets = [_reset(start.environment, start.seed) for start in starts if start.environment is not None]
    if all(inspect.iscoroutinefunction(reset) for reset, _, _ in resets):
        futures = [submit(reset) for reset, _, _ in resets]
        waits = [functools.partial(wait_for, future, *reset[1:]) for future, reset in zip(futures, resets, strict=True)]
    else:
        futures, waits = [], [functools.partial(call_blocking, *reset) for reset in resets]
    try:
        for start, wait in zip(starts, waits, strict=True):
            try:
                start.observation = wait()
            except EpisodeError as error:
                start.error = str(error)
    finally:
        for future in futures:
            future.cancel()


def _close(start: _Start) -> None:
    """Closes a start's environment. Errors are logged."""
    if start.environment is None or not closes(start.environment):
        return
    try:
        call_blocking(start.environment.close, start.environment.config.step_timeout_seconds, f"{start.name}.close")
    except EpisodeError as error:
        _log.warning("%s", error)


def _reset(environment: BaseEnvironment, seed: int) -> tuple[Callable[[], Any], float, str]:
    """Returns the function to call, its time limit, and its name in errors."""
    reset = functools.partial(environment.reset, **({"seed": seed} if takes_seed(environment) else {}))
    return reset, environment.config.step_timeout_seconds, f"{type(environment).__name__}.reset"


def _seed(*parts: object) -> int:
    return number_of(parts, 6)
