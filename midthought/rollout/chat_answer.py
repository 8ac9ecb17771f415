"""Answers conversations in OpenAI's form: the loop of an episode, with the text passed on as it is sampled.

The policy's own tools run here; a call of a tool that the client declared ends the answer. Does not depend on HTTP.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import secrets
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, cast

from midthought.engines.engine import Engine, Sampling, Stopper
from midthought.env.question import NullEnvironment
from midthought.rollout.answer_stream import AnswerStream, Piece, PieceKind
from midthought.rollout.chat_messages import digest
from midthought.rollout.chat_policy import (
    ChatHistory,
    ChatPolicy,
    ChatPrompt,
    HeldTurn,
    prompt_of,
    require_room,
)
from midthought.rollout.episode import Episode, RolloutParts, bounded, open_tools
from midthought.tokenization.chat_template import Message
from midthought.tools.definition import ToolDefinition
from midthought.tools.episode_tools import EpisodeTools
from midthought.tools.executor import ToolExecutor
from midthought.types import Completion, Finish, ParsedAction, StopReason, Task, ToolEvent, Trajectory

OnPiece = Callable[[Piece], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """A conversation to answer. None: the policy's own setting."""

    messages: Sequence[Message]
    """As `checked_messages` returns them."""
    tools: Sequence[ToolDefinition] = ()
    """The client's tools. One with the name of a tool of the policy replaces it."""
    seed: int = 0
    max_tokens: int | None = None
    """Maximum tokens after the prompt, results of the policy's own tools included."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientCall:
    """A call of a tool of the client."""

    id: str
    name: str
    arguments: str
    """JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatAnswer:
    """An answer with its record."""

    trajectory: Trajectory
    """The tokens; its prompt is the whole conversation before the answer."""
    pieces: Sequence[Piece]
    calls: Sequence[ClientCall] = field(default_factory=list)
    finish: Literal["stop", "length", "tool_calls"]

    @property
    def content(self) -> str:
        """The text outside of thoughts."""
        return joined(self.pieces, PieceKind.ANSWER)

    @property
    def thoughts(self) -> str:
        """The thoughts, with the calls of the policy's own tools and their results."""
        return joined(self.pieces, PieceKind.THOUGHT, PieceKind.CALL, PieceKind.RESULT)


def joined(pieces: Sequence[Piece], *kinds: PieceKind) -> str:
    """Returns the text of the pieces of these kinds; each part begins on a line of its own."""
    text = ""
    for piece in pieces:
        if piece.kind in kinds:
            text += ("\n" if text and piece.is_new else "") + piece.text
    return text


class ChatAnswers:
    """Answers any number of conversations at the same time. Use it on one event loop."""

    def __init__(self, policy: ChatPolicy, history: ChatHistory | None = None) -> None:
        self.policy = policy
        self._history = history or ChatHistory()
        self._numbers = itertools.count()

    async def answer(self, request: ChatRequest, on_piece: OnPiece = lambda piece: None) -> ChatAnswer:
        """Returns the answer; `on_piece` gets its text as it arrives. Raises as `prompt_of`, and `EngineError`."""
        require_room(self.policy, request.messages, request.tools)
        policy = self.policy.with_client_tools(request.tools)
        prompt = prompt_of(policy, request.messages, request.tools, self._history)
        answer = _Answer(policy, request, prompt, on_piece)
        stop = await answer.run(next(self._numbers))
        if isinstance(stop, _ClientCalls):
            return self._held(answer, stop)
        is_whole = stop is StopReason.ANSWERED
        found = answer.finished("stop" if is_whole or answer.stream.is_stopped else "length")
        if is_whole:
            said: Message = {"role": "assistant", "content": found.content}
            kept = ChatPrompt(token_ids=array("i", found.trajectory.token_ids), messages=answer.conversation())
            self._history.keep(digest([*request.messages, said]), kept)
        return found

    def _held(self, answer: _Answer, stop: _ClientCalls) -> ChatAnswer:
        """Keeps the turn until the client sends the results of its calls."""
        call_format = answer.policy.call_format
        messages = answer.prompt.messages if call_format.stops_at_call else answer.conversation(stop.calls)
        in_thought = answer.stream.in_thought if call_format.stops_at_call else None
        calls = [
            ClientCall(
                id=f"call_{secrets.token_hex(12)}",
                name=str(call.tool_name),
                arguments=json.dumps(dict(call.parameters), ensure_ascii=False),
            )
            for call, event in zip(stop.calls, stop.events, strict=True)
            if event is None
        ]
        prompt = ChatPrompt(token_ids=array("i", answer.trajectory.token_ids), messages=messages, in_thought=in_thought)
        ids = [call.id for call in calls]
        held = HeldTurn(
            prompt=prompt, before=digest(answer.request.messages), calls=stop.calls, events=stop.events, ids=ids
        )
        self._history.keep(tuple(sorted(ids)), held)
        return answer.finished("tool_calls", calls)


class _ClientCalls(Exception):
    """The policy called a tool of the client. `events`: of the calls that were run here, None for the others."""

    def __init__(self, calls: Sequence[ParsedAction], events: Sequence[ToolEvent | None]) -> None:
        super().__init__("a tool of the client was called")
        self.calls, self.events = calls, events


