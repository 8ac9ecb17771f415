"""The one loop that drives every episode: sample, run the calls, put the results into the context, go on, judge.

Knows engines, notations and tools by their contracts only. A broken episode is data (StopReason.FAILED), not a crash.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from midthought.errors import SettingsError
from midthought.inference.engine import Engine, Sampling
from midthought.text import Renderer
from midthought.tools.notations import Notation
from midthought.tools.schedule import Toolbox
from midthought.types import Finish, ParsedAction, Reward, StopReason, Task, ToolEvent, Trajectory


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
    """Answers that the policy may give; a reply that comes after the last one ends the episode instead."""
    temperature: float = 1.0
    top_p: float = 1.0


class EpisodeEnvironment(Protocol):
    """The other side of one episode: what it says to an answer, and what the episode was worth."""

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
    notation: Notation
    toolbox: Toolbox
    messages: Callable[[Task], Sequence[Mapping[str, str]]]
    """The conversation (`role`, `content`) that a task begins with."""
    environment: Callable[[Task], EpisodeEnvironment]
    """Makes the environment of one episode; a stateless one may be the same every time."""
    settings: RolloutSettings = RolloutSettings()


class TokenWatch:
    """The stopper of one episode: decodes its sampled tokens, piece by piece, for the notation's scanner."""

    def __init__(self, renderer: Renderer, notation: Notation, *, in_thought: bool) -> None:
        self._renderer = renderer
        self._scanner = notation.scanner(in_thought=in_thought)
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
        return await asyncio.gather(*running)
    finally:
        for episode in running:
            episode.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for number in numbers:
            parts.engine.close(number)


async def run_episode(parts: RolloutParts, trajectory: Trajectory, number: int) -> None:
    """Drive one episode from its prompt to its reward. `number` names it to the engine; its slot is given back.

    What raises inside ends the episode as FAILED with the error's text and without a reward; cancelling goes through.
    """
    try:
        environment = parts.environment(trajectory.task)
        trajectory.stop_reason = await _continue_to_end(parts, environment, trajectory, number)
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


async def _continue_to_end(
    parts: RolloutParts, environment: EpisodeEnvironment, trajectory: Trajectory, number: int
) -> StopReason:
    settings = parts.settings
    in_thought = parts.renderer.opens_thought(trajectory.token_ids)
    watch = TokenWatch(parts.renderer, parts.notation, in_thought=in_thought)
    num_turns, num_calls_before_turn = 1, 0
    while (num_left := settings.max_tokens - trajectory.num_response) > 0:
        sampling = Sampling(
            max_tokens=min(settings.max_segment_length, num_left),
            temperature=settings.temperature,
            top_p=settings.top_p,
            seed=trajectory.seed,
        )
        completion = await parts.engine.sample(number, trajectory.token_ids, sampling, stopper=watch)
        trajectory.add_sampled(completion)
        if calls := watch.take():
            calls_left = settings.max_tool_calls_per_cot - (trajectory.num_calls - num_calls_before_turn)
            events = await parts.toolbox.run(calls, trajectory.task, calls_left=calls_left)
            if not _add_results(parts, trajectory, events):
                return StopReason.LENGTH
            watch.resume()
        elif completion.finish is Finish.END:
            reply = await environment.reply(trajectory)
            if reply is None:
                return StopReason.ANSWERED
            if num_turns >= settings.max_turns:
                return StopReason.MAX_TURNS
            if not _add_reply(parts, trajectory, reply):
                return StopReason.LENGTH
            in_thought = parts.renderer.opens_thought(trajectory.token_ids)
            watch = TokenWatch(parts.renderer, parts.notation, in_thought=in_thought)
            num_turns, num_calls_before_turn = num_turns + 1, trajectory.num_calls
        elif not completion.token_ids:
            return StopReason.LENGTH
    return StopReason.LENGTH


def _add_results(parts: RolloutParts, trajectory: Trajectory, events: Sequence[ToolEvent]) -> bool:
    """Put the results into the context. False where they do not fit: then the events are recorded without any tokens."""
    events = [_bounded(event, parts) for event in events]
    token_ids = parts.renderer.foreign(parts.notation.render_results(events))
    fits = trajectory.num_response + len(token_ids) <= parts.settings.max_tokens
    trajectory.add_results(events, token_ids if fits else [])
    return fits


def _bounded(event: ToolEvent, parts: RolloutParts) -> ToolEvent:
    words = parts.renderer.truncate(event.call.result or "", parts.settings.max_result_tokens)
    if words == event.call.result:
        return event
    return dataclasses.replace(event, call=dataclasses.replace(event.call, result=words))


def _add_reply(parts: RolloutParts, trajectory: Trajectory, reply: str) -> bool:
    """Put a chat turn into the context. False where it does not fit."""
    token_ids = _reply_ids(parts.renderer, reply)
    if trajectory.num_response + len(token_ids) > parts.settings.max_tokens:
        return False
    trajectory.add_reply(token_ids)
    return True


def _reply_ids(renderer: Renderer, reply: str) -> list[int]:
    """What the chat template writes between an answer's end-of-sequence token and the next answer.

    Found as the difference of two short conversations, so that the episode's own tokens are never encoded again.
    """
    spoken = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    before = renderer.prompt(spoken, add_generation_prompt=False)
    after = renderer.prompt([*spoken, {"role": "user", "content": reply}])
    if after[: len(before)] != before:
        raise SettingsError(
            "the chat template rewrites earlier turns when a turn is added; it cannot carry chat replies"
        )
    ends = [index for index, token_id in enumerate(before) if token_id in renderer.eos_token_ids]
    return after[ends[-1] + 1 :] if ends else after[len(before) :]
