"""Episodes of an agent: a program of the user that calls the policy over HTTP (`Trainer(agent=f)`).

What the policy sampled for it is the episode (`midthought.serve`). Does not depend on how an agent is written.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from midthought.config import ConfigStore, RecipeConfig
from midthought.config.references import require_installed
from midthought.env.reward_functions import WeightedReward
from midthought.errors import EngineError, EpisodeError, SettingsError
from midthought.rollout.episode import EpisodeEnvironment, RolloutParts
from midthought.serve.chat_policy import ChatPolicy
from midthought.tools.background_loop import BackgroundLoop
from midthought.tools.concurrency import DaemonThreads, settled
from midthought.trainer.tasks import DatasetTasks, TrainingTasks, make_reward
from midthought.types import Reward, StopReason, Task, Trajectory

if TYPE_CHECKING:
    from midthought.serve.sessions import Session

Agent = Callable[[Task, Any], Any]
"""`f(task, client)`, plain or `async`. Returns a number, a `Reward`, or None (`Trainer`)."""
PART = "agent"
"""Name of the reward's part that an agent returns, and of its entry in the `info` of an episode's last turn."""
MODEL = "policy"
"""Name of the model in requests; any other one is answered with an error."""
_CANCEL_SECONDS = 0.5
_HINT = "the agent made no request that was answered; its model needs client.base_url, client.api_key and client.model"
_NO_REWARD = "returns None, and there is no other reward: return a number or a Reward, or give the trainer rewards=[…]"
_EXCLUDED = {
    ("ray", "use_ray"): ("an agent runs in this process", "false"),
    ("inference", "deterministic"): ("when an agent sends its requests depends on time", "false"),
    ("training", "overlong_buffer_tokens"): ("inference.max_tokens limits each answer, not the episode", "0"),
}
"""Settings that exclude an agent, why, and their values with one."""
_log = logging.getLogger(__name__)
_threads, _loop = DaemonThreads("midthought-agent"), BackgroundLoop("midthought-agents")
"""Plain agents have a thread for each episode, coroutines share one event loop."""


class AgentTasks(DatasetTasks):
    """The tasks of a data set, each played by an agent with a session of its own in the gateway."""

    def __init__(
        self, agent: Agent, dataset: Any, reward: WeightedReward | None, config: ConfigStore, **options: Any
    ) -> None:
        """`options`: `validation` of `DatasetTasks`; `system_prompt` and `describes_tools` of the policy."""
        from midthought.serve.gateway import Gateway

        super().__init__(dataset, reward or WeightedReward({}), config, validation=options.pop("validation", None))
        self._said = options
        self.agent, self.gateway = agent, Gateway(MODEL)
        self.has_rewards = reward is not None
        self.settings = config.environment
        self._has_warned = False

    def longest_prompt(self, num_tokens: Callable[[Task], int]) -> None:
        """Returns None: the agent writes the prompts."""

    def episode(self, task: Task) -> AgentEpisode:
        return AgentEpisode(self)

    held_out_episode = episode

    def judge(self, task: Task) -> EpisodeEnvironment:
        """Returns the environment that gives the rewards of the trainer, an empty `Reward` without any."""
        return super().episode(task)

    def policy(self, parts: RolloutParts) -> ChatPolicy:
        """Returns what answers the agent."""
        assert isinstance(parts.inference.max_seq_len, int)
        return ChatPolicy(
            engine=parts.engine,
            renderer=parts.renderer,
            call_format=parts.call_format,
            executor=parts.executor,
            max_seq_len=parts.inference.max_seq_len,
            inference=parts.inference,
            **self._said,
        )

    def warn_of(self, overridden: Collection[str]) -> None:
        """Logs once that sampling options of the agent have no effect."""
        if overridden and not self._has_warned:
            self._has_warned = True
            names = ", ".join(sorted(overridden))
            _log.warning("the agent sets %s without effect: inference.temperature says how it is sampled", names)

    def statistics(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Returns, per episode: `agent/requests`, `agent/undelivered` (answers that no client received), `agent/errors` and
        `agent/errors/TYPE` (share of the episodes in which the agent raised); per request: `agent/overridden`,
        `agent/response_format`; `agent/continued` (share of the answers to conversations with earlier answers that continue their
        tokens exactly), `agent/required_missed` (share of the answers that lack a call that the client requires)."""
        total, errors = Counter[str](), Counter[str]()
        for info in (turn.info for each in trajectories for turn in each.turns[-1:] if turn.info):
            errors.update(filter(None, [info[PART]["error"]]))
            total.update({name: number for name, number in info[PART].items() if name != "error"})
        shares = {name: total[name] / len(trajectories) for name in ("requests", "undelivered")}
        shares |= {name: total[name] / max(total["requests"], 1) for name in ("overridden", "response_format")}
        for name, among in (("continued", "continuable"), ("required_missed", "required")):
            shares |= {name: total[name] / total[among]} if total[among] else {}
        shares |= {f"errors/{name}": number / len(trajectories) for name, number in errors.items()}
        shares["errors"] = errors.total() / len(trajectories)
        return {f"agent/{name}": share for name, share in shares.items()}

    def close(self) -> None:
        self.gateway.close()


