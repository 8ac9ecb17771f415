"""`BaseEnvironment`: base class of text environments. It counts steps and rewards and tracks the end of an episode.

Does not depend on models, tokens or the rollout loop (see `midthought.env.episode`).
"""

from __future__ import annotations

import functools
import inspect
import math
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Self

from midthought.config import EnvironmentConfig
from midthought.errors import EpisodeError, SettingsError

StepResult = tuple[str, float, bool, dict[str, Any]]
"""(observation, reward, done, info) of one step."""

_WATCHED = "_is_watched"
_running: ContextVar[tuple[BaseEnvironment, ...]] = ContextVar("midthought_running_environments", default=())
"""Environments whose `reset` or `step` is on the current call stack."""


@dataclass(slots=True)
class _Progress:
    """State of the current episode."""

    has_started: bool = False
    is_done: bool = False
    is_truncated: bool = False
    num_steps: int = 0
    reward: float = 0.0
    observation: str = ""
    info: Mapping[str, Any] | None = None  # of the last step

    def __deepcopy__(self, memo: dict[int, Any]) -> _Progress:
        """Copies share the info, which may hold what cannot be copied."""
        return replace(self)


class BaseEnvironment(ABC):
    """Base class of text environments. Subclasses define `reset` and `step`, each plain or `async def`.

    One instance holds one episode at a time. This class tracks `is_done()`, `is_truncated()`, `get_episode_reward()` and
    `get_step_count()`, even if the subclass does not call `super().__init__`. `config.max_steps` ends an episode with `done` and
    `info["truncated"] = True`. `reset` may take a `seed`; training passes one. `episode_statistics` reports `info["success"]`.

    Groups of episodes with the same start need `copy.deepcopy` to return an independent environment in the same state.

    Examples:
        >>> class Guess(BaseEnvironment):
        ...     def reset(self) -> str:
        ...         return "Guess a digit."
        ...     def step(self, action: str) -> tuple[str, float, bool, dict]:
        ...         is_right = action == "7"
        ...         return ("Right." if is_right else "Wrong."), float(is_right), is_right, {"success": is_right}
        >>> world = Guess()
        >>> world.reset(), world.step("3")[0], world.step("7")[0]
        ('Guess a digit.', 'Wrong.', 'Right.')
        >>> world.is_done(), world.get_episode_reward(), world.get_step_count()
        (True, 1.0, 2)
    """

    config: EnvironmentConfig
    """The trainer's `config.environment`, unless the environment has its own. Read it in `reset` and `step`."""
    _default_config: EnvironmentConfig
    _episode_so_far: _Progress

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self.config = self._default_config = EnvironmentConfig()
        self._episode_so_far = _Progress()
        return self

    def __init__(self, config: EnvironmentConfig | None = None) -> None:
        """Raises `SettingsError` if `config` is not an `EnvironmentConfig`."""
        if config is None:
            return
        if not isinstance(config, EnvironmentConfig):
            raise SettingsError(
                f"{type(self).__name__} takes an EnvironmentConfig (config.environment), got a {type(config).__name__}; "
                "parameters of your own are fields of a subclass: class MyConfig(EnvironmentConfig): difficulty: str = 'easy'"
            )
        self.config = config

    def __init_subclass__(cls, **options: Any) -> None:
        """Wraps `reset` and `step` of the subclass, defined or inherited, with the tracking."""
        super().__init_subclass__(**options)
        for name, before, after in (("reset", _before_reset, _after_reset), ("step", _before_step, _after_step)):
            method = getattr(cls, name)
            if not getattr(method, "__isabstractmethod__", False) and not hasattr(method, _WATCHED):
                setattr(cls, name, _watched(method, before, after))

    @abstractmethod
    def reset(self) -> str | Awaitable[str]:
        """Starts an episode and returns its first observation. An optional parameter `seed: int` fixes all randomness."""

    @abstractmethod
    def step(self, action: str) -> StepResult | Awaitable[StepResult]:
        """Executes the policy's answer (without the thought) and returns `(observation, reward, done, info)`.

        Every implementation is checked: `EpisodeError` is raised if `reset` was not called, if the episode has ended, or if the
        result is not a tuple of a str, a finite number, a bool and a mapping.
        """

    def close(self) -> Awaitable[None] | None:
        """Releases what the environment holds, such as a connection; by default nothing. Plain or `async def`.

        Called once, when the episode has its reward, has failed or was cancelled. Also called for an environment that was reset
        and is not played. Errors are logged. A plain `step` that missed its deadline may still run in its thread.
        """
        return None

    def get_state_description(self) -> str:
        """Returns the current state for people to read; by default the last observation."""
        return self._episode_so_far.observation

    def get_prompt_prefix(self) -> str:
        """Returns the text before the first observation, for example the rules; by default empty."""
        return ""

    def is_done(self) -> bool:
        """True after the step that ended the episode, until the next `reset`."""
        return self._episode_so_far.is_done

    def is_truncated(self) -> bool:
        """True after a step that ended the episode at a limit: `config.max_steps`, or `info["truncated"]` beside `done`.

        The rollout loop reads the same record and does not call this method: a subclass reports a limit of its own in `info`.
        """
        return self._episode_so_far.is_truncated

    def get_episode_reward(self) -> float:
        """Sum of the rewards since the last `reset`."""
        return self._episode_so_far.reward

    def get_step_count(self) -> int:
        """Steps since the last `reset`. A step that raised is not counted."""
        return self._episode_so_far.num_steps


