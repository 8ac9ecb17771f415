"""The one loop that drives every episode: sample, run the calls, put the results into the context, go on, judge.

Knows engines, call formats and tools by their contracts only. A broken episode is data (StopReason.FAILED), not a crash.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from midthought.config import InferenceConfig
from midthought.engines.engine import Engine, Sampling
from midthought.env.reasoning import THINK_CLOSE
from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.definition import ToolEpisode
from midthought.tools.episode_tools import EpisodeTools
from midthought.tools.executor import ToolExecutor
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutSettings:
    """How far an episode may go, and how its tokens are drawn."""

    max_tokens: int = 512
    """Most tokens after the prompt: what the policy writes and what it reads (results, replies)."""
    max_segment_length: int = 256
    """Most tokens of one call of `engine.sample`. An episode with budget left simply goes on; its cache stays."""
    max_tool_calls_per_cot: int = 5
    """Calls that are run between two chat turns; further ones are answered with "no calls left"."""
    max_result_tokens: int = 256
    """Most tokens of one result's words; longer ones are cut, and the record holds what the model read."""
    max_turns: int = 5
    """Turns (answers) that the policy may take; a call or reply that comes after the last one ends the episode instead."""
    keep_thoughts: bool = True
    """After a reply, go on from exactly what was sampled. False: as templates that drop earlier thoughts serve it, the
    conversation without them begins a new segment."""
    temperature: float = 1.0
    top_p: float = 1.0

    @classmethod
    def from_config(cls, inference: InferenceConfig) -> RolloutSettings:
        """What the settings' `inference` section says of episodes."""
        return cls(
            max_tokens=inference.max_tokens,
            max_segment_length=inference.max_segment_length,
            max_tool_calls_per_cot=inference.max_tool_calls_per_cot,
            max_result_tokens=inference.max_result_tokens,
            max_turns=inference.max_turns,
            keep_thoughts=inference.keep_thoughts,
            temperature=inference.temperature,
            top_p=inference.top_p,
        )


class EpisodeEnvironment(Protocol):
    """The other side of one episode: what it says to an answer, and what the episode was worth.

    If it has an attribute `environment` (`EnvironmentEpisode`), stateful tools are opened with it.
    """

    async def reply(self, trajectory: Trajectory) -> str | None:
        """What the environment or the user says to the answer that just ended; None where the episode is over."""
        ...

    async def score(self, trajectory: Trajectory) -> Reward:
        """The reward of an episode that has ended, for whatever `stop_reason` but FAILED."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeStart:
    """What one episode begins with."""

    task: Task
    seed: int
    group: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutParts:
    """Everything an episode needs from outside, shared by all that run side by side."""

    engine: Engine
    renderer: Renderer
    call_format: ToolCallFormat
    executor: ToolExecutor
    messages: Callable[[Task], Sequence[Mapping[str, str]]]
    """The conversation (`role`, `content`) that a task begins with."""
    environment: Callable[[Task], EpisodeEnvironment]
    """Makes the environment of one episode; a stateless one may be the same every time."""
    settings: RolloutSettings = RolloutSettings()


class TokenWatch:
    """The stopper of one episode: decodes its sampled tokens, piece by piece, for the call format's scanner."""

    def __init__(self, renderer: Renderer, call_format: ToolCallFormat, *, in_thought: bool) -> None:
        self._renderer = renderer
        self._scanner = call_format.scanner(in_thought=in_thought)
        self._stream = renderer.decode_stream()

    def feed(self, token_id: int) -> bool:
        """Take the next sampled token; True where a call ended inside it."""
        piece = self._stream.step(token_id)
        return bool(piece) and self._scanner.feed(piece)

    def take(self) -> list[ParsedAction]:
        """The calls that ended since the last `take`."""
        return self._scanner.take()

    def resume(self) -> None:
        """Foreign text now stands in the context: an unfinished call or character before it is void."""
        self._scanner.resume()
        self._stream = self._renderer.decode_stream()