class AgentEpisode:
    """The rollout loop's `EpisodeEnvironment` of one episode that an agent plays."""

    def __init__(self, tasks: AgentTasks) -> None:
        self._tasks = tasks
        self._value: Any = None
        """What the agent returned, or else the reward that was posted for the session."""
        self._error: BaseException | None = None
        self._rewards: list[float] = []
        """The rewards of the turns, if one was posted for an answer."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Returns None: only the agent replies."""
        return None

    async def play(self, parts: RolloutParts, trajectory: Trajectory) -> StopReason:
        """Runs the agent until it returns, and fills the trajectory with the answers that it received.

        Raises `EngineError` if the engine or the gateway failed meanwhile, `EpisodeError` if the agent received no answer, or was
        idle for too long.
        """
        loop = asyncio.get_running_loop()
        session = self._tasks.gateway.open_session(
            self._tasks.policy(parts),
            seed=trajectory.seed,
            start=lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop),
        )
        try:
            await self._run(session, trajectory.task)
        finally:
            await session.close()
            graph, with_dropped = session.answers.graph, self._tasks.settings.train_dropped_answers
            nodes = graph.fill(trajectory, with_dropped=with_dropped)
            self._tasks.warn_of(session.overridden)
            if nodes:
                error = None if self._error is None else type(self._error).__name__
                trajectory.turns[-1].info = {PART: {**session.counts, "error": error}}
        if session.failure:
            raise EngineError(session.failure)
        if self._error is not None:
            trajectory.error = f"the agent raised {type(self._error).__name__}: {self._error}"
        if not nodes:
            raise EpisodeError(_HINT + (f" ({trajectory.error})" if trajectory.error else ""))
        self._value = session.reward if self._value is None else self._value
        self._rewards = [turn.reward for turn in trajectory.turns if any(node.reward is not None for node in nodes)]
        return StopReason.LENGTH if nodes[-1].finish == "length" else StopReason.ANSWERED

    async def _run(self, session: Session, task: Task) -> None:
        """Calls the agent, and keeps what it returns or raises. Raises `EpisodeError` after `agent_idle_seconds` without a
        request."""
        seconds = self._tasks.settings.agent_idle_seconds
        call = functools.partial(self._tasks.agent, task, session.client)
        running = asyncio.ensure_future(settled(call, _threads, _loop))
        try:
            while not running.done():
                if (left := seconds - session.idle_seconds) <= 0:
                    raise EpisodeError(
                        f"the agent made no request and did not return for {seconds:g} seconds; raise "
                        "environment.agent_idle_seconds if it needs more time between requests"
                    )
                await asyncio.wait([running], timeout=left)
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait([running], timeout=_CANCEL_SECONDS)
        self._error = asyncio.CancelledError("cancelled itself") if running.cancelled() else running.exception()
        self._value = None if self._error is not None else running.result()

    async def score(self, trajectory: Trajectory) -> Reward:
        """Returns `agent_error_reward` if the agent raised; else what it returned, the reward of its session, or that of the
        trainer's functions, with the rewards of single answers. Raises `EpisodeError` if there is none of these."""
        if self._error is not None:
            return Reward(parts={PART: self._tasks.settings.agent_error_reward})
        if self._value is not None:
            reward = await WeightedReward({PART: (1.0, lambda trajectory: self._value)}).score(trajectory)
        elif self._tasks.has_rewards or self._rewards:
            reward = await self._tasks.judge(trajectory.task).score(trajectory)
        else:
            raise EpisodeError(f"the agent {_NO_REWARD}")
        turns = itertools.zip_longest(reward.turns, self._rewards, fillvalue=0.0)
        return replace(reward, turns=tuple(map(sum, turns)))


def agent_tasks(
    agent: Agent,
    config: RecipeConfig,
    environment: Any,
    dataset: Any,
    validation: Any,
    reward_fn: Callable[..., Any] | None,
    rewards: Sequence[Any],
    **said: Any,
) -> AgentTasks:
    """Creates the tasks from the arguments of a trainer with an agent. Raises `SettingsError` for arguments and settings that
    exclude one, `MissingExtraError` without the extra `serve`. `said`: as in `AgentTasks`."""
    if environment is not None or dataset is None or isinstance(dataset, TrainingTasks):
        raise SettingsError(
            "agent= plays the tasks of a data set: give dataset= with rows or a file, and no environment"
        )
    try:
        signature = inspect.signature(agent)
        signature.bind(None, None)
    except (TypeError, ValueError):
        raise SettingsError(
            f"agent={agent!r:.80}: give a function f(task, client) that takes exactly these two arguments, plain or async"
        ) from None
    if isinstance(agent, type):
        raise SettingsError(f"agent={agent!r:.80} is a class; give a function, or an object that can be called")
    if (reward := make_reward(reward_fn, rewards)) is None and signature.return_annotation in (None, "None"):
        raise SettingsError(f"agent={getattr(agent, '__name__', agent)!s:.80} {_NO_REWARD}")
    assert isinstance(config, ConfigStore)
    for (section, name), (why, off) in _EXCLUDED.items():
        if value := getattr(getattr(config, section), name):
            shown = "true" if value is True else f"{value:g}"
            raise SettingsError(f"{section}.{name}={shown} with agent=: {why}; set it to {off}")
    require_installed("serve", "fastapi", "uvicorn")
    return AgentTasks(agent, dataset, reward, config, validation=validation, **said)
