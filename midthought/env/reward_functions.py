"""Weighted sum of named reward functions: how they are called, and their errors. Built-in functions are in `rewards`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import math
import numbers
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from midthought.env.environment import plain_scalar
from midthought.errors import MidthoughtError, RewardError
from midthought.types import Reward, Trajectory

REWARD_FN = "reward_fn"
"""The name of a trainer's only function, whose parts keep their names."""
_SIGNATURES = "write it as f(trajectory) or f(trajectory, environment), or use matched(f) for f(answer, truth)"
AnyRewardFunction = Callable[..., float | Reward | Awaitable[float | Reward | None] | None]
"""`f(trajectory)` or `f(trajectory, environment)`, plain or `async`. Returns a number or a `Reward`, for example with one
number per turn or per call; None if it does not apply to the task."""


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """Weighted sum of named parts; the `Reward` records each part.

    A function returns a number, a mapping of names to numbers (the parts), or a `Reward`: its part `p` is recorded as
    `function/p` (of a trainer's `reward_fn` as `p`), its `turns` (one number for each of `trajectory.turns`) and `calls` (of
    `trajectory.tool_events`) are added, one by one, to the numbers of the other functions, all times the weight of the function.
    A function that returns None does not apply to the task: it has no part in this reward.

    `reward(trajectory, environment)` returns the `Reward`, or an awaitable of it if a part is `async`; `await
    reward.score(trajectory, environment)` always works, and the rollout loop uses it. `environment` is None if there is none.

    >>> from midthought.types import Task
    >>> reward = WeightedReward({"calls": (-0.5, lambda trajectory: trajectory.num_calls)})
    >>> reward(Trajectory(Task(task_id="t", prompt="?", answer="!"), [1])).total
    0.0

    The constructor raises `RewardError` for a function that takes neither `(trajectory)` nor `(trajectory, environment)` and for
    a weight that is not finite; a call raises it if a function raises, or returns a number that is not finite or rewards for
    another number of turns or calls, and if all return None.
    """

    parts: Mapping[str, tuple[float, AnyRewardFunction]]
    _wants_environment: Mapping[str, bool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, (weight, _) in self.parts.items():
            check_weight(name, weight)
        wants = {name: takes_environment(function, name) for name, (_, function) in self.parts.items()}
        object.__setattr__(self, "_wants_environment", wants)

    def __call__(self, trajectory: Trajectory, environment: Any = None) -> Any:
        values: dict[str, Any] = {}
        try:
            for name, (_, function) in self.parts.items():
                arguments = (trajectory, environment) if self._wants_environment[name] else (trajectory,)
                with _named(name, trajectory):
                    values[name] = function(*arguments)
        except BaseException:
            _close(values)
            raise
        is_later = any(map(inspect.isawaitable, values.values()))
        return self._awaited(values, trajectory) if is_later else self._weighted(values, trajectory)

    def require_no_environment(self) -> None:
        """Raises `RewardError` for a second parameter that is not the environment: with rows, it would be None."""
        for name in (name for name, wants in self._wants_environment.items() if wants):
            signature = inspect.signature(self.parts[name][1])
            if [*signature.parameters][1].lstrip("_") not in ("", "environment", "env"):
                raise RewardError(
                    f"reward function {name!r} takes {signature}, and would be called with the trajectory and None: write it "
                    "as f(trajectory) (trajectory.task.answer is the truth), or use matched(f) for f(answer, truth)"
                )

    async def score(self, trajectory: Trajectory, environment: Any = None) -> Reward:
        """Computes the reward; asynchronous parts run concurrently."""
        reward = self(trajectory, environment)
        found: Reward = await reward if inspect.isawaitable(reward) else reward
        return found

    async def _awaited(self, values: dict[str, Any], trajectory: Trajectory) -> Reward:
        running = {name: asyncio.ensure_future(value) for name, value in values.items() if inspect.isawaitable(value)}
        try:
            for name, future in running.items():
                with _named(name, trajectory):
                    values[name] = await future
        finally:
            for future in running.values():
                future.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)
            _close(values)
        return self._weighted(values, trajectory)

    def _weighted(self, values: Mapping[str, Any], trajectory: Trajectory) -> Reward:
        parts: dict[str, float] = {}
        steps: dict[str, list[float]] = {"turns": [], "calls": []}
        applied = {name: values[name] for name in self.parts if values[name] is not None}
        if self.parts and not applied:
            raise RewardError(
                f"the reward function {' and '.join(map(repr, self.parts))} returned None for task {trajectory.task.task_id!r}: "
                "None means that it does not apply; return a number, or add a function that applies to this task"
            )
        for name, value in applied.items():
            found = _weighted_part(name, self.parts[name][0], value, trajectory)
            if repeated := parts.keys() & found.parts.keys():
                remedy = "name one: weighted(…, name='…')"
                raise RewardError(f"two reward functions give a part {min(repeated)!r}; {remedy}")
            parts |= found.parts
            for kind, sums in steps.items():
                sums[:] = map(math.fsum, itertools.zip_longest(sums, getattr(found, kind), fillvalue=0.0))
        return Reward(parts=parts, turns=tuple(steps["turns"]), calls=tuple(steps["calls"]))


