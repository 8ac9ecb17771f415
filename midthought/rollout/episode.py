"""The rollout loop of every episode: sample, run the calls, insert the results into the context, continue, score.

Depends only on the interfaces of engines, call formats and tools. An error inside an episode is recorded
(StopReason.FAILED), not raised.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from midthought.config import InferenceConfig
from midthought.engines.engine import Engine, Sampling
from midthought.errors import EngineError
from midthought.rollout.openai_messages import result_messages
from midthought.rollout.resuming import Replay
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import Message
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.tools.call_formats.streaming import TokenWatch
from midthought.tools.definition import ToolEpisode
from midthought.tools.executor import EpisodeTools, ToolExecutor
from midthought.types import (
    Completion,
    Finish,
    ParsedAction,
    Reward,
    StopReason,
    Task,
    ToolCall,
    ToolEvent,
    Trajectory,
    Turn,
)
from midthought.types.turn import text_after_thought


class EpisodeEnvironment(Protocol):
    """Environment of one episode: replies to answers, and computes the reward.

    If it has an attribute `environment` (`EnvironmentEpisode`), stateful tools are opened with it. If it has a true
    `is_truncated` after its last reply, it ended the episode at a limit (`MAX_STEPS`). If it has an `async def close()`,
    that is awaited at the end of the episode, after the tools are closed; it must not raise. If it has an `async def play(parts,
    trajectory)`, that fills the trajectory and returns the stop reason, instead of `Episode`.
    """

    async def reply(self, trajectory: Trajectory) -> str | None:
        """Returns the reply of the environment or the user to the latest answer; None if the episode is over."""
        ...

    async def score(self, trajectory: Trajectory) -> Reward:
        """Returns the reward of an episode that has ended, for every `stop_reason` except FAILED."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeStart:
    """Start of one episode."""

    task: Task
    seed: int
    group: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutParts:
    """Components of an episode, shared by all concurrent episodes."""

    engine: Engine
    renderer: Renderer
    call_format: ToolCallFormat
    executor: ToolExecutor
    messages: Callable[[Task], Sequence[Mapping[str, str]]]
    """Returns the initial conversation (`role`, `content`) of a task."""
    environment: Callable[[Task], EpisodeEnvironment]
    """Creates the environment of one episode; a stateless one may be the same every time."""
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    """Limits of an episode, and its sampling options."""
    answers: Sampling | None = None
    """Sampling options of each answer; None: as `inference` says. `max_tokens` counts the sampled tokens of one answer."""
    record: Trajectory | None = None
    """Unfinished record of this episode, which is repeated before the engine and the tools continue (`Replay`)."""