async def run_episodes(
    parts: RolloutParts,
    starts: Sequence[EpisodeStart],
    *,
    on_finished: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Run all episodes side by side; hundreds are fine, the engine batches whatever is ready.

    Gives the trajectories in the order of `starts`. `on_finished` is called as each one ends. A prompt that cannot be
    rendered, or an `on_finished` that raises, ends the whole; whatever breaks inside one episode ends that one only.
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
        with parts.executor.rollout():
            return await asyncio.gather(*running)
    finally:
        for episode in running:
            if not episode.cancelling():  # a second request would interrupt what closes its tools
                episode.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for number in numbers:
            parts.engine.close(number)


async def run_episode(parts: RolloutParts, trajectory: Trajectory, number: int) -> None:
    """Drive one episode from its prompt to its reward. `number` names it to the engine; its slot is given back.

    What raises inside ends the episode as FAILED with the error's text and without a reward; cancelling goes through.
    """
    tools: EpisodeTools | None = None
    try:
        environment = parts.environment(trajectory.task)
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


def open_tools(parts: RolloutParts, trajectory: Trajectory, environment: EpisodeEnvironment) -> EpisodeTools:
    """The stateful tools of an episode; close them when it has its reward, has failed or was cancelled."""
    world = getattr(environment, "environment", None)
    return parts.executor.for_episode(ToolEpisode(task=trajectory.task, seed=trajectory.seed, environment=world))


class Episode:
    """One episode on its way, turn by turn: `take_turn`, then `run_calls` or `reply`, and so on. `run` does them all.

    A turn is one answer of the policy. A call format that stops at calls has its results written into the same turn; with
    any other, a turn that asks for tools ends, and `calls` holds what it asked for.
    """

    def __init__(self, parts: RolloutParts, trajectory: Trajectory, number: int, tools: EpisodeTools) -> None:
        """`tools` stay the caller's, who closes them."""
        self.trajectory = trajectory
        self.calls: list[ParsedAction] = []
        """Calls of the turn that just ended, still to be run."""
        self._parts = parts
        self._number = number
        self._tools = tools
        self._num_calls_before_reply = 0
        self._answers: list[Mapping[str, str]] = []
        """The conversation after the first messages, thoughts left out: what a later segment begins with."""
        self._first_action: ParsedAction | None = None
        self._first_call = ToolCall()
        self._begin_turn()

    async def run(self, environment: EpisodeEnvironment) -> StopReason:
        """Turn after turn until the episode ends, and why it did."""
        reason = None
        while reason is None:
            reason = await self.take_turn() or await self._go_on(environment)
        if self.trajectory.turns and reason is StopReason.ANSWERED:
            self.trajectory.turns[-1].done = True
        return reason

    async def take_turn(self) -> StopReason | None:
        """Sample until the answer ends (None) or the budget of tokens is spent (LENGTH)."""
        parts, trajectory, settings = self._parts, self.trajectory, self._parts.settings
        while (num_left := settings.max_tokens - trajectory.num_response) > 0:
            sampling = Sampling(
                max_tokens=min(settings.max_segment_length, num_left),
                temperature=settings.temperature,
                top_p=settings.top_p,
                seed=_segment_seed(trajectory),
            )
            completion = await self._sample(sampling)
            trajectory.add_sampled(completion, temperature=sampling.temperature)
            has_ended = completion.finish is Finish.END
            calls = self._watch.take() if has_ended or parts.call_format.stops_at_call else []
            if calls and not self._first_action:
                self._first_action = calls[0]
            if calls and parts.call_format.stops_at_call:
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
        """Run the calls of the turn that ended and put their results into the conversation; False where they do not fit."""
        events = await self._events(self.calls)
        self.calls = []
        turn = self.trajectory.turns[-1]
        turn.tool_call = events[0].call
        results = [self._parts.call_format.render_results([event]) for event in events]
        turn.observation = "\n".join(results)
        messages = [{"role": "tool", "content": result} for result in results]
        self._remember(turn, messages)
        token_ids = self._following(messages)
        fits = self._fits(token_ids)
        self.trajectory.add_results(events, token_ids if fits else [])
        if fits:
            self._begin_turn()
        return fits

    def reply(self, words: str) -> bool:
        """Put a chat turn of the user or the environment into the conversation; False where it does not fit."""
        self.trajectory.turns[-1].observation = words
        messages = [{"role": "user", "content": words}]
        self._remember(self.trajectory.turns[-1], messages)
        if self._parts.settings.keep_thoughts:
            token_ids = self._following(messages)
            if not self._fits(token_ids):
                return False
            self.trajectory.add_reply(token_ids)
        else:
            first = self._parts.messages(self.trajectory.task)
            self.trajectory.begin_segment(self._parts.renderer.prompt([*first, *self._answers]))
        self._num_calls_before_reply = self.trajectory.num_calls
        self._begin_turn()
        return True

    async def _go_on(self, environment: EpisodeEnvironment) -> StopReason | None:
        """After a complete turn: its calls are run, or the environment is asked. None where another turn follows."""
        is_last = len(self.trajectory.turns) >= self._parts.settings.max_turns
        if self.calls:
            if is_last:
                return StopReason.MAX_TURNS
            return None if await self.run_calls() else StopReason.LENGTH
        words = await environment.reply(self.trajectory)
        if words is None:
            return StopReason.ANSWERED
        if is_last:
            return StopReason.MAX_TURNS
        return None if self.reply(words) else StopReason.LENGTH

    def _begin_turn(self) -> None:
        self._in_thought = self._parts.renderer.opens_thought(self.trajectory.token_ids)
        self._watch = TokenWatch(self._parts.renderer, self._parts.call_format, in_thought=self._in_thought)
        self._first_action, self._first_call = None, ToolCall()
        self._begun_at = len(self.trajectory.token_ids)

    def _end_turn(self) -> None:
        """Record the turn, unless nothing was written in it."""
        trajectory, renderer = self.trajectory, self._parts.renderer
        runs = trajectory.segments[-1].sampled_runs(self._begun_at)
        if not runs:
            return
        if runs[-1][-1] in renderer.eos_token_ids:
            runs[-1] = runs[-1][:-1]
        trajectory.end_turn(
            Turn(
                turn_number=len(trajectory.turns),
                model_output="\n".join(map(renderer.decode, runs)),
                begins_in_thought=self._in_thought,
                parsed_action=self._first_action,
                tool_call=self._first_call,
            )
        )

    def _remember(self, turn: Turn, messages: Sequence[Mapping[str, str]]) -> None:
        answer = turn.model_output.rpartition(THINK_CLOSE)[2].strip()
        self._answers += [{"role": "assistant", "content": answer}, *messages]

    async def _run_in_text(self, calls: Sequence[ParsedAction]) -> bool:
        """Run calls in mid-turn and write the results into the running text; False where they do not fit."""
        events = await self._events(calls)
        self._first_call = self._first_call or events[0].call
        token_ids = self._parts.renderer.foreign(self._parts.call_format.render_results(events))
        fits = self._fits(token_ids)
        self.trajectory.add_results(events, token_ids if fits else [])
        if fits:
            self._watch.resume()
        return fits

    async def _sample(self, sampling: Sampling) -> Completion:
        trajectory = self.trajectory
        begun = time.perf_counter()
        try:
            return await self._parts.engine.sample(self._number, trajectory.token_ids, sampling, stopper=self._watch)
        finally:
            trajectory.engine_seconds += time.perf_counter() - begun

    async def _events(self, calls: Sequence[ParsedAction]) -> list[ToolEvent]:
        num_run = self.trajectory.num_calls - self._num_calls_before_reply
        calls_left = self._parts.settings.max_tool_calls_per_cot - num_run
        begun = time.perf_counter()
        try:
            events = await self._parts.executor.run(
                calls, self.trajectory.task, calls_left=calls_left, tools=self._tools
            )
        finally:
            self.trajectory.tool_seconds += time.perf_counter() - begun
        return [_bounded(event, self._parts) for event in events]

    def _fits(self, token_ids: Sequence[int]) -> bool:
        """Whether these tokens stay within the episode's budget."""
        return self.trajectory.num_response + len(token_ids) <= self._parts.settings.max_tokens

    def _following(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """What the chat template writes between the answer's end and the next answer."""
        return self._parts.renderer.following(messages)


def _segment_seed(trajectory: Trajectory) -> int:
    """Draws are made from (seed, position); the positions of a later segment begin anew, so its seed is another."""
    number = len(trajectory.segments) - 1
    return (trajectory.seed ^ number * 0x9E3779B97F4A7C15) & (2**63 - 1) if number else trajectory.seed


def _bounded(event: ToolEvent, parts: RolloutParts) -> ToolEvent:
    words = parts.renderer.truncate(event.call.result or "", parts.settings.max_result_tokens)
    if words == event.call.result:
        return event
    return dataclasses.replace(event, call=dataclasses.replace(event.call, result=words))
