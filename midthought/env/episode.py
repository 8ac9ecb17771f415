"""One episode of a `BaseEnvironment` as the rollout loop drives it, tasks for groups that begin alike, and statistics.

Knows neither engines nor tokens: what the policy wrote stands in `trajectory.turns`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import functools
import inspect
import math
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment, check_config, finite_number
from midthought.env.reasoning import last_answer
from midthought.env.signature import takes_environment
from midthought.errors import EpisodeError, MidthoughtError, SettingsError
from midthought.tools.concurrency import DaemonThreads
from midthought.types import Reward, Task, Trajectory, Turn

RewardFunction = Callable[..., Any]
"""`(trajectory)` or `(trajectory, environment)` to a number, a mapping of named parts or a Reward; may be `async def`."""


@dataclass(kw_only=True, slots=True)
class EnvironmentTurn(Turn):
    """A turn that an environment answered."""

    info: Mapping[str, Any] = field(default_factory=dict)
    """What `step` said beside the observation."""


# -- one episode -----------------------------------------------------------------------------------------------


class EnvironmentEpisode:
    """The rollout loop's `EpisodeEnvironment` over one freshly reset environment.

    The action is what the policy wrote after its last `</think>`, without blanks around it; all of it where it wrote no
    such mark, and nothing where it left a thought open. A plain `step` runs in a thread (not always the same one), an
    `async def` one on an event loop that all environments of the process share; `config.step_timeout_seconds` bounds
    both. EpisodeError: `step` or the reward function raised, took longer, or gave something else than it should; the
    loop makes a failed episode of it.
    """

    def __init__(self, environment: BaseEnvironment, reward_fn: RewardFunction | None = None) -> None:
        """`reward_fn` replaces the environment's rewards. RewardError where it cannot be called."""
        self.environment = environment
        self._name = type(environment).__name__
        self._num_replies = 0
        self._reward_fn = reward_fn
        self._rewards_environment = reward_fn is not None and takes_environment(reward_fn)

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Do what the last turn says; its observation, reward and `done` are filled in. None where the episode is over,
        be it that a tool's step ended it."""
        if self.environment.is_done():
            return None
        self._num_replies += 1
        turn = trajectory.turns[-1]
        step = functools.partial(self.environment.step, last_answer(trajectory) or "")
        seconds = self.environment.config.step_timeout_seconds
        observation, reward, done, info = await call(step, seconds, f"{self._name}.step")
        answered = {each.name: getattr(turn, each.name) for each in fields(Turn)}
        answered |= {"observation": observation, "reward": reward, "done": done, "info": info}
        trajectory.turns[-1] = EnvironmentTurn(**answered)
        return None if done else observation

    async def score(self, trajectory: Trajectory) -> Reward:
        """The turns' rewards, or what the reward function says instead. What steps taken by tools paid is a part of its
        own, `steps_by_tools`, credited to the end."""
        if self._reward_fn is None:
            turns = tuple(turn.reward for turn in trajectory.turns)
            if self.environment.get_step_count() == self._num_replies:
                return Reward(turns=turns)
            return Reward(parts={"steps_by_tools": self.environment.get_episode_reward() - sum(turns)}, turns=turns)
        arguments = (trajectory, self.environment) if self._rewards_environment else (trajectory,)
        judge = functools.partial(self._reward_fn, *arguments)
        value = await call(judge, self.environment.config.step_timeout_seconds, "reward_fn")
        return _as_reward(value, len(trajectory.turns))


def _as_reward(value: Any, num_turns: int) -> Reward:
    if isinstance(value, Reward):
        if len(value.turns) > num_turns:
            raise EpisodeError(
                f"reward_fn gave rewards for {len(value.turns)} turns, the episode has {num_turns}; give one per turn"
            )
        turns = tuple(finite_number(each, f"reward_fn: turn {i}'s reward") for i, each in enumerate(value.turns))
        return Reward(parts=_finite_parts(value.parts), turns=turns)
    if isinstance(value, Mapping):
        return Reward(parts=_finite_parts(value))
    return Reward(parts={"reward_fn": finite_number(value, "what reward_fn returns (no mapping, no Reward)")})


def _finite_parts(parts: Mapping[Any, Any]) -> dict[str, float]:
    return {str(name): finite_number(value, f"reward_fn: part {name!r}") for name, value in parts.items()}


# -- tasks -----------------------------------------------------------------------------------------------------


FAILED_RESET = "failed_reset"
"""Label of a task whose environment could not be made or reset: the error with which all of its episodes fail."""


