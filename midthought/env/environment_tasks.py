"""Tasks from an environment: groups of episodes that start in the same state, and an unlimited supply of them for training."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import logging
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, check_config
from midthought.env.episode import EnvironmentEpisode, call, close_environment, takes_seed, wait_for
from midthought.env.reward_functions import WeightedReward, without_partial
from midthought.errors import EpisodeError, MidthoughtError, SettingsError
from midthought.types import Task
from midthought.types.task import number_of

MAX_TRIES, MIN_RESETS = 3, 6
"""Maximum number of attempts to reset a batch of which all resets fail; of a small batch more, until so many resets failed."""
FAILED_RESET = "failed_reset"
"""Label of a task whose environment could not be created or reset. Its value is the error of all its episodes."""

_log = logging.getLogger(__name__)


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

    def task(self, task_id: str) -> Task:
        if self.error or self.environment is None:
            prompt, labels = f"{self.name}.reset failed", {FAILED_RESET: self.error}
        else:
            prompt, labels = "\n".join(filter(None, (self.environment.get_prompt_prefix(), self.observation))), {}
        return Task(task_id=task_id, prompt=prompt, answer="", labels=labels)


class EnvironmentTaskSampler:
    """Draws the groups of an iteration from an environment or a factory; a task is one `reset`, shared by its group.

    The initial states depend only on the seed, the iteration and the attempt. Only tasks of the newest iteration (all its
    batches) can start episodes; older environments are released.

    >>> from midthought.env.game import SimpleGameEnvironment
    >>> sampler = EnvironmentTaskSampler(SimpleGameEnvironment, seed=0)
    >>> first, second = sampler.draw(iteration=0, num_groups=2)
    >>> one, other = sampler.episode(first).environment, sampler.episode(first).environment
    >>> one is other, one.get_state_description() == other.get_state_description()
    (False, True)
    """

    def __init__(
        self,
        environment: BaseEnvironment | Callable[[], BaseEnvironment],
        reward: WeightedReward | None = None,
        *,
        seed: int,
        purpose: str = "train",
        config: EnvironmentConfig | None = None,
    ) -> None:
        """`purpose` distinguishes streams with the same seed. `config` is assigned to environments that are created without one.

        Raises `SettingsError` if `environment` is neither an environment nor callable, or if its own config differs from
        `config`.
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
        self._environment = environment
        self._reward = reward
        self._config = config
        self._drawn_from = (seed, purpose)
        self._starts: dict[str, _Start] = {}
        self._is_compared = purpose != "train"
        """Whether the starts of a draw were compared."""

    def draw(self, iteration: int, num_groups: int, attempt: int = 0) -> list[Task]:
        """Returns one task per group. `attempt` is the batch within the iteration; 0 starts a new iteration.

        The prompt is `get_prompt_prefix()` and the first observation. An environment that cannot be created or reset is logged;
        its task has the label `FAILED_RESET` and its episodes fail. If all fail, they are repeated with other seeds. Raises
        `EpisodeError` if all fail `MAX_TRIES` times, and at least `MIN_RESETS` have, `SettingsError` if a factory returns one
        environment twice.
        """
        if attempt == 0:
            self.close()
        num_tries = max(MAX_TRIES, -(-MIN_RESETS // num_groups))
        for number in range(num_tries):
            seed = number_of((*self._drawn_from, iteration, attempt, *([number] if number else [])), 6)
            seeds = [random.Random(f"environment-{seed}-{group}").getrandbits(31) for group in range(num_groups)]
            starts = [self._made_for(own_seed) for own_seed in seeds]
            _require_own([*self._starts.values(), *starts])
            _reset_all([start for start in starts if not start.error])
            errors = [start.error for start in starts if start.error]
            if errors:
                _log.warning("%d of %d environments not reset; the first: %s", len(errors), len(starts), errors[0])
            if not errors or len(errors) < len(starts):
                break
            for start in starts:
                _close(start)
        else:
            raise EpisodeError(f"{errors[0]} ({num_tries * len(starts)} resets in a row failed)")
        if not self._is_compared and not errors and len(starts) > 1:
            self._is_compared = True
            if _have_one_state(starts):
                problem = f"all {len(starts)} environments {starts[0].name} start in the same state"
                remedy = "give reset a parameter `seed` and draw all random numbers from it"
                reason = "a generator made in __init__ begins again in every copy"
                _log.warning("%s. If they should differ, %s: %s", problem, remedy, reason)
        made = {f"{start.name}-{seed}-{group}": start for group, start in enumerate(starts)}
        self._starts |= made
        return [start.task(task_id) for task_id, start in made.items()]

    def close(self) -> None:
        """Closes the environments of the newest iteration that no episode got. Running episodes close their own."""
        for start in self._starts.values():
            if not start.is_given_away:
                _close(start)
        self._starts = {}

    def episode(self, task: Task) -> EnvironmentEpisode:
        """Returns a new episode of a task, for the rollout loop: with a deep copy of the environment that was reset.

        If it cannot be copied after its reset, the first episode gets it directly; for later ones another is created, whose reset
        with the same seed must return the same observation. Raises `EpisodeError` if it does not, and for a task of an older
        iteration.
        """
        start = self._starts.get(task.task_id)
        if start is None:
            remedy = "run tasks before you draw the next ones"
            raise EpisodeError(f"task {task.task_id!r} is not of the newest iteration; {remedy}")
        if start.error or start.environment is None:
            raise EpisodeError(start.error)
        if start.is_given_away:
            return EnvironmentEpisode(self._made_alike(start, start.environment), self._reward)
        try:
            environment = copy.deepcopy(start.environment)
        except Exception as error:
            _log.debug("%s is not copied: %s: %s", start.name, type(error).__name__, error)
            start.is_given_away, environment = True, start.environment
        return EnvironmentEpisode(environment, self._reward)

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
        if isinstance(self._environment, BaseEnvironment):
            try:
                made = copy.deepcopy(self._environment)
            except Exception as error:
                raise EpisodeError(
                    f"{type(self._environment).__name__} cannot be copied ({type(error).__name__}: {error}); give a factory "
                    "instead of an instance (a function that returns a new one), or define __deepcopy__"
                ) from error
        else:
            made = self._environment()
        if not isinstance(made, BaseEnvironment):
            remedy = "return a new BaseEnvironment"
            raise EpisodeError(f"the environment's factory returned a {type(made).__name__}; {remedy}")
        if self._config is not None and check_config(made, self._config):
            made.config = self._config
        return made

    def _made_alike(self, start: _Start, first: BaseEnvironment) -> BaseEnvironment:
        if not takes_seed(first):
            raise EpisodeError(
                f"{start.name} cannot be copied and its reset takes no seed, so its group cannot start in the same state; "
                "give reset a parameter `seed`, or use group_size=1"
            )
        made = _Start(start.seed, self._new())
        _require_own([start, made])
        _reset_all([made])
        if not made.error and made.observation != start.observation:
            made.error = (
                f"{start.name} cannot be copied and reset(seed={start.seed}) returned another observation the second time; "
                "draw all random numbers from the seed"
            )
        if made.error or made.environment is None:
            _close(made)
            raise EpisodeError(made.error)
        return made.environment


def _have_one_state(starts: Sequence[_Start]) -> bool:
    """Whether the attributes of all environments are equal; False if some cannot be pickled, which shared ones need not be."""
    first, *others = (vars(start.environment) for start in starts)
    pairs = ((first[name], value) for other in others for name, value in other.items())
    try:
        return all(one is value or pickle.dumps(one) == pickle.dumps(value) for one, value in pairs)
    except Exception:
        return False


def _require_own(starts: Sequence[_Start]) -> None:
    """Raises SettingsError if two starts have the same environment: each reset would change the others."""
    made = [start.environment for start in starts if start.environment is not None]
    if len(set(map(id, made))) < len(made):
        problem = f"the environment's factory returned the same {type(made[-1]).__name__} twice"
        raise SettingsError(f"{problem}; return a new one at every call")


def _reset_all(starts: Sequence[_Start]) -> None:
    """Sets the first observations, or errors. Coroutines run concurrently."""

    async def reset_all() -> None:
        turn = asyncio.Lock()
        await asyncio.gather(*(_reset(start, turn) for start in starts))

    wait_for(reset_all())


async def _reset(start: _Start, turn: asyncio.Lock) -> None:
    """Plain functions wait for their turn, because they may share a random generator."""
    assert start.environment is not None
    seeded = {"seed": start.seed} if takes_seed(start.environment) else {}
    reset = functools.partial(start.environment.reset, **seeded)
    try:
        async with contextlib.nullcontext() if inspect.iscoroutinefunction(reset) else turn:
            start.observation = await call(reset, start.environment.config.step_timeout_seconds, f"{start.name}.reset")
    except EpisodeError as error:
        start.error = str(error)


def _close(start: _Start) -> None:
    if start.environment is not None:
        wait_for(close_environment(start.environment))