class _Answer:
    """One answer. Between the episode and its engine and tools, it passes on what is sampled and what tools return."""

    def __init__(self, policy: ChatPolicy, request: ChatRequest, prompt: ChatPrompt, on_piece: OnPiece) -> None:
        self.policy, self.request, self.prompt = policy, request, prompt
        self.pieces: list[Piece] = []
        in_thought = prompt.in_thought
        if in_thought is None:
            in_thought = policy.renderer.opens_thought(prompt.token_ids, policy.call_format.think_tags[0])

        def emit(piece: Piece) -> None:
            self.pieces.append(piece)
            on_piece(piece)

        self.stream = AnswerStream(policy.renderer, policy.call_format, emit, in_thought=in_thought, stop=request.stop)
        asked = next((each["content"] for each in reversed(request.messages) if each["role"] == "user"), "")
        task = Task(task_id="chat", prompt=asked, answer="")
        self.trajectory = Trajectory(task, prompt.token_ids, seed=request.seed)
        self._in_thought = in_thought
        self.conversation: Callable[..., list[Message]] = lambda calls=(): []
        """`Episode.conversation`."""
        self._client_names = {tool.name for tool in request.tools}
        self._turn_has_ended = False

    async def run(self, number: int) -> StopReason | _ClientCalls:
        """Runs the episode to its end, or to a call of a tool of the client."""
        given = {"temperature": self.request.temperature, "top_p": self.request.top_p}
        room = self.policy.max_seq_len - len(self.prompt.token_ids)
        inference = self.policy.inference.changed(
            max_tokens=min(self.request.max_tokens or self.policy.inference.max_tokens, room),
            **{name: value for name, value in given.items() if value is not None},
        )
        parts = RolloutParts(
            engine=cast(Engine, _WatchedEngine(self)),
            renderer=self.policy.renderer,
            call_format=self.policy.call_format,
            executor=cast(ToolExecutor, SimpleNamespace(registry=self.policy.executor.registry, run=self.run_calls)),
            messages=lambda task: self.prompt.messages,
            environment=lambda task: NullEnvironment(),
            inference=inference,
        )
        tools = open_tools(
            dataclasses.replace(parts, executor=self.policy.executor), self.trajectory, NullEnvironment()
        )
        self.policy.engine.open(number)
        try:
            episode = Episode(parts, self.trajectory, number, tools, in_thought=self._in_thought)
            self.conversation = episode.conversation
            reason = await episode.run(NullEnvironment())
            if not self.stream.is_stopped:
                self.stream.end_turn(has_calls=bool(episode.calls))
            return reason
        except _ClientCalls as stop:
            return stop
        finally:
            self.policy.engine.close(number)
            await tools.close()

    def finished(self, finish: Literal["stop", "length", "tool_calls"], calls: Sequence[ClientCall] = ()) -> ChatAnswer:
        return ChatAnswer(trajectory=self.trajectory, pieces=self.pieces, calls=calls, finish=finish)

    # -- between the episode and its engine and tools ------------------------------------------------------------

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, stopper: Stopper | None
    ) -> Completion:
        engine, request = self.policy.engine, self.request
        if self.stream.is_stopped:
            version = engine.policy_version
            return Completion(token_ids=(), sampled_logprobs=(), finish=Finish.LENGTH, policy_version=version)
        if self._turn_has_ended:
            self._turn_has_ended = False
            self.stream.begin_turn(
                in_thought=self.policy.renderer.opens_thought(token_ids, self.policy.call_format.think_tags[0])
            )
        sampling = dataclasses.replace(
            sampling, top_k=request.top_k, min_p=request.min_p, repetition_penalty=request.repetition_penalty
        )
        return await engine.sample(episode, token_ids, sampling, stopper=_Both(stopper, self.stream))

    async def run_calls(
        self, calls: Sequence[ParsedAction], task: Task, *, calls_left: int | None, tools: EpisodeTools | None
    ) -> list[ToolEvent]:
        """Runs the calls of the policy's own tools, and passes on the results as the policy reads them."""
        is_ours = [call.tool_name not in self._client_names or not call.success for call in calls]
        stops_at_call = self.policy.call_format.stops_at_call
        if all(is_ours) and not stops_at_call:
            self.stream.end_turn(has_calls=True)
        ours = [call for call, is_our in zip(calls, is_ours, strict=True) if is_our]
        events = await self.policy.executor.run(ours, task, calls_left=calls_left, tools=tools)
        if not all(is_ours):
            done = iter(events)
            raise _ClientCalls(calls, [next(done) if is_our else None for is_our in is_ours])
        events = [bounded(event, self.policy.renderer, self.policy.inference.max_result_tokens) for event in events]
        call_format = self.policy.call_format
        if call_format.stops_at_call:
            self.stream.resume(call_format.render_results(events))
            return events
        self._turn_has_ended = True
        for event in events:
            self.stream.add_result(call_format.render_results([event]))
        return events


class _Both:
    """Stopper: the episode's, and the stream of the answer."""

    def __init__(self, stopper: Stopper | None, stream: AnswerStream) -> None:
        self._stopper, self._stream = stopper, stream

    def feed(self, token_id: int) -> bool:
        ends = self._stopper is not None and self._stopper.feed(token_id)
        return self._stream.feed(token_id) or ends


class _WatchedEngine:
    """The policy's engine, for one answer. Everything but sampling is the engine's own."""

    def __init__(self, answer: _Answer) -> None:
        self._answer, self._engine = answer, answer.policy.engine

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        return await self._answer.sample(episode, token_ids, sampling, stopper)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