def check_config(environment: BaseEnvironment, settings: EnvironmentConfig) -> bool:
    """Returns whether the environment was made without a config of its own.

    Raises SettingsError if it has its own and a value of it differs from `settings`.
    """
    own, name = environment.config, type(environment).__name__
    if own is environment._default_config and own == EnvironmentConfig():
        return True
    if not isinstance(own, EnvironmentConfig):
        raise _no_config(environment)
    for key in EnvironmentConfig.model_fields:
        given, wanted = getattr(own, key), getattr(settings, key)
        if given != wanted:
            raise SettingsError(
                f"{name}.config.{key} is {given!r}, config.environment.{key} is {wanted!r}; make {name} without a config "
                f"(it then gets config.environment), or set config.environment.{key}={given!r}"
            )
    return False


# -- the counting around reset and step ------------------------------------------------------------------------


def _watched(
    method: Callable[..., Any], before: Callable[[BaseEnvironment], None], after: Callable[[BaseEnvironment, Any], Any]
) -> Callable[..., Any]:
    """Wraps `method` with `before` and `after`, except when the environment calls it itself (`super().step`, `self.reset`)."""

    async def finish(self: BaseEnvironment, result: Awaitable[Any]) -> Any:
        with _inside(self):
            outcome = await result
        return after(self, outcome)

    @functools.wraps(method)
    async def awaited(self: BaseEnvironment, *args: Any, **options: Any) -> Any:
        if _is_inside(self):
            return await method(self, *args, **options)
        before(self)
        return await finish(self, method(self, *args, **options))

    @functools.wraps(method)
    def called(self: BaseEnvironment, *args: Any, **options: Any) -> Any:
        if _is_inside(self):
            return method(self, *args, **options)
        before(self)
        with _inside(self):
            outcome = method(self, *args, **options)
        return finish(self, outcome) if inspect.isawaitable(outcome) else after(self, outcome)

    watched: Callable[..., Any] = awaited if inspect.iscoroutinefunction(method) else called
    setattr(watched, _WATCHED, True)
    return watched


def _is_inside(environment: BaseEnvironment) -> bool:
    return any(running is environment for running in _running.get())


@contextmanager
def _inside(environment: BaseEnvironment) -> Iterator[None]:
    token = _running.set((*_running.get(), environment))
    try:
        yield
    finally:
        _running.reset(token)


def _before_reset(environment: BaseEnvironment) -> None:
    if not isinstance(environment.config, EnvironmentConfig):
        raise _no_config(environment)
    environment._episode_so_far = _Progress()


def _no_config(environment: BaseEnvironment) -> SettingsError:
    return SettingsError(
        f"{type(environment).__name__}.config must be an EnvironmentConfig, got {_shown(environment.config)}; "
        "subclass EnvironmentConfig for your own settings, or store them under another name"
    )


def _after_reset(environment: BaseEnvironment, observation: Any) -> str:
    if not isinstance(observation, str):
        hint = " (Gymnasium's reset returns a pair; return its first part)" if isinstance(observation, tuple) else ""
        raise EpisodeError(
            f"{type(environment).__name__}.reset must return the first observation, a str{hint}; "
            f"it returned {_shown(observation)}"
        )
    environment._episode_so_far = _Progress(has_started=True, observation=observation)
    return observation


def _before_step(environment: BaseEnvironment) -> None:
    name, progress = type(environment).__name__, environment._episode_so_far
    if not progress.has_started:
        raise EpisodeError(f"{name}.step was called before reset; call reset() first")
    if progress.is_done:
        raise EpisodeError(f"{name}.step: the episode ended after {progress.num_steps} steps; call reset() first")


def _after_step(environment: BaseEnvironment, outcome: Any) -> StepResult:
    name, progress = type(environment).__name__, environment._episode_so_far
    observation, reward, done, info = _checked(name, outcome)
    progress.num_steps += 1
    progress.reward += reward
    max_steps = environment.config.max_steps
    if not done and max_steps is not None and progress.num_steps >= max_steps:
        done, info = True, {**info, "truncated": True}
    progress.is_done, progress.observation, progress.info = done, observation, info
    progress.is_truncated = done and bool(info.get("truncated"))
    return observation, reward, done, info


def _checked(name: str, outcome: Any) -> StepResult:
    if isinstance(outcome, tuple) and len(outcome) == 5:
        raise EpisodeError(
            f"{name}.step returned 5 values, as Gymnasium's (observation, reward, terminated, truncated, info); "
            'return (observation, reward, terminated or truncated, info), with info["truncated"] = truncated'
        )
    if not isinstance(outcome, tuple) or len(outcome) != 4:
        wanted = "the tuple (observation, reward, done, info)"
        raise EpisodeError(f"{name}.step must return {wanted}; it returned {_shown(outcome)}")
    observation, reward, done, info = outcome
    if not isinstance(observation, str):
        raise EpisodeError(f"{name}.step: the observation must be a str, got {_shown(observation)}; turn it into text")
    if not isinstance(flag := plain_scalar(done), bool):
        raise EpisodeError(f"{name}.step: done must be True or False, got {_shown(done)}")
    if not isinstance(info, Mapping):
        raise EpisodeError(f"{name}.step: info must be a mapping, got {_shown(info)}; return {{}} for none")
    return observation, _finite_number(reward, f"{name}.step: the reward"), flag, dict(info)


def _finite_number(value: Any, what: str) -> float:
    """Returns `value`, which may be a scalar of NumPy or torch, as a float. Raises `EpisodeError` if it is not finite."""
    plain = plain_scalar(value)
    try:
        number = float(plain) if isinstance(plain, int | float) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise EpisodeError(f"{what} must be a finite number, got {_shown(value)}")
    return number


def plain_scalar(value: Any) -> Any:
    """Converts scalars of NumPy and torch to Python; returns other values unchanged."""
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):  # it has none, or several values
        return value


def _shown(value: Any) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"