def _weighted_part(name: str, weight: float, value: Any, trajectory: Trajectory) -> Reward:
    """Returns what one function gave, times its weight, in numbers of Python: one part of its name, or the parts, turns and calls
    of its `Reward`. Raises `RewardError` for numbers that are not finite, and another number of turns or calls."""
    task = f"for task {trajectory.task.task_id!r}"
    if isinstance(value, Mapping):
        value = Reward(parts=value)
    if not isinstance(value, Reward):
        what = f"reward function {name!r} returned {value!r:.80} ({type(value).__name__}) {task}"
        product = _times(weight, value, f"{what}; it must return a finite number, named numbers or a Reward")
        return Reward(parts={name: product})
    by_turn, by_call = tuple(value.turns), tuple(value.calls)  # also of an array
    for noun, amounts, attribute in (("turn", by_turn, "turns"), ("call", by_call, "tool_events")):
        if amounts and len(amounts) != (number := len(getattr(trajectory, attribute))):
            remedy = f"the episode has {number}: give one per {noun} of trajectory.{attribute}, or none"
            raise RewardError(f"reward function {name!r} returned rewards for {len(amounts)} {noun}s {task}; {remedy}")

    def amount(number: Any, where: str) -> float:
        message = f"reward function {name!r} returned {number!r:.80} for {where} {task}; it must be a finite number"
        return _times(weight, number, message)

    prefix = "" if name == REWARD_FN else f"{name}/"
    return Reward(
        parts={f"{prefix}{part}": amount(number, f"part {part!r}") for part, number in value.parts.items()},
        turns=tuple(amount(number, f"turn {turn}") for turn, number in enumerate(by_turn)),
        calls=tuple(amount(number, f"call {call}") for call, number in enumerate(by_call)),
    )


def _times(weight: float, value: Any, message: str) -> float:
    """Returns the product; `value` may be a scalar of NumPy or torch. Raises `RewardError`, with the message, if it is not
    finite."""
    plain = plain_scalar(value)
    with contextlib.suppress(OverflowError):
        if isinstance(plain, numbers.Real) and math.isfinite(product := float(weight) * float(plain)):
            return product
    raise RewardError(message)


def takes_environment(function: Callable[..., Any], name: str = REWARD_FN) -> bool:
    """Whether a reward function takes the environment after the trajectory.

    It does if its second positional parameter has no default, or is named `environment` or `env`. Raises `RewardError` if the
    function cannot be called either way.
    """
    if not callable(function):
        raise RewardError(f"reward function {name!r} is {function!r:.80} and cannot be called; {_SIGNATURES}")
    if isinstance(function, type):
        raise RewardError(f"reward function {name!r} is a class; give an object of it: {function.__name__}(…)")
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


@contextlib.contextmanager
def _named(name: str, trajectory: Trajectory) -> Iterator[None]:
    """Converts exceptions of a user's function to a `RewardError` that names the function and the task."""
    try:
        yield
    except MidthoughtError:
        raise
    except Exception as error:
        raise RewardError(
            f"reward function {name!r} raised {type(error).__name__} for task {trajectory.task.task_id!r}: "
            f"{with_remedy(error)}"
        ) from error


def with_remedy(error: BaseException) -> str:
    """Returns the text of an exception of a user's function. `signal.alarm`, which math-verify uses, fails outside the main
    thread: then with the remedy."""
    if not isinstance(error, ValueError) or isinstance(error, MidthoughtError) or "signal" not in str(error):
        return str(error)
    return (
        f"{error}. Rewards and environments run in threads, and signal.alarm works only in the main thread: use "
        "midthought.env.answer_matching.mathematical_match, or math-verify's parse(…, parsing_timeout=None) and verify(…, "
        "timeout_seconds=None); environment.step_timeout_seconds limits the time of each call"
    )


def _close(values: Mapping[str, Any]) -> None:
    """Closes coroutines that nobody awaits: they would cause a warning."""
    for value in values.values():
        if inspect.iscoroutine(value):
            value.close()
