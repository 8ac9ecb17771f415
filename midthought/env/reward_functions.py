"""The weighted sum of named reward functions: how they are called, what goes wrong and whose fault it is.

Knows no reward function; those that are ready to use stand in rewards.
"""

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

from midthought.env.signature import takes_environment
from midthought.errors import MidthoughtError, RewardError
from midthought.types import Reward, Trajectory

AnyRewardFunction = Callable[..., float | Awaitable[float]]
"""`f(trajectory)` or `f(trajectory, environment)`, plain or `async`."""


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """The weighted sum of named parts, each recorded.

    `reward(trajectory, environment)` gives the `Reward` where no part is asynchronous; `await reward.score(trajectory,
    environment)` does in every case, and is what the rollout loop uses. `environment` is None where there is none.

    >>> from midthought.types import Task
    >>> reward = WeightedReward({"calls": (-0.5, lambda trajectory: trajectory.num_calls)})
    >>> reward(Trajectory(Task(task_id="t", prompt="?", answer="!"), [1])).total
    0.0

    Raises RewardError: on construction for a function that takes neither `(trajectory)` nor `(trajectory, environment)`
    and for a weight that is no finite number; when called for a function that raises or gives no finite number.
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
        """As a call, with asynchronous parts awaited side by side."""
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
                f"reward function {name!r} gave {short(value)} ({type(value).__name__}) for task "
                f"{trajectory.task.task_id!r}; it must give a finite number"
            )
        return Reward(parts=parts)


@dataclass(frozen=True, slots=True)
class AsyncReward:
    """A WeightedReward with asynchronous parts: a call gives an awaitable, as `score` does."""

    weighted: WeightedReward

    @property
    def parts(self) -> Mapping[str, tuple[float, AnyRewardFunction]]:
        return self.weighted.parts

    async def __call__(self, trajectory: Trajectory, environment: Any = None) -> Reward:
        return await self.weighted.score(trajectory, environment)

    score = __call__


def check_weight(name: str, weight: Any) -> None:
    """Raise RewardError for a weight that is no finite number."""
    if not isinstance(weight, numbers.Real) or not math.isfinite(weight):
        raise RewardError(f"the weight of reward function {name!r} is {weight!r}; give a finite number")


def bare_name(function: Callable[..., Any]) -> str:
    """The function's own name, a `partial`'s function's, or an object's class's in small letters."""
    function = without_partial(function)
    return getattr(function, "__name__", type(function).__name__.lower())


def name_of(function: Callable[..., Any]) -> str:
    """`bare_name`; raises RewardError for a lambda, which has none."""
    name = bare_name(function)
    if name == "<lambda>":
        raise RewardError("a lambda has no name; give it one: weighted(lambda trajectory: …, weight, name='…')")
    return name


def without_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it, or its class's `__call__`, is written as `async def`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


@contextlib.contextmanager
def _named(name: str, trajectory: Trajectory) -> Iterator[None]:
    """What a user's function raises, as an error that says which function it was and for which task."""
    try:
        yield
    except MidthoughtError:
        raise
    except Exception as error:
        raise RewardError(
            f"reward function {name!r} raised {type(error).__name__} for task {trajectory.task.task_id!r}: {error}"
        ) from error


def _dispose(value: Awaitable[Any]) -> None:
    """An awaitable that nobody will await; a coroutine that is not closed would complain."""
    if isinstance(value, asyncio.Future):
        value.cancel()
    elif inspect.iscoroutine(value):
        value.close()


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
