"""Manual conversations and episodes with an environment, on a public engine, with or without tools.

All turns use the rollout loop: sampled text is never tokenized again, and every conversation produces the record that
training reads.
"""

from __future__ import annotations

import sys
from typing import Any

from midthought.config import InferenceConfig
from midthought.engines.engine import Sampling
from midthought.engines.generation import BaseInferenceEngine
from midthought.env.environment import BaseEnvironment
from midthought.env.episode import EnvironmentEpisode, QuestionEnvironment, call_blocking
from midthought.errors import EngineError, SettingsError
from midthought.rollout.episode import Episode, RolloutParts, open_tools, run_episode
from midthought.tools.call_formats import ActionParser
from midthought.tools.executor import ToolExecutor
from midthought.tools.multi_turn import MultiTurnManager, tool_metrics
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, StopReason, Task, Trajectory
from midthought.types.task import with_system


class MultiTurnInferenceEngine:
    """Runs conversations turn by turn (`start_conversation`, `step`), or whole episodes (`run_episode`), with one policy.

    `**sampling` is always `max_tokens` (of one answer, without inserted results), `temperature`, `top_p` and `seed`, as in
    `engine.generate`; the engine's values are the defaults. To train on a record, sample it at `temperature=1.0, top_p=1.0`.

    Args:
        engine: samples the answers; the caller shuts it down.
        max_turns: maximum answers of the policy in one conversation. Replies are limited by the environment (`max_steps`).
        system_prompt: first message, followed by the tool descriptions if tools are enabled. If the chat template takes no
            system message, both are put at the start of the first user message.
        tool_manager: provides the parser, the tools and their deadlines; it follows the turns of `step` and `run_episode`. Its
            environment is that of the tools, except in an episode with an environment.
        enable_tools: whether calls are parsed and run.
        max_tool_calls_per_cot: maximum calls between two user messages; further ones are answered with an error message.
        max_result_tokens: maximum tokens of a result; longer ones are cut.
        keep_thoughts: False: drop earlier thoughts after a user message, as many chat templates do when serving; the record
            then starts a new segment.

    Raises:
        SettingsError: tools are enabled without a manager, or `max_turns` is below 1.
    """

    def __init__(
        self,
        engine: BaseInferenceEngine,
        max_turns: int = 5,
        system_prompt: str | None = None,
        tool_manager: MultiTurnManager | None = None,
        enable_tools: bool = False,
        *,
        max_tool_calls_per_cot: int = 5,
        max_result_tokens: int = 256,
        keep_thoughts: bool = True,
    ) -> None:
        if enable_tools and not isinstance(tool_manager, MultiTurnManager):
            raise SettingsError(
                "enable_tools=True needs the tools: tool_manager=MultiTurnManager(registry, parser), "
                f"got tool_manager={tool_manager!r:.80}"
            )
        self.engine = engine
        self.max_turns = _positive(max_turns)
        self.tool_manager = tool_manager
        self._trajectory: Trajectory | None = None
        tools = tool_manager if enable_tools else None
        self._tools = tools
        self._call_format = (tools.action_parser if tools else _NoCalls()).call_format
        self._executor = tools.executor if tools else ToolExecutor(ToolRegistry())
        self._system_prompts = (system_prompt or "", tools.get_system_prompt() if tools else "")
        self._inference = InferenceConfig(
            max_tokens=sys.maxsize,
            max_tool_calls_per_cot=max_tool_calls_per_cot,
            max_result_tokens=max_result_tokens,
            keep_thoughts=keep_thoughts,
        )
        self._conversation: Episode | None = None
        """A manual conversation that has not ended."""
        self._awaits_policy = False

    @property
    def trajectory(self) -> Trajectory:
        """Record of the latest conversation or episode. Raises EngineError before the first.

        The record of a manual conversation has no `stop_reason` until it ends, and no `reward` unless you set one.
        """
        if self._trajectory is None:
            raise EngineError("there is no conversation yet; call start_conversation(prompt) first")
        return self._trajectory

    def format_conversation(self) -> str:
        """Returns the conversation as the engine sees it, decoded from its token ids, including control tokens."""
        return self.engine.renderer.decode(self.trajectory.token_ids)

    # -- manual conversation -----------------------------------------------------------------------------------

    def start_conversation(self, prompt: str) -> None:
        """Starts a new conversation with this user message."""
        opening = _first_message(None, prompt)
        self._close_conversation()
        parts, trajectory, number = self._new(opening, None, self.engine.sampling(), self.max_turns)
        tools = open_tools(parts, trajectory, parts.environment(trajectory.task))
        self._conversation, self._awaits_policy = Episode(parts, trajectory, number, tools), True
        self._follow(trajectory)

    @property
    def awaits_policy(self) -> bool:
        """Whether to call `step()` without a message: the policy has not answered the prompt or the results of its calls
        yet."""
        return self._conversation is not None and self._awaits_policy

    def step(
        self, user_message: str | None = None, *, environment_obs: str | None = None, **sampling: Any
    ) -> dict[str, Any]:
        """Runs one turn of the policy. Its calls are run, and their results are appended to the conversation.

        Args:
            user_message: user message before the turn; None if `awaits_policy`.
            environment_obs: reply to this turn, unless the policy has results to answer; the next `step` needs no message then.
                It is the turn's observation if no tool ran.
            sampling: see the class.

        Returns:
            `response`: text of the policy. `tool_call`: the first call that was run, falsy if there was none. `tool_result`:
                the results of all calls as the policy reads them, None without calls.

        Raises:
            EngineError: no conversation was started, or it has ended (after `max_turns`, or an answer that was cut at
                `max_tokens`); a message is missing or not allowed now; the engine failed.
            SettingsError: an unknown sampling option, or an invalid value.
        """
        trajectory, conversation = self.trajectory, self._conversation
        if conversation is None:
            raise EngineError(
                f"the conversation has ended after {len(trajectory.turns)} turns ({trajectory.stop_reason}); call "
                "start_conversation(prompt) for another, with a larger max_turns or max_tokens if that was too soon"
            )
        if user_message is not None and self._awaits_policy:
            raise EngineError("the policy has the prompt or results to answer; call step() without a message first")
        if user_message is None and not self._awaits_policy:
            raise EngineError("the policy has answered; give step a user_message, or start another conversation")
        how = self.engine.sampling(**sampling)
        outcome = self.engine.run(self._take_turn(conversation, user_message, how, environment_obs))
        self._follow(trajectory)
        return outcome

    async def _take_turn(
        self, episode: Episode, message: str | None, how: Sampling, environment_obs: str | None
    ) -> dict[str, Any]:
        # Never opened in the engine: deterministic waves would wait for a conversation that waits for its user.
        trajectory = episode.trajectory
        num_turns, num_events = len(trajectory.turns), len(trajectory.tool_events)
        episode.answers, trajectory.seed = how, how.seed
        stop: StopReason | None = StopReason.CANCELLED
        try:
            if message is not None:
                episode.reply(message)
            reason = await episode.take_turn()
            self._awaits_policy = bool(episode.calls)
            if episode.calls:
                await episode.run_calls()
            if reason is None and len(trajectory.turns) >= self.max_turns:
                reason = StopReason.MAX_TURNS if self._awaits_policy else StopReason.ANSWERED
                trajectory.turns[-1].done = reason is StopReason.ANSWERED
            if environment_obs is not None and reason is None and not self._awaits_policy:
                self._awaits_policy = episode.reply(environment_obs)
            stop = reason
        except Exception as error:
            stop, trajectory.error = StopReason.FAILED, f"{type(error).__name__}: {error}"
            raise
        finally:
            if stop is not None:
                trajectory.stop_reason, self._conversation = stop, None
                await self._close(episode)
        if len(trajectory.turns) == num_turns:
            raise EngineError(
                f"the conversation's {len(trajectory.token_ids)} tokens fill the engine's context; begin another, "
                "or make the engine with room for longer sequences"
            )
        results = [event.call.result or "" for event in trajectory.tool_events[num_events:]]
        turn, result = trajectory.turns[-1], "\n".join(results) if results else None
        turn.observation = environment_obs if result is None else result
        return {"response": turn.model_output, "tool_call": turn.tool_call, "tool_result": result}

    def _close_conversation(self) -> None:
        left, self._conversation = self._conversation, None
        if left is not None:
            self.engine.run(self._close(left))

    async def _close(self, conversation: Episode) -> None:
        self.engine.core.close(conversation.number)
        await conversation.tools.close()

    # -- episodes ----------------------------------------------------------------------------------------------

    def run_episode(
        self,
        environment: BaseEnvironment | None,
        initial_prompt: str,
        max_turns: int | None = None,
        **sampling: Any,
    ) -> dict[str, Any]:
        """Runs one episode to its end; `trajectory` is its record, with the rewards.

        The prompt is the environment's `get_prompt_prefix()`, `initial_prompt` and the first observation, without parts that
        `initial_prompt` already has on lines of their own. The environment itself is used, not a copy, so tools may step it,
        too; the rewards of such steps are credited to the end. It is reset first, unless it was just reset. Without an
        environment the episode is the answer to `initial_prompt`, including all its calls.

        Returns:
            `num_turns`, `total_reward`, `turns` (a list of `Turn`), `tools` (see `tool_metrics`) and `stop_reason`.

        Raises:
            EngineError: the episode failed, or its prompt leaves no room; if the environment raised an error, it is the cause.
            SettingsError: neither an environment nor None; an invalid limit or sampling option.
        """
        if not isinstance(environment, BaseEnvironment | None):
            raise SettingsError(f"environment={environment!r:.80}: give an instance of a BaseEnvironment, or None")
        limit = self.max_turns if max_turns is None else _positive(max_turns)
        how = self.engine.sampling(**sampling)
        opening = _first_message(environment, initial_prompt)
        self._close_conversation()
        played = None if environment is None else _PlayedEnvironment(environment)
        parts, trajectory, number = self._new(opening, played, how, limit)
        self._trajectory = trajectory
        self.engine.run(_play(parts, trajectory, number))
        self._follow(trajectory)
        if trajectory.stop_reason is StopReason.FAILED:
            raise EngineError(f"the episode broke: {trajectory.error}") from getattr(played, "error", None)
        return {
            "num_turns": len(trajectory.turns),
            "total_reward": None if trajectory.reward is None else trajectory.reward.total,
            "turns": list(trajectory.turns),
            "tools": tool_metrics(trajectory.tool_events),
            "stop_reason": trajectory.stop_reason,
        }

    # -- both --------------------------------------------------------------------------------------------------

    def _new(
        self, opening: str, played: _PlayedEnvironment | None, how: Sampling, max_turns: int
    ) -> tuple[RolloutParts, Trajectory, int]:
        environment = played or QuestionEnvironment(environment=getattr(self._tools, "environment", None))
        messages = with_system([{"role": "user", "content": opening}], *self._system_prompts)
        parts = RolloutParts(
            engine=self.engine.core,
            renderer=self.engine.renderer,
            call_format=self._call_format,
            executor=self._executor,
            messages=lambda task: messages,
            environment=lambda task: environment,
            inference=self._inference.changed(max_turns=max_turns),
            answers=how,
        )
        number = self.engine.next_episode()
        task = Task(task_id=f"conversation-{number}", prompt=opening, answer="")
        return parts, Trajectory(task, self.engine.renderer.prompt(messages), seed=how.seed), number

    def _follow(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        if self._tools is not None:
            self._tools.follow(trajectory.turns, trajectory.tool_events)


class _PlayedEnvironment(EnvironmentEpisode):
    """Keeps the error that the environment raised. The environment stays its caller's: it is not closed."""

    error: Exception | None = None

    async def reply(self, trajectory: Trajectory) -> str | None:
        try:
            return await super().reply(trajectory)
        except Exception as error:
            self.error = error
            raise

    async def close(self) -> None:
        return None


class _NoCalls(ActionParser):
    """Parser for conversations without tools: no text is a call."""

    def parse_all(self, text: str) -> list[ParsedAction]:
        return []


async def _play(parts: RolloutParts, trajectory: Trajectory, number: int) -> None:
    parts.engine.open(number)
    await run_episode(parts, trajectory, number)


def _first_message(environment: BaseEnvironment | None, initial_prompt: str) -> str:
    """Returns the first user message. Afterwards the environment is in its state after `reset`."""
    if not isinstance(initial_prompt, str):
        raise SettingsError(f"a conversation begins with what the user says, a text; got {initial_prompt!r:.80}")
    if environment is None:
        return initial_prompt
    progress = environment._episode_so_far
    observation = progress.observation
    if not progress.has_started or progress.num_steps:
        seconds = environment.config.step_timeout_seconds
        observation = call_blocking(environment.reset, seconds, f"{type(environment).__name__}.reset")
    prefix, lines = environment.get_prompt_prefix(), f"\n{initial_prompt.strip()}\n"
    before, after = ("" if f"\n{part.strip()}\n" in lines else part for part in (prefix, observation))
    return "\n".join(filter(None, [before, initial_prompt, after]))


def _positive(max_turns: int) -> int:
    if max_turns < 1:
        raise SettingsError(f"max_turns={max_turns}: an episode has at least one turn")
    return max_turns