@dataclass(slots=True)
class _Start:
    """A freshly reset environment that the episodes of one task begin with."""

    seed: int
    environment: BaseEnvironment | None = None
    observation: str = ""
    is_given_away: bool = False
    """True where it could not be copied and the first episode has it itself."""
    error: str = ""
    """Why it could not be made or reset."""

    @property
    def name(self) -> str:
        return "environment" if self.environment is None else type(self.environment).__name__

    @property
    def prompt(self) -> str:
        if self.error or self.environment is None:
            return f"{self.name}.reset failed"
        return "\n".join(part for part in (self.environment.get_prompt_prefix(), self.observation) if part)


class EnvironmentTasks:
    """Tasks from an environment, or from a factory that makes one; each task is one `reset`, shared by its group.

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
        """`config`: what environments get that are made without one.

        Raises SettingsError for what is neither an environment nor something to call, and for an environment whose own
        config differs from `config`; RewardError for a reward function that cannot be called.
        """
        if not isinstance(environment, BaseEnvironment) and not callable(environment):
            raise SettingsError(
                f"environment={environment!r}: give a BaseEnvironment, or a function without parameters that makes one"
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
        """One task per group: a new environment each, reset with a seed of its own (where `reset` takes one).

        The prompt is `get_prompt_prefix()` and the first observation. Episodes can be had of the newest call's tasks only.
        If one environment cannot be made or reset, its task has the label `FAILED_RESET` and its episodes fail.
        EpisodeError, the first one's, if that is so of all (it cannot be copied, the factory gave none, `reset` raised or
        took too long).
        """
        seeds = [random.Random(f"environment-{seed}-{number}").getrandbits(31) for number in range(num_groups)]
        starts = [self._made_for(own_seed) for own_seed in seeds]
        _reset_all([start for start in starts if not start.error])
        errors = [start.error for start in starts if start.error]
        if raise_if_all_failed and errors and len(errors) == len(starts):
            raise EpisodeError(errors[0])
        tasks = []
        self._starts = {}
        for number, start in enumerate(starts):
            task_id = f"{start.name}-{seed}-{number}"
            labels = {FAILED_RESET: start.error} if start.error else {}
            tasks.append(Task(task_id=task_id, prompt=start.prompt, answer="", labels=labels))
            self._starts[task_id] = start
        return tasks

    def episode(self, task: Task) -> EnvironmentEpisode:
        """A new episode of a task: what the rollout loop calls."""
        return EnvironmentEpisode(self.start(task), self._reward_fn)

    def start(self, task: Task) -> BaseEnvironment:
        """An environment in the state in which the task begins: a deep copy of the one that was reset.

        One that cannot be copied is given away itself, once; for further episodes the factory makes another, which the
        same seed must bring to the same observation. EpisodeError where it does not, or the task is not known.
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
            if isinstance(self._environment, BaseEnvironment):
                raise _not_copied(start.environment, error) from error
        start.is_given_away = True
        return start.environment

    def _made_for(self, seed: int) -> _Start:
        """With an environment that is not reset yet. An error of the factory's own is as one of `reset`."""
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
            raise EpisodeError(f"the environment's factory gave a {type(made).__name__}; return a new BaseEnvironment")
        return made

    def _made_alike(self, start: _Start, first: BaseEnvironment) -> BaseEnvironment:
        if not takes_seed(first):
            raise EpisodeError(
                f"{start.name} cannot be copied and its reset takes no seed, so a group's episodes cannot begin alike; "
                "give reset a parameter `seed`, or use group_size=1"
            )
        made = _Start(start.seed, self._new())
        _reset_all([made])
        if made.error or made.environment is None:
            raise EpisodeError(made.error)
        if made.observation != start.observation:
            raise EpisodeError(
                f"{start.name} cannot be copied and reset(seed={start.seed}) gave another observation the second time; "
                "draw everything random from the seed"
            )
        return made.environment


def _not_copied(environment: BaseEnvironment, error: Exception) -> EpisodeError:
    return EpisodeError(
        f"{type(environment).__name__} cannot be copied ({type(error).__name__}: {error}); give a factory instead of "
        "an instance (a function that makes a new one), or write __deepcopy__"
    )


def takes_seed(environment: BaseEnvironment) -> bool:
    """Whether `reset(seed=…)` can be called."""
    try:
        inspect.signature(environment.reset).bind(seed=0)
    except TypeError:
        return False
    return True


