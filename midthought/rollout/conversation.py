"""One conversation on a public engine: its environment, and how it is opened, played and closed."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Sequence

from midthought.engines.engine import Engine
from midthought.env.environment import BaseEnvironment
from midthought.env.episode import EnvironmentEpisode, call_blocking
from midthought.rollout.episode import Episode, RolloutParts, open_tools, run_episode
from midthought.tools.episode_tools import EpisodeTools
from midthought.tools.executor import ToolExecutor
from midthought.tools.parsers import ActionParser
from midthought.types import ParsedAction, Reward, Trajectory


@dataclasses.dataclass
class Conversation:
    """Components of one conversation or episode."""

    parts: RolloutParts
    trajectory: Trajectory
    number: int
    environment: ConversationEnvironment
    awaits_policy: bool = True

    @functools.cached_property
    def episode(self) -> Episode:
        """The rollout loop's `Episode`, for a manual conversation."""
        return Episode(self.parts, self.trajectory, self.number, self.tools)

    @functools.cached_property
    def tools(self) -> EpisodeTools:
        return open_tools(self.parts, self.trajectory, self.environment)


class ConversationEnvironment:
    """Environment of one episode; keeps the error that it raised. Without an environment there are no replies."""

    def __init__(self, environment: BaseEnvironment | None) -> None:
        self.error: Exception | None = None
        self.environment = environment
        self._episode = None if environment is None else EnvironmentEpisode(environment)

    @property
    def is_truncated(self) -> bool:
        """Whether the environment ended its episode at a limit."""
        return self._episode is not None and self._episode.is_truncated

    async def reply(self, trajectory: Trajectory) -> str | None:
        if self._episode is None:
            return None
        try:
            return await self._episode.reply(trajectory)
        except Exception as error:
            self.error = error
            raise

    async def score(self, trajectory: Trajectory) -> Reward:
        if self._episode is None:
            return Reward(turns=tuple(turn.reward for turn in trajectory.turns))
        return await self._episode.score(trajectory)


class NoCalls(ActionParser):
    """Parser for conversations without tools: no text is a call."""

    def parse_all(self, text: str) -> list[ParsedAction]:
        return []


async def play_all(core: Engine, executor: ToolExecutor, episodes: Sequence[Conversation]) -> None:
    """Runs whole episodes concurrently, then closes them."""
    for episode in episodes:
        core.open(episode.number)
    try:
        with executor.rollout():
            await asyncio.gather(*(run_episode(each.parts, each.trajectory, each.number) for each in episodes))
    finally:
        await close_all(core, episodes)


async def close_all(core: Engine, conversations: Sequence[Conversation]) -> None:
    """Closes conversations in the engine, and their tools."""
    for conversation in conversations:
        core.close(conversation.number)
    await asyncio.gather(*(conversation.tools.close() for conversation in conversations))


def first_message(environment: BaseEnvironment | None, initial_prompt: str) -> str:
    """Returns the first user message. Afterwards the environment is in its state after `reset`."""
    if environment is None:
        return initial_prompt
    progress = environment._episode_so_far
    observation = progress.observation
    if not progress.has_started or progress.num_steps:
        seconds = environment.config.step_timeout_seconds
        observation = call_blocking(environment.reset, seconds, f"{type(environment).__name__}.reset")
    prefix = environment.get_prompt_prefix()
    words = ["" if prefix in initial_prompt else prefix, initial_prompt]
    return "\n".join(filter(None, [*words, "" if observation in initial_prompt else observation]))
