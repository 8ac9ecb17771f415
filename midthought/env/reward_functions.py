"""Weighted sum of named reward functions: how they are called, and their errors. Built-in functions are in `rewards`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from midthought.errors import MidthoughtError, RewardError
from midthought.types import Reward, Trajectory

_SIGNATURES = "write it as f(trajectory) or f(trajectory, environment)"

AnyRewardFunction = Callable[..., float | Awaitable[float]]
"""`f(trajectory)` or `f(trajectory, environment)`, plain or `async`."""


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """Weighted sum of named parts; the `Reward` records each part.

    `reward(trajectory, environment)` returns the `Reward` if no part is asynchronous; `await reward.score(trajectory,
    environment)` always does, and the rollout loop uses it. `environment` is None if there is none.

    >>> from midthought.types import Task
    >>> reward = WeightedReward({"calls": (-0.5, lambda trajectory: trajectory.num_calls)})
    >>> reward(Trajectory(Task(task_id="t", prompt="?", answer="!"), [1])).total
    0.0

    The constructor raises `RewardError` for a function that takes neither `(trajectory)` nor `(trajectory, environment)` and for
    a weight that is not finite; a call raises it if a function raises or does not return a finite number.
    """

    parts: Mapping[str, tuple[float, AnyRewardFunction]]
    _wants_environment: Mapping[str, bool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, (weight, _) in self.parts.items():
            check_weight(name, weight)
        wants = {name: takes_environment(function, name) for name, (_, function) in self.parts.items()}
        object.__setattr__(self, "_wants_environment", wants)

    def __call__(self, trajectory: Trajectory, environment: Any = None) -> Reward:
        values: dict[str, Any] = {}
        for name in self.parts:
            value = self._called(name, trajectory, environment)
            if inspect.isawaitable(value):
                _dispose(value)
                raise RewardError(f"reward function {name!r} is asynchronous: use `await reward.score(trajectory)`")
            values[name] = value
        return self._weighted(values, trajectory)

    async def score(self, trajectory: Trajectory, environment: Any = None) -> Reward:
        """Computes the reward; asynchronous parts run concurrently."""
        values: dict[str, Any] = {}
        running: dict[str, asyncio.Future[Any]] = {}
        try:
            for name in self.parts:
                value = self._called(name, trajectory, environment)
                if inspect.isawaitable(value):
                    running[name] = asyncio.ensure_future(value)
                else:
                    values[name] = value
            for name, future in running.items():
                with _named(name, trajectory):
                    values[name] = await future
        finally:
            for future in running.values():
                future.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)
        return self._weighted(values, trajectory)

    def _called(self, name: str, trajectory: Trajectory, environment: Any) -> Any:
        _, function = self.parts[name]
        with _named(name, trajectory):
            return function(trajectory, environment) if self._wants_environment[name] else function(trajectory)

    def _weighted(self, values: Mapping[str, Any], trajectory: Trajectory) -> Reward:
        parts = {}
        for name, (weight, _) in self.parts.items():
            value = values[name]
            with contextlib.suppress(OverflowError):
                if isinstance(value, numbers.Real) and math.isfinite(weight * float(value)):
                    parts[name] = weight * float(value)
                    continue
            raise RewardError(
                f"reward function {name!r} returned {short(value)} ({type(value).__name__}) for task "
                f"{trajectory.task.task_id!r}; it must return a finite number"
            )
        return Reward(parts=parts)


@dataclass(frozen=True, slots=True)
class AsyncReward:
    """A `WeightedReward` with asynchronous parts: a call returns an awaitable, as `score` does."""

    weighted: WeightedReward

    @property
    def parts(self) -> Mapping[str, tuple[float, AnyRewardFunction]]:
        return self.weighted.parts

    async def __call__(self, trajectory: Trajectory, environment: Any = None) -> Reward:
        return await self.weighted.score(trajectory, environment)

    score = __call__


def takes_environment(function: Callable[..., Any], name: str = "reward_fn") -> bool:
    """Whether a reward function takes the environment after the trajectory.

    It does if its second positional parameter has no default, or is named `environment` or `env`. Raises `RewardError` if the
    function cannot be called either way.
    """
    if not callable(function):
        raise RewardError(f"reward function {name!r} is {function!r:.80} and cannot be called; {_SIGNATURES}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C
        raise RewardError(f"reward function {name!r}: {function!r} has no signature; {_SIGNATURES}") from None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [each for each in signature.parameters.values() if each.kind in kinds]
    second = positional[1] if len(positional) > 1 else None
    takes = second is not None and (second.default is second.empty or second.name in ("environment", "env"))
    try:
        signature.bind(*[None] * (1 + takes))
    except TypeError:
        raise RewardError(f"reward function {name!r} takes {signature}; {_SIGNATURES}") from None
    return takes


def check_weight(name: str, weight: Any) -> None:
    """Raises `RewardError` if the weight is not a finite number."""
    if not isinstance(weight, numbers.Real) or not math.isfinite(weight):
        raise RewardError(f"the weight of reward function {name!r} is {weight!r}; give a finite number")


def bare_name(function: Callable[..., Any]) -> str:
    """Returns the name of the function (of a `partial`: of its function; of another object: of its class, in lower case)."""
    function = without_partial(function)
    return getattr(function, "__name__", type(function).__name__.lower())


def name_of(function: Callable[..., Any]) -> str:
    """Returns `bare_name`; raises `RewardError` for a lambda, which has no name."""
    name = bare_name(function)
    if name == "<lambda>":
        raise RewardError("a lambda has no name; give it one: weighted(lambda trajectory: …, weight, name='…')")
    return name


def without_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it, or the `__call__` of its class, is `async def`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


@contextlib.contextmanager
def _named(name: str, trajectory: Trajectory) -> Iterator[None]:
    """Converts exceptions of a user's function to a `RewardError` that names the function and the task."""
    try:
        yield
    except MidthoughtError:
        raise
    except Exception as error:
        raise RewardError(
            f"reward function {name!r} raised {type(error).__name__} for task {trajectory.task.task_id!r}: {error}"
        ) from error


def _dispose(value: Awaitable[Any]) -> None:
    """Discards an awaitable; a coroutine that is not closed would cause a warning."""
    if isinstance(value, asyncio.Future):
        value.cancel()
    elif inspect.iscoroutine(value):
        value.close()


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