async def run_episodes(
    parts: RolloutParts,
    starts: Sequence[EpisodeStart],
    *,
    on_finished: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Runs all episodes concurrently; hundreds are possible, because the engine batches all waiting requests. The caller limits
    their number: it is that of one batch.

    Returns the trajectories in the order of `starts`. `on_finished` is called when an episode ends. A prompt that cannot be
    rendered, or an `on_finished` that raises, ends all episodes; an error inside one episode ends only that one.
    """
    prompts = [parts.renderer.prompt(parts.messages(start.task)) for start in starts]
    numbers = range(len(starts))
    for number in numbers:
        parts.engine.open(number)

    async def run_one(number: int) -> Trajectory:
        start = starts[number]
        trajectory = Trajectory(start.task, prompts[number], seed=start.seed, group=start.group)
        await run_episode(parts, trajectory, number)
        if on_finished is not None:
            on_finished(trajectory)
        return trajectory

    running = [asyncio.ensure_future(run_one(number)) for number in numbers]
    try:
        return await asyncio.gather(*running)
    finally:
        for episode in running:
            if not episode.cancelling():  # a second cancellation would interrupt the closing of its tools
                episode.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for number in numbers:
            parts.engine.close(number)


async def run_episode(parts: RolloutParts, trajectory: Trajectory, number: int) -> None:
    """Runs one episode from its prompt to its reward. `number` identifies it in the engine. At the end it is closed there.

    An exception inside ends the episode as FAILED with the error's text and without a reward; cancellation is raised.
    """
    tools: EpisodeTools | None = None
    environment: EpisodeEnvironment | None = None
    try:
        environment = parts.environment(trajectory.task)
        if (play := getattr(environment, "play", None)) is not None:
            trajectory.stop_reason = await play(parts, trajectory)
        else:
            tools = open_tools(parts, trajectory, environment)
            trajectory.stop_reason = await Episode(parts, trajectory, number, tools).run(environment)
        parts.engine.close(number)
        trajectory.reward = await environment.score(trajectory)
    except asyncio.CancelledError:
        trajectory.stop_reason = StopReason.CANCELLED
        raise
    except Exception as error:
        trajectory.stop_reason = StopReason.FAILED
        trajectory.error = f"{type(error).__name__}: {error}"
    finally:
        parts.engine.close(number)
        if tools is not None:
            await tools.close()
        if (close := getattr(environment, "close", None)) is not None:
            await close()


def open_tools(parts: RolloutParts, trajectory: Trajectory, environment: EpisodeEnvironment) -> EpisodeTools:
    """Opens the stateful tools of an episode. Close them when it has its reward, has failed or was cancelled."""
    world = getattr(environment, "environment", None)
    return parts.executor.for_episode(ToolEpisode(task=trajectory.task, seed=trajectory.seed, environment=world))


class Episode:
    """A running episode. Call `take_turn`, then `run_calls` or `reply`, and so on; `run` does all of it.

    A turn is one answer of the policy. If the call format stops at calls, their results are inserted into the same turn.
    With other formats, a turn with calls ends, and `calls` contains them. A subclass may extend `begin_turn`, `sample`, `feed`
    and `run_tools`.
    """

    def __init__(
        self,
        parts: RolloutParts,
        trajectory: Trajectory,
        number: int,
        tools: EpisodeTools,
        *,
        in_thought: bool | None = None,
    ) -> None:
        """The caller closes `tools`. `in_thought`: whether the prompt ends within a thought; None: read from its last token."""
        self.trajectory = trajectory
        self.calls: list[ParsedAction] = []
        """Calls of the latest turn that were not run yet."""
        self._parts = parts
        self.number, self.tools = number, tools
        self._replay = None if parts.record is None else Replay(parts.record)
        self.answers = parts.answers
        """Sampling options of the next answer; None: as the settings say."""
        self._num_calls_before_reply = 0
        self._num_answered_calls = sum(len(m.get("tool_calls") or ()) for m in parts.messages(trajectory.task))
        self._answers: list[Message] = []
        """Conversation after the initial messages, without thoughts: a later segment starts with it."""
        self._first_action: ParsedAction | None = None
        self._first_call = ToolCall()
        self.begin_turn(in_thought)

    async def run(self, environment: EpisodeEnvironment) -> StopReason:
        """Runs turns until the episode ends. Returns the stop reason. Raises EngineError if its prompt leaves no room."""
        reason = None
        while reason is None:
            reason = await self.take_turn() or await self._go_on(environment)
        if not self.trajectory.turns:
            num = len(self.trajectory.token_ids)
            raise EngineError(
                f"the prompt has {num} tokens and fills the engine's context; shorten it or raise max_seq_len"
            )
        if reason in (StopReason.ANSWERED, StopReason.MAX_STEPS):
            self.trajectory.turns[-1].done = True
        return reason

    async def take_turn(self) -> StopReason | None:
        """Samples until the answer ends (returns None) or the token budget is spent (returns LENGTH)."""
        stops_at_call = self._parts.call_format.stops_at_call
        while (sampling := self._sampling()).max_tokens > 0:
            completion = await self.sample(sampling)
            self.trajectory.add_sampled(completion, temperature=sampling.temperature)
            self._num_written += len(completion.token_ids)
            has_ended = completion.finish is Finish.END
            calls = self._watch.take() if has_ended or stops_at_call else []
            if calls and not self._first_action:
                self._first_action = calls[0]
            if calls and stops_at_call:
                if not await self._run_in_text(calls):
                    break
            elif has_ended:
                self.calls = calls
                self._end_turn()
                return None
            elif not completion.token_ids:
                break
        self._end_turn()
        return StopReason.LENGTH

    async def run_calls(self) -> bool:
        """Runs the calls of the latest turn and appends their results to the conversation. Returns False if they do not fit."""
        calls = self.calls
        events = await self.run_tools(calls)
        if events is None:
            return False
        self.calls = []
        turn = self.trajectory.turns[-1]
        turn.tool_call = events[0].call
        call_format = self._parts.call_format
        turn.observation = "\n".join(call_format.render_results([event]) for event in events)
        messages = result_messages(call_format, calls, events, self._num_answered_calls)
        self._remember(turn, messages, calls)
        token_ids = self._following(messages)
        fits = self._fits(token_ids)
        self.trajectory.add_results(events, token_ids if fits else [])
        if fits:
            self.begin_turn()
        return fits

    def reply(self, words: str) -> bool:
        """Appends a chat turn of the user or the environment to the conversation. Returns False if it does not fit."""
        self.trajectory.turns[-1].observation = words
        messages: list[Message] = [{"role": "user", "content": words}]
        self._remember(self.trajectory.turns[-1], messages)
        if self._parts.inference.keep_thoughts:
            token_ids = self._following(messages)
            if not self._fits(token_ids):
                return False
            self.trajectory.add_reply(token_ids)
        else:
            first = self._parts.messages(self.trajectory.task)
            self.trajectory.begin_segment(self._parts.renderer.prompt([*first, *self._answers]))
        self._num_calls_before_reply = self.trajectory.num_calls
        self.begin_turn()
        return True

    async def _go_on(self, environment: EpisodeEnvironment) -> StopReason | None:
        """Runs the calls of a complete turn, or asks the environment for a reply. Returns None if another turn follows."""
        is_last = len(self.trajectory.turns) >= self._parts.inference.max_turns
        if self.calls:
            if is_last:
                return StopReason.MAX_TURNS
            return None if await self.run_calls() else StopReason.LENGTH
        words = await environment.reply(self.trajectory)
        if words is None:
            return StopReason.MAX_STEPS if getattr(environment, "is_truncated", False) else StopReason.ANSWERED
        if is_last:
            return StopReason.MAX_TURNS
        return None if self.reply(words) else StopReason.LENGTH

    def begin_turn(self, in_thought: bool | None = None) -> None:
        """Starts a turn after the tokens so far. `in_thought` None: read from the last token."""
        if in_thought is None:
            opening = self._parts.call_format.think_tags[0]
            in_thought = self._parts.renderer.opens_thought(self.trajectory.token_ids, opening)
        self.in_thought = in_thought
        """Whether the turn began within a thought."""
        self._watch = TokenWatch(self._parts.renderer, self._parts.call_format, in_thought=in_thought)
        self._first_action, self._first_call = None, ToolCall()
        self._begun_at, self._num_written = len(self.trajectory.token_ids), 0

    def _end_turn(self) -> None:
        """Records the turn, unless it is empty."""
        trajectory, renderer = self.trajectory, self._parts.renderer
        runs = trajectory.segments[-1].sampled_runs(self._begun_at)
        if not runs:
            return
        if runs[-1][-1] in renderer.eos_token_ids:
            runs[-1] = runs[-1][:-1]
        text = "\n".join(map(renderer.decode, runs))
        trajectory.end_turn(
            Turn(
                turn_number=len(trajectory.turns) + 1,
                model_output=text,
                answer=None if self.calls else self._answer(text),
                begins_in_thought=self.in_thought,
                think_tags=self._parts.call_format.think_tags,
                parsed_action=self._first_action,
                tool_call=self._first_call,
            )
        )

    def _answer(self, text: str) -> str | None:
        """Returns the answer in a turn's text as the chat template marks it, else the text after the thought."""
        call_format = self._parts.call_format
        if isinstance(call_format, NativeCallFormat) and call_format.syntax.around_answer[0]:
            return call_format.syntax.answer(text)
        return text_after_thought(text, in_thought=self.in_thought, tags=call_format.think_tags)

    def conversation(self, calls: Sequence[ParsedAction] = ()) -> list[Message]:
        """Returns the messages up to the latest turn, which made `calls`, without thoughts, as the chat template takes them."""
        before = [*self._parts.messages(self.trajectory.task), *self._answers]
        return [*before, self._said(self.trajectory.turns[-1], calls)]

    def _said(self, turn: Turn, calls: Sequence[ParsedAction]) -> Message:
        call_format = self._parts.call_format
        text = (
            turn.model_output.rpartition(call_format.think_tags[1])[2].strip() if turn.answer is None else turn.answer
        )
        if calls and isinstance(call_format, NativeCallFormat):
            return call_format.answer_message(text, calls, self._num_answered_calls)
        return {"role": "assistant", "content": text}

    def _remember(self, turn: Turn, messages: Sequence[Message], calls: Sequence[ParsedAction] = ()) -> None:
        self._answers += [self._said(turn, calls), *messages]
        self._num_answered_calls += len(calls)

    async def _run_in_text(self, calls: Sequence[ParsedAction]) -> bool:
        """Runs calls within a turn and inserts the results into its text. Returns False if they do not fit."""
        events = await self.run_tools(calls)
        if events is None:
            return False
        self._first_call = self._first_call or events[0].call
        token_ids = self._parts.renderer.foreign(self._parts.call_format.render_results(events))
        fits = self._fits(token_ids)
        self.trajectory.add_results(events, token_ids if fits else [])
        if fits:
            self._watch.resume()
        return fits

    def _sampling(self) -> Sampling:
        """Returns the options of the next sample; `max_tokens` is 0 or less if the budget is spent."""
        inference = self._parts.inference
        num_left = inference.max_tokens - self.trajectory.num_response
        how = self.answers
        if how is None:
            how = Sampling(max_tokens=num_left, temperature=inference.temperature, top_p=inference.top_p)
        else:
            num_left = min(num_left, how.max_tokens - self._num_written)
        num_left = min(num_left, inference.max_segment_length)
        return dataclasses.replace(how, max_tokens=num_left, seed=_segment_seed(self.trajectory))

    async def sample(self, sampling: Sampling) -> Completion:
        """Samples after the tokens so far, or repeats the record."""
        engine, trajectory = self._parts.engine, self.trajectory
        if self._replay is not None:
            recorded = self._replay.completion(trajectory.token_ids, sampling.max_tokens, self, engine.eos_token_ids)
            if recorded is not None:
                return recorded
        started = time.perf_counter()
        try:
            return await engine.sample(self.number, trajectory.token_ids, sampling, stopper=self)
        finally:
            trajectory.engine_seconds += time.perf_counter() - started

    def feed(self, token_id: int) -> bool:
        """Processes the next sampled token (`Stopper`). Returns True if a call ended inside it."""
        return self._watch.feed(token_id)

    async def run_tools(self, calls: Sequence[ParsedAction]) -> list[ToolEvent] | None:
        """Returns the results of calls, cut to `max_result_tokens`. None, from a subclass: the episode ends before them."""
        inference, trajectory = self._parts.inference, self.trajectory
        calls_left = inference.max_tool_calls_per_cot - (trajectory.num_calls - self._num_calls_before_reply)
        events = [] if self._replay is None else self._replay.events(len(calls))
        if not events:
            executor, started = self._parts.executor, time.perf_counter()
            try:
                events = await executor.run(calls, trajectory.task, calls_left=calls_left, tools=self.tools)
            finally:
                trajectory.tool_seconds += time.perf_counter() - started
        return [bounded(event, self._parts.renderer, inference.max_result_tokens) for event in events]

    def _fits(self, token_ids: Sequence[int]) -> bool:
        """Whether these tokens fit into the episode's budget."""
        return self.trajectory.num_response + len(token_ids) <= self._parts.inference.max_tokens

    def _following(self, messages: Sequence[Message]) -> list[int]:
        """Returns the tokens that the chat template writes between the end of the answer and the next answer."""
        said: list[Message] = []
        if isinstance(self._parts.call_format, NativeCallFormat):
            said = [*self._parts.messages(self.trajectory.task), *self._answers]
        return self._parts.renderer.following(messages, said[: -len(messages) or None], self.trajectory.token_ids[-1])


def _segment_seed(trajectory: Trajectory) -> int:
    """Returns the seed of the current segment. Sampling depends on (seed, position), and positions restart in a new segment."""
    number = len(trajectory.segments) - 1
    return (trajectory.seed ^ number * 0x9E3779B97F4A7C15) & (2**63 - 1) if number else trajectory.seed


def bounded(event: ToolEvent, renderer: Renderer, max_tokens: int) -> ToolEvent:
    """Returns the event with a result of at most `max_tokens` tokens."""
    words = renderer.truncate(event.call.result or "", max_tokens)
    if words == event.call.result:
        return event
    return dataclasses.replace(event, call=dataclasses.replace(event.call, result=words))
