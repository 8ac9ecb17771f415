"""Rewards as named, weighted functions of the trajectory and the ground truth.

`combine_rewards` combines functions to one reward; built-in functions follow. They read the texts and events of the turns.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from midthought.config import RewardConfig
from midthought.config.references import require_installed
from midthought.data.final_answers import abstains, is_answerable
from midthought.env.answer_matching import exact_match, fuzzy_match, mathematical_match, numeric_match, option_match
from midthought.env.answers import task_is_right, within_tags
from midthought.env.reward_functions import (
    AnyRewardFunction,
    RewardError,
    WeightedReward,
    bare_name,
    check_weight,
    name_of,
    without_partial,
)
from midthought.errors import near_names
from midthought.tools.concurrency import DaemonThreads
from midthought.types import StopReason, ToolOutcome, Trajectory, Turn

P = ParamSpec("P")
T = TypeVar("T")

Match = Callable[..., float | Awaitable[float]]
"""`match(answer, truth)`, from 0 to 1, plain or `async`."""

_threads = DaemonThreads("midthought-reward")


class RewardPart(NamedTuple):
    """A function with its name and weight; a plain tuple of the three is accepted, too."""

    name: str
    weight: float
    function: AnyRewardFunction


def weighted(function: AnyRewardFunction, weight: float, *, name: str | None = None) -> RewardPart:
    """Returns a function with its weight for `combine_rewards`; the default name is that of the function."""
    return RewardPart(name_of(function) if name is None else name, weight, function)


def combine_rewards(
    functions: Iterable[AnyRewardFunction | tuple[str, float, AnyRewardFunction] | WeightedReward],
) -> WeightedReward:
    """Combines functions to one reward: plain ones (weight 1, own name), `weighted(...)`, `(name, weight, function)`.

    Called with `(trajectory)` or `(trajectory, environment)` the result returns a Reward, or an awaitable of one if a function
    is `async`; `await reward.score(...)` works in both cases. A combined reward may be one of the functions: its parts keep
    their names, and their weights are multiplied. Raises `RewardError` for no function, equal names, a missing name, and as
    `WeightedReward` does.

    Examples:
        >>> def is_short(trajectory): return float(trajectory.num_sampled < 100)
        >>> reward = combine_rewards([is_short, weighted(num_calls, -0.1), ("asked", 0.5, used_tool)])
        >>> {name: weight for name, (weight, _) in reward.parts.items()}
        {'is_short': 1.0, 'num_calls': -0.1, 'asked': 0.5}
    """
    if callable(functions):
        raise RewardError(f"{functions!r:.80} is one function; give a list of them: [function]")
    parts: dict[str, tuple[float, AnyRewardFunction]] = {}
    for part in _each_part(functions):
        if part.name in parts:
            remedy = "name one: weighted(function, weight, name='…')"
            raise RewardError(f"two reward functions are named {part.name!r}; {remedy}")
        parts[part.name] = (part.weight, part.function)
    if not parts:
        raise RewardError("no reward function is given; give at least one")
    return WeightedReward(parts)


def _each_part(functions: Iterable[Any]) -> Iterator[RewardPart]:
    for item in functions:
        part = item if isinstance(item, tuple) else weighted(item, 1.0)
        if len(part) != 3 or not isinstance(part[0], str) or not part[0]:
            raise RewardError(f"{part!r:.80} is no reward function; a tuple must be (name, weight, function)")
        name, weight, function = part
        check_weight(name, weight)
        if isinstance(function, WeightedReward):
            yield from (RewardPart(inner, weight * each, f) for inner, (each, f) in function.parts.items())
        else:
            yield RewardPart(name, weight, function)


def in_thread(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Returns an asynchronous form of a blocking function (file, network, long computation), which runs in a thread.

    Other episodes continue while it runs. Use it for reward functions and matches.
    """

    @functools.wraps(function)
    async def run(*args: P.args, **keywords: P.kwargs) -> T:
        return await _threads.run(functools.partial(function, *args, **keywords))

    run.__name__ = bare_name(function)
    return run


# -- the answer ------------------------------------------------------------------------------------------------


def last_answer(trajectory: Trajectory) -> str | None:
    """Returns `Turn.answer` of the last turn; None without a turn."""
    return trajectory.turns[-1].answer if trajectory.turns else None


def matched(match: Match, *, extract: Callable[[str], str | None] | None = None) -> AnyRewardFunction:
    """Returns a reward function: the maximum of `match(answer, truth)` over the ground truth and its aliases.

    `match` is a function of `env.answer_matching` or your own, plain or `async`; the reward has its name. `extract`
    returns the part of the answer that counts, for example `last_boxed`. The reward is 0 without an answer, or if it returns
    None.
    `mathematical_match` runs in a thread; `MissingExtraError` is raised immediately if math-verify is not installed.
    """
    compare: Callable[..., Any] = match
    if without_partial(match) is mathematical_match:
        require_installed("math", "math_verify")
        compare = in_thread(match)

    def reward(trajectory: Trajectory) -> float | Awaitable[float]:
        answer = last_answer(trajectory)
        answer = extract(answer) if extract is not None and answer is not None else answer
        if answer is None:
            return 0.0
        first = compare(answer, trajectory.task.answer)
        aliases = trajectory.task.aliases
        if inspect.isawaitable(first):
            return later(first, answer, aliases)
        return max(float(value) for value in (first, *(compare(answer, alias) for alias in aliases)))

    async def later(first: Awaitable[float], answer: str, aliases: Sequence[str]) -> float:
        return max([float(await first), *[float(await compare(answer, alias)) for alias in aliases]])

    reward.__name__ = bare_name(match)
    return reward


