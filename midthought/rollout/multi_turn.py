"""Manual conversations and episodes with an environment, on a public engine, with or without tools.

All turns use the rollout loop: sampled text is never tokenized again, and every conversation produces the record that
training reads.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.config import InferenceConfig
from midthought.engines.engine import Sampling
from midthought.engines.generation import SAMPLING_OPTIONS, BaseInferenceEngine
from midthought.env.environment import BaseEnvironment
from midthought.env.reasoning import THINK_CLOSE
from midthought.errors import EngineError, SettingsError, near_names
from midthought.rollout.conversation import (
    Conversation,
    ConversationEnvironment,
    NoCalls,
    close_all,
    first_message,
    play_all,
)
from midthought.rollout.episode import RolloutParts
from midthought.tools.executor import ToolExecutor
from midthought.tools.multi_turn import MultiTurnManager, tool_metrics
from midthought.tools.registry import ToolRegistry
from midthought.types import SpanKind, StopReason, Task, Trajectory


class MultiTurnInferenceEngine:
    """Runs conversations turn by turn (`start_conversation`, `step`), or whole episodes (`run_episode`), with one policy.

    `**sampling` is always `max_tokens` (of one answer, without inserted results), `temperature`, `top_p` and `seed`, as in
    `engine.generate`; the engine's values are the defaults. To train on a record, sample it at `temperature=1.0, top_p=1.0`.

    Args:
        engine: samples the answers; the caller shuts it down.
        max_turns: maximum answers of the policy in one conversation. Replies are limited by the environment (`max_steps`).
        system_prompt: first message, followed by the tool descriptions if tools are enabled. If the chat template takes no
            system message, both are put at the start of the first user message.
        tool_manager: provides the parser, the tools and their deadlines; it follows the turns of `step` and `run_episode`.
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
        self.trajectories: list[Trajectory] = []
        """Records of the latest conversation or episodes."""
        tools = tool_manager if enable_tools else None
        self._tools = tools
        self._call_format = (tools.action_parser if tools else NoCalls()).call_format
        self._executor = tools.executor if tools else ToolExecutor(ToolRegistry())
        about_tools = tools.get_system_prompt() if tools else ""
        self._system_prompt = "\n\n".join(filter(None, (system_prompt, about_tools)))
        self._inference = InferenceConfig(
            max_tokens=sys.maxsize,
            max_tool_calls_per_cot=max_tool_calls_per_cot,
            max_result_tokens=max_result_tokens,
            keep_thoughts=keep_thoughts,
        )
        self._may_warn = keep_thoughts
        self._conversation: Conversation | None = None

    @property
    def trajectory(self) -> Trajectory:
        """Record of the latest conversation or episode. Raises EngineError before the first.

        The record of a manual conversation has no `stop_reason` until it ends, and no `reward` unless you set one.
        """
        if not self.trajectories:
            raise EngineError("there is no conversation yet; call start_conversation(prompt) first")
        return self.trajectories[-1]

    def format_conversation(self) -> str:
        """Returns the conversation as the engine sees it, decoded from its token ids, including control tokens."""
        return self.engine.renderer.decode(self.trajectory.token_ids)

    # -- manual conversation -----------------------------------------------------------------------------------

    def start_conversation(self, prompt: str) -> None:
        """Starts a new conversation with this user message."""
        _check_text(prompt)
        self._close_conversation()
        started = self._new(prompt, ConversationEnvironment(None), self.engine.sampling(), self.max_turns)
        self._conversation, self.trajectories = started, [started.trajectory]
        self._look_back(started.trajectory)

    @property
    def awaits_policy(self) -> bool:
        """Whether to call `step()` without a message: the policy has not answered the prompt or the results of its calls
        yet."""
        return self._conversation is not None and self._conversation.awaits_policy

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
        if user_message is not None and conversation.awaits_policy:
            raise EngineError("the policy has the prompt or results to answer; call step() without a message first")
        if user_message is None and not conversation.awaits_policy:
            raise EngineError("the policy has answered; give step a user_message, or start another conversation")
        how = self._how(sampling)
        outcome = self.engine.run(self._take_turn(conversation, user_message, how, environment_obs))
        self._look_back(trajectory)
        return outcome

    async def _take_turn(
        self, conversation: Conversation, message: str | None, how: Sampling, environment_obs: str | None
    ) -> dict[str, Any]:
        # Never opened in the engine: deterministic waves would wait for a conversation that waits for its user.
        trajectory, episode = conversation.trajectory, conversation.episode
        num_turns, num_events = len(trajectory.turns), len(trajectory.tool_events)
        episode.answers, trajectory.seed = how, how.seed
        stop: StopReason | None = StopReason.CANCELLED
        try:
            if message is not None:
                episode.reply(message)
            reason = await episode.take_turn()
            conversation.awaits_policy = bool(episode.calls)
            if episode.calls:
                await episode.run_calls()
            if reason is None and len(trajectory.turns) >= self.max_turns:
                reason = StopReason.MAX_TURNS if conversation.awaits_policy else StopReason.ANSWERED
                trajectory.turns[-1].done = reason is StopReason.ANSWERED
            if environment_obs is not None and reason is None and not conversation.awaits_policy:
                conversation.awaits_policy = episode.reply(environment_obs)
            stop = reason
        except Exception as error:
            stop, trajectory.error = StopReason.FAILED, f"{type(error).__name__}: {error}"
            raise
        finally:
            if stop is not None:
                trajectory.stop_reason, self._conversation = stop, None
                await close_all(self.engine.core, [conversation])
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
        """Closes the conversation in the engine, if it is still open."""
        left, self._conversation = self._conversation, None
        if left is not None:
            self.engine.run(close_all(self.engine.core, [left]))

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
        `initial_prompt` contains already. The environment itself is used, not a copy, so tools may step it, too; the rewards
        of such steps are credited to the end. It is reset first, unless it was just reset. Without an environment the
        episode is the answer to `initial_prompt`, including all its calls.

        Returns:
            `num_turns`, `total_reward`, `turns` (a list of `Turn`), `tools` (see `tool_metrics`), `stop_reason` and `error`.

        Raises:
            EngineError: the episode failed, or its prompt leaves no room; if the environment raised an error, it is the cause.
            SettingsError: neither an environment nor None; an invalid limit or sampling option.
        """
        (episode,) = self._play([environment], [initial_prompt], max_turns, sampling)
        self._look_back(episode.trajectory)
        if episode.trajectory.stop_reason is StopReason.FAILED:
            raise EngineError(f"the episode broke: {episode.trajectory.error}") from episode.environment.error
        return _summary(episode.trajectory)

    def run_episodes(
        self,
        environments: Sequence[BaseEnvironment | None],
        initial_prompts: Sequence[str],
        max_turns: int | None = None,
        **sampling: Any,
    ) -> list[dict[str, Any]]:
        """Runs many episodes concurrently, each with its own environment; `trajectories` are their records, in order.

        Like `run_episode`, but an episode that fails does not raise: its `total_reward` is None, and `error` says why.
        """
        episodes = self._play(environments, initial_prompts, max_turns, sampling)
        return [_summary(episode.trajectory) for episode in episodes]

    def _play(
        self,
        environments: Sequence[BaseEnvironment | None],
        prompts: Sequence[str],
        max_turns: int | None,
        sampling: Mapping[str, Any],
    ) -> list[Conversation]:
        _check_environments(environments, prompts)
        max_turns = self.max_turns if max_turns is None else _positive(max_turns)
        hows = [self._how(sampling, row) for row in range(len(prompts))]
        self._close_conversation()
        openings = [
            first_message(environment, prompt) for environment, prompt in zip(environments, prompts, strict=True)
        ]
        episodes = [
            self._new(opening, ConversationEnvironment(environment), how, max_turns)
            for environment, opening, how in zip(environments, openings, hows, strict=True)
        ]
        self.trajectories = [episode.trajectory for episode in episodes]
        self.engine.run(play_all(self.engine.core, self._executor, episodes))
        for trajectory in self.trajectories:
            self._warn_of_thoughts(trajectory)
        return episodes

    # -- both --------------------------------------------------------------------------------------------------

    def _new(self, opening: str, environment: ConversationEnvironment, how: Sampling, max_turns: int) -> Conversation:
        number = self.engine.next_episode()
        messages = self._messages(opening)
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
        task = Task(task_id=f"conversation-{number}", prompt=opening, answer="")
        trajectory = Trajectory(task, self.engine.renderer.prompt(messages), seed=how.seed)
        return Conversation(parts, trajectory, number, environment)

    def _messages(self, opening: str) -> list[dict[str, str]]:
        user = {"role": "user", "content": opening}
        if not self._system_prompt:
            return [user]
        messages = [{"role": "system", "content": self._system_prompt}, user]
        try:
            self.engine.renderer.prompt(messages)
        except SettingsError:  # the chat template takes no system message
            return [{"role": "user", "content": f"{self._system_prompt}\n\n{opening}"}]
        return messages

    def _how(self, sampling: Mapping[str, Any], number: int = 0) -> Sampling:
        if unknown := sorted(sampling.keys() - set(SAMPLING_OPTIONS)):
            raise SettingsError(f"unknown sampling option {unknown[0]!r}. {near_names(unknown[0], SAMPLING_OPTIONS)}")
        return self.engine.sampling(number, **sampling)

    def _look_back(self, trajectory: Trajectory) -> None:
        if self._tools is not None:
            self._tools.follow(trajectory.turns, trajectory.tool_events)
        self._warn_of_thoughts(trajectory)

    def _warn_of_thoughts(self, trajectory: Trajectory) -> None:
        """Warns once that serving would differ, if a thought precedes a user message."""
        was_replied_to = any(span.kind is SpanKind.REPLY for span in trajectory.spans)
        thought_before = any(THINK_CLOSE in turn.model_output for turn in trajectory.turns[:-1])
        if self._may_warn and was_replied_to and thought_before and not self.engine.renderer.only_appends:
            self._may_warn = False
            warnings.warn(
                "this chat template drops the thoughts of earlier answers; here they stay in the context, so that it is "
                "exactly what was sampled. keep_thoughts=False leaves them out, as serving does",
                stacklevel=4,
            )


def _check_text(prompt: str) -> None:
    if not isinstance(prompt, str):
        raise SettingsError(f"a conversation begins with what the user says, a text; got {prompt!r:.80}")


def _check_environments(environments: Sequence[BaseEnvironment | None], prompts: Sequence[str]) -> None:
    if len(environments) != len(prompts):
        raise SettingsError(f"{len(environments)} environments for {len(prompts)} prompts; give as many of each")
    for prompt in prompts:
        _check_text(prompt)
    for environment in environments:
        if not isinstance(environment, BaseEnvironment | None):
            raise SettingsError(f"environment={environment!r:.80}: give an instance of a BaseEnvironment, or None")
    played = [id(environment) for environment in environments if environment is not None]
    if len(set(played)) < len(played):
        raise SettingsError("the same environment stands twice in the list; every episode needs an instance of its own")


def _positive(max_turns: int) -> int:
    if max_turns < 1:
        raise SettingsError(f"max_turns={max_turns}: an episode has at least one turn")
    return max_turns


def _summary(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "num_turns": len(trajectory.turns),
        "total_reward": None if trajectory.reward is None else trajectory.reward.total,
        "turns": list(trajectory.turns),
        "tools": tool_metrics(trajectory.tool_events),
        "stop_reason": trajectory.stop_reason,
        "error": trajectory.error,
    }