def _reset_all(starts: Sequence[_Start]) -> None:
    """Fill in first observations, or errors. Coroutines run side by side, plain functions one after the other: they may share
    a generator."""
    resets = [_reset(start.environment, start.seed) for start in starts if start.environment is not None]
    if all(inspect.iscoroutinefunction(reset) for reset, _, _ in resets):
        futures = [_submit(reset) for reset, _, _ in resets]
        waits = [functools.partial(_wait, future, *reset[1:]) for future, reset in zip(futures, resets, strict=True)]
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


def _reset(environment: BaseEnvironment, seed: int) -> tuple[Callable[[], Any], float, str]:
    """What is called, its deadline, and what errors call it."""
    reset = functools.partial(environment.reset, **({"seed": seed} if takes_seed(environment) else {}))
    return reset, environment.config.step_timeout_seconds, f"{type(environment).__name__}.reset"


# -- statistics ------------------------------------------------------------------------------------------------


def episode_statistics(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Figures of episodes that ended and were scored; failed ones are left out.

    `num_episodes`; of the returns `return_mean return_min return_max`; `steps_mean` (answers of the environment);
    `truncated_share` (by a limit of the loop or of the environment); `success_share` where `info["success"]` was ever
    given: the last one of an episode counts, an episode without any is none.
    """
    scored = [(t, t.reward.total) for t in trajectories if t.reward is not None]
    if not scored:
        return {"num_episodes": 0.0}
    returns = [total for _, total in scored]
    infos = [[turn.info for turn in t.turns if isinstance(turn, EnvironmentTurn)] for t, _ in scored]
    truncated = [
        (t.stop_reason is not None and t.stop_reason.is_truncated) or any(info.get("truncated") for info in said)
        for (t, _), said in zip(scored, infos, strict=True)
    ]
    statistics = {
        "num_episodes": float(len(scored)),
        "return_mean": math.fsum(returns) / len(scored),
        "return_min": min(returns),
        "return_max": max(returns),
        "steps_mean": sum(map(len, infos)) / len(scored),
        "truncated_share": sum(truncated) / len(scored),
    }
    successes = [[info["success"] for info in said if "success" in info] for said in infos]
    if any(successes):
        statistics["success_share"] = sum(bool(said and said[-1]) for said in successes) / len(scored)
    return statistics


# -- calling what users wrote ----------------------------------------------------------------------------------

_threads = DaemonThreads("midthought-environment")
_loop_lock = threading.Lock()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="midthought-environments", daemon=True).start()
    return loop


async def call(function: Callable[[], Any], seconds: float, what: str) -> Any:
    """Await what `function` gives, be it plain or `async def`, without blocking this loop.

    Coroutines run on a loop of their own, the same for all environments of the process, so that what they keep open
    (connections) outlives the loops of the caller. EpisodeError naming `what`: it raised, or took longer than `seconds`.
    """
    future = asyncio.wrap_future(_submit(function))
    try:
        await asyncio.wait({future}, timeout=seconds)
        return _outcome(future, seconds, what)
    finally:
        future.cancel()


def call_blocking(function: Callable[[], Any], seconds: float, what: str) -> Any:
    """`call` from synchronous code, inside a running loop or outside."""
    return _wait(_submit(function), seconds, what)


def _submit(function: Callable[[], Any]) -> concurrent.futures.Future[Any]:
    async def run() -> Any:
        try:
            value = function() if inspect.iscoroutinefunction(function) else await _threads.run(function)
            return await value if inspect.isawaitable(value) else value
        except (SystemExit, KeyboardInterrupt) as stop:  # would end the loop for everybody
            raise RuntimeError(f"{type(stop).__name__}: {stop}") from stop

    with _loop_lock:
        loop = _loop()
    return asyncio.run_coroutine_threadsafe(run(), loop)


def _wait(future: concurrent.futures.Future[Any], seconds: float, what: str) -> Any:
    try:
        concurrent.futures.wait({future}, timeout=seconds)
        return _outcome(future, seconds, what)
    finally:
        future.cancel()


def _outcome(future: asyncio.Future[Any] | concurrent.futures.Future[Any], seconds: float, what: str) -> Any:
    if not future.done():
        raise EpisodeError(
            f"{what} gave nothing within {seconds:g} seconds; make it quicker or raise environment.step_timeout_seconds"
        )
    if future.cancelled():
        raise EpisodeError(f"{what} was cancelled from inside")
    error = future.exception()
    if error is None or isinstance(error, EpisodeError):
        return future.result()
    raise EpisodeError(f"{what} raised {type(error).__name__}: {error}") from error