def correct(trajectory: Trajectory) -> float:
    """1 if the answer after the last thought is right by the rules of its task (`answers.task_is_right`), else 0.

    If the truth is `final_answers.NO_ANSWER`, at least one call must have returned a result: who has not searched does not know
    what the memory does not say.
    """
    answer = last_answer(trajectory)
    if answer is None or not task_is_right(trajectory.task, answer):
        return 0.0
    return 1.0 if is_answerable(trajectory.task) else used_tool(trajectory)


def wrong_answer(trajectory: Trajectory) -> float:
    """1 for an answer that is neither right nor says that there is none (`data.final_answers`), else 0; 0 without an answer."""
    answer = within_tags(last_answer(trajectory) or "").strip()
    return float(bool(answer) and not abstains(answer) and not task_is_right(trajectory.task, answer))


# -- the form --------------------------------------------------------------------------------------------------


def well_formed_thought(trajectory: Trajectory) -> float:
    """1 for one thought (`Turn.think_tags`), closed by the policy, with an answer after it, in an episode not cut off, else 0."""
    num_opened = sum(each.begins_in_thought + each.model_output.count(each.think_tags[0]) for each in trajectory.turns)
    num_closed = sum(each.model_output.count(each.think_tags[1]) for each in trajectory.turns)
    was_answered = trajectory.stop_reason is StopReason.ANSWERED and bool(last_answer(trajectory))
    return float(was_answered and num_opened == num_closed == 1)


def thought_of(turn: Turn) -> str | None:
    """Returns the text of a turn's thoughts, with the calls in them; None if the turn has no thought."""
    opening, closing = turn.think_tags
    before, closed, after = turn.model_output.rpartition(closing)
    text = before if closed else after
    if not (closed or opening in text or turn.begins_in_thought):
        return None
    start = 0 if turn.begins_in_thought else text.find(opening) + len(opening) if opening in text else 0
    return text[start:].replace(opening, "").replace(closing, "")


# -- the tools: counted from the events, positive; a cost has a negative weight --------------------------------


def num_calls(trajectory: Trajectory) -> float:
    """Number of requested calls, from the events."""
    return float(trajectory.num_calls)


def num_failed_calls(trajectory: Trajectory) -> float:
    """Number of calls without a result: malformed, refused, failed, timed out, beyond the limit."""
    return float(sum(event.outcome is not ToolOutcome.OK for event in trajectory.tool_events))


def used_tool(trajectory: Trajectory) -> float:
    """1 if at least one call returned a result, else 0."""
    return float(any(event.outcome is ToolOutcome.OK for event in trajectory.tool_events))


# -- rewards by name ---------------------------------------------------------------------------------------------

_OF_THE_ANSWER = {
    "correct": correct,
    **{match.__name__: matched(match) for match in (exact_match, numeric_match, fuzzy_match, option_match)},
}
NAMED_REWARDS: Mapping[str, AnyRewardFunction] = {
    **_OF_THE_ANSWER,
    **{count.__name__: count for count in (num_calls, num_failed_calls, used_tool)},
}
"""Reward functions by name."""


def named_rewards(rewards: Any) -> list[Any]:
    """Returns the functions for `combine_rewards`. An item is a name of `NAMED_REWARDS`, a function, a pair (either, weight), or
    what `combine_rewards` takes. A mapping gives weights by name. A lambda is named by its place (`reward_1`). None: no rewards.
    Raises RewardError."""
    if rewards is None:
        return []
    if isinstance(rewards, str) or callable(rewards):
        rewards = [rewards]
    if not isinstance(rewards, Iterable):
        raise RewardError(f"rewards={rewards!r:.80}: give a list of names, functions, or pairs (reward, weight)")
    items = rewards.items() if isinstance(rewards, Mapping) else rewards
    return [_reward(item, f"reward_{number}") for number, item in enumerate(items, start=1)]


def _reward(item: Any, place: str) -> Any:
    if isinstance(item, tuple) and len(item) != 2:
        return item
    reward, weight = item if isinstance(item, tuple) else (item, 1.0)
    if isinstance(weight, str) or callable(weight):
        raise RewardError(f"{item!r:.80}: give (reward, weight), the weight is a number")
    if not isinstance(reward, str):
        return weighted(reward, weight, name=place if callable(reward) and bare_name(reward) == "<lambda>" else None)
    if reward not in NAMED_REWARDS:
        raise RewardError(f"unknown reward {reward!r}. {near_names(reward, NAMED_REWARDS)} Or give a function.")
    return RewardPart(reward, weight, NAMED_REWARDS[reward])


def needs_answers(functions: Iterable[AnyRewardFunction]) -> bool:
    """Whether one of these functions compares with the task's answer."""
    return any(function in _OF_THE_ANSWER.values() for function in functions)


# -- the reward of the settings --------------------------------------------------------------------------------


def answer_reward(weights: RewardConfig) -> WeightedReward:
    """Returns the reward of the `reward` settings: correct answer, well-formed thought, cost per call, cost of a wrong answer."""
    parts: dict[str, tuple[float, AnyRewardFunction]] = {
        "correct": (weights.correct, correct),
        "thought": (weights.thought, well_formed_thought),
        "calls": (-weights.call_cost, num_calls),
    }
    if weights.wrong_answer:
        parts["wrong_answer"] = (-weights.wrong_answer, wrong_answer)
    return WeightedReward(parts)
