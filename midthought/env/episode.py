"""Episodes for the rollout loop: of a `BaseEnvironment`, and of one answer; episode statistics.

Does not depend on engines or tokens: it reads the policy's answers from `trajectory.turns`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from midthought.env.environment import BaseEnvironment
from midthought.env.reward_functions import WeightedReward, with_remedy
from midthought.env.rewards import last_answer
from midthought.errors import EpisodeError
from midthought.tools.background_loop import BackgroundLoop
from midthought.tools.concurrency import DaemonThreads, TooLateError, environments_loop, settled, within
from midthought.types import Reward, Trajectory
from midthought.types.turn import as_recorded

T = TypeVar("T")

_log = logging.getLogger(__name__)


# -- one episode -----------------------------------------------------------------------------------------------


class EnvironmentEpisode:
    """The rollout loop's `EpisodeEnvironment` for one freshly reset environment.

    The action is the policy's text after its last `</think>`, stripped; the whole text if there is no such tag, and empty if a
    thought is not closed. A plain `step` runs in a thread (not always the same one), an `async def` one on an event loop that
    all environments of the process share. `config.step_timeout_seconds` limits both. Raises `EpisodeError` if `step` or the
    reward function raises, times out, or returns an invalid value; the loop records a failed episode.
    """

    def __init__(self, environment: BaseEnvironment, reward: WeightedReward | None = None) -> None:
        """`reward` replaces the environment's rewards."""
        self.environment = environment
        self._name = type(environment).__name__
        self._num_replies = self._num_recorded = 0
        self._reward = reward

    @property
    def is_truncated(self) -> bool:
        """Whether the environment ended its episode at a limit: as the library recorded it, because the environment may have an
        attribute `is_truncated` of its own."""
        return self.environment._episode_so_far.is_truncated

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Executes the last turn's action and records its observation, reward and `done`. Returns None if the episode is over,
        also if a tool call ended it."""
        if self.environment.is_done():
            return None
        self._num_replies += 1
        turn = trajectory.turns[-1]
        step = functools.partial(self.environment.step, last_answer(trajectory) or "")
        seconds = self.environment.config.step_timeout_seconds
        observation, reward, done, info = await call(step, seconds, f"{self._name}.step")
        turn.observation, turn.reward, turn.done, turn.info = observation, reward, done, as_recorded(info)
        self._num_recorded = self.environment._episode_so_far.num_steps
        return None if done else observation

    async def score(self, trajectory: Trajectory) -> Reward:
        """Returns the rewards of the turns, or what `reward` computes. Rewards of steps that tools took are the part
        `steps_by_tools`, credited to the end. If a tool took the last step, the last turn gets the `info` of that step."""
        progress = self.environment._episode_so_far
        if progress.num_steps > self._num_recorded and trajectory.turns:
            trajectory.turns[-1].info = as_recorded(progress.info)
        if self._reward is None:
            turns = tuple(turn.reward for turn in trajectory.turns)
            if progress.num_steps == self._num_replies:
                return Reward(turns=turns)
            return Reward(parts={"steps_by_tools": progress.reward - sum(turns)}, turns=turns)
        judge = functools.partial(self._reward, trajectory, self.environment)
        scored: Reward = await call(judge, self.environment.config.step_timeout_seconds, "the reward")
        return scored

    async def close(self) -> None:
        """Closes the environment, as `close_environment`."""
        await close_environment(self.environment)


async def close_environment(environment: BaseEnvironment) -> None:
    """Closes an environment whose class defines `close`, within `config.step_timeout_seconds`. Errors are logged, not raised."""
    if type(environment).close is BaseEnvironment.close:
        return
    try:
        await call(environment.close, environment.config.step_timeout_seconds, f"{type(environment).__name__}.close")
    except EpisodeError as error:
        _log.warning("%s", error)


def takes_seed(environment: BaseEnvironment) -> bool:
    """Whether `reset(seed=…)` can be called."""
    try:
        inspect.signature(environment.reset).bind(seed=0)
    except (TypeError, ValueError):
        return False
    return True


# -- episodes of one answer --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuestionEnvironment:
    """Implements the rollout loop's `EpisodeEnvironment`. One instance is used for all episodes."""

    reward: WeightedReward | None = None
    """None: the reward is empty; who needs one computes it from the record."""
    timeout_seconds: float | None = None
    """Time limit of the reward functions, which then run in a thread (`async` ones on the environments' event loop), so that
    they do not block other episodes. None: no limit, and they are called directly."""
    environment: Any = None
    """What stateful tools may use; nothing else does."""
    follows_from_record: ClassVar[bool] = True
    """It has no state: an interrupted episode can continue from its trajectory, also in another process."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Returns None: the answer ends the episode."""
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        """Returns the reward. With a time limit, raises `EpisodeError` if a reward function raises or exceeds it."""
        if self.reward is None:
            return Reward()
        if self.timeout_seconds is None:
            return await self.reward.score(trajectory)
        judge = functools.partial(self.reward, trajectory)
        scored: Reward = await call(judge, self.timeout_seconds, "the reward")
        return scored


# -- statistics ------------------------------------------------------------------------------------------------


def episode_statistics(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Returns statistics of the scored episodes; failed ones are ignored.

    `num_episodes`, `return_mean`, `return_min`, `return_max`, `steps_mean` (turns with a step of the environment),
    `truncated_share` (by a limit of the loop or of the environment), and `success_share` if any `info["success"]` exists: the
    last value of an episode counts, an episode without one is not a success.
    """
    scored = [(t, t.reward.total) for t in trajectories if t.reward is not None]
    if not scored:
        return {"num_episodes": 0.0}
    returns = [total for _, total in scored]
    infos = [[turn.info for turn in t.turns if turn.info is not None] for t, _ in scored]
    num_truncated = sum(t.stop_reason is not None and t.stop_reason.is_truncated for t, _ in scored)
    statistics = {
        "num_episodes": float(len(scored)),
        "return_mean": math.fsum(returns) / len(scored),
        "return_min": min(returns),
        "return_max": max(returns),
        "steps_mean": sum(map(len, infos)) / len(scored),
        "truncated_share": num_truncated / len(scored),
    }
    successes = [[info["success"] for info in said if "success" in info] for said in infos]
    if any(successes):
        statistics["success_share"] = sum(bool(said and said[-1]) for said in successes) / len(scored)
    return statistics


# -- calling user code ------------------------------------------------------------------------------------------

_threads = DaemonThreads("midthought-environment")
_waiting = BackgroundLoop("midthought-environment-deadlines")
"""Synchronous code waits on it for the environments' coroutines, which may block their own loop."""


async def call(function: Callable[[], Any], seconds: float, what: str) -> Any:
    """Calls `function`, plain or `async def`, without blocking this event loop, and returns its result.

    Coroutines run on a separate event loop, shared by all environments of the process, so that their connections outlive the
    caller's loop. Raises `EpisodeError` with the name `what` if it raises or takes longer than `seconds`.
    """
    try:
        return await within(seconds, settled(function, _threads, environments_loop))
    except TooLateError:
        remedy = "make it faster or raise environment.step_timeout_seconds"
        raise EpisodeError(f"{what} did not finish within {seconds:g} seconds; {remedy}") from None
    except EpisodeError:
        raise
    except Exception as error:
        raise EpisodeError(f"{what} raised {type(error).__name__}: {with_remedy(error)}") from error


def call_blocking(function: Callable[[], Any], seconds: float, what: str) -> Any:
    """`call` for synchronous code, with or without a running event loop."""
    return wait_for(call(function, seconds, what))


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine with `call`s from synchronous code."""
    return _waiting.run(coroutine)
