"""Answers conversations in OpenAI's form: the loop of an episode, with the text passed on as it is sampled.

The policy's own tools run here; a call of a tool that the client declared ends the answer. Does not depend on HTTP.
"""

from __future__ import annotations

import itertools
import json
import secrets
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from midthought.engines.engine import Sampling
from midthought.env.episode import QuestionEnvironment
from midthought.rollout.episode import Episode, RolloutParts, open_tools
from midthought.serve.answer_stream import AnswerStream, OnPiece, Piece, PieceKind
from midthought.serve.chat_messages import digest
from midthought.serve.chat_policy import ChatHistory, ChatPolicy, ChatPrompt, prompt_of, require_room
from midthought.tokenization.chat_template import Message
from midthought.tools.definition import ToolDefinition
from midthought.tools.executor_state import EpisodeTools
from midthought.types import Completion, Finish, ParsedAction, StopReason, Task, ToolEvent, Trajectory

Finished = Literal["stop", "length", "tool_calls"]


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
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Sampling` that the client has set."""
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
    finish: Finished

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
        asked = next((each["content"] for each in reversed(request.messages) if each["role"] == "user"), "")
        trajectory = Trajectory(Task(task_id="chat", prompt=asked, answer=""), prompt.token_ids, seed=request.seed)
        number, parts = next(self._numbers), _parts(policy, request, prompt)
        tools = open_tools(parts, trajectory, QuestionEnvironment())
        stream = AnswerStream(policy.renderer, policy.call_format, on_piece, stop=request.stop)
        policy.engine.open(number)
        try:
            episode = _ChatEpisode(stream, request, parts, trajectory, number, tools, in_thought=prompt.in_thought)
            reason = await episode.run(QuestionEnvironment())
        finally:
            policy.engine.close(number)
            await tools.close()
        if episode.held is not None:
            calls = self._keep_turn(episode, request, prompt, *episode.held)
            return ChatAnswer(trajectory=trajectory, pieces=stream.pieces, calls=calls, finish="tool_calls")
        if not stream.is_stopped:
            stream.end_turn(has_calls=bool(episode.calls))
        is_whole = reason is StopReason.ANSWERED
        finish: Finished = "stop" if is_whole or stream.is_stopped else "length"
        answer = ChatAnswer(trajectory=trajectory, pieces=stream.pieces, finish=finish)
        if is_whole:
            said: Message = {"role": "assistant", "content": answer.content}
            kept = ChatPrompt(token_ids=array("i", trajectory.token_ids), messages=episode.conversation())
            self._history.keep(digest([*request.messages, said]), kept)
        return answer

    def _keep_turn(
        self,
        episode: _ChatEpisode,
        request: ChatRequest,
        prompt: ChatPrompt,
        calls: Sequence[ParsedAction],
        events: Sequence[ToolEvent | None],
    ) -> list[ClientCall]:
        """Keeps the turn until the client sends the results of its calls, which are returned."""
        is_chat_turn = not self.policy.call_format.stops_at_call
        of_client = [
            ClientCall(
                id=f"call_{secrets.token_hex(12)}",
                name=str(call.tool_name),
                arguments=json.dumps(dict(call.parameters), ensure_ascii=False),
            )
            for call, event in zip(calls, events, strict=True)
            if event is None
        ]
        turn = ChatPrompt(
            token_ids=array("i", episode.trajectory.token_ids),
            messages=episode.conversation(calls) if is_chat_turn else prompt.messages,
            in_thought=None if is_chat_turn else episode.ends_in_thought,
            before=digest(request.messages),
            calls=calls,
            events=events,
            ids=[call.id for call in of_client],
        )
        self._history.keep(tuple(sorted(turn.ids)), turn)
        return of_client


def _parts(policy: ChatPolicy, request: ChatRequest, prompt: ChatPrompt) -> RolloutParts:
    """Returns the components of an answer's episode, with the request's limits and sampling options."""
    room = policy.max_seq_len - len(prompt.token_ids)
    inference = policy.inference.changed(max_tokens=min(request.max_tokens or policy.inference.max_tokens, room))
    own: dict[str, Any] = {"temperature": inference.temperature, "top_p": inference.top_p}
    return RolloutParts(
        engine=policy.engine,
        renderer=policy.renderer,
        call_format=policy.call_format,
        executor=policy.executor,
        messages=lambda task: prompt.messages,
        environment=lambda task: QuestionEnvironment(),
        inference=inference,
        answers=Sampling(max_tokens=inference.max_tokens, **{**own, **request.sampling}),
    )


class _ChatEpisode(Episode):
    """An episode that passes on what is sampled and what tools return, and ends before calls of tools of the client."""

    def __init__(
        self,
        stream: AnswerStream,
        request: ChatRequest,
        parts: RolloutParts,
        trajectory: Trajectory,
        number: int,
        tools: EpisodeTools,
        *,
        in_thought: bool | None,
    ) -> None:
        self.held: tuple[Sequence[ParsedAction], Sequence[ToolEvent | None]] | None = None
        """Calls of a turn that waits for the client, and their events: None for the client's calls."""
        self._stream = stream
        self._client_names = {tool.name for tool in request.tools}
        super().__init__(parts, trajectory, number, tools, in_thought=in_thought)

    @property
    def ends_in_thought(self) -> bool:
        """Whether a thought is open."""
        return self._stream.in_thought

    def begin_turn(self, in_thought: bool | None = None) -> None:
        super().begin_turn(in_thought)
        self._stream.begin_turn(in_thought=self.in_thought)

    async def sample(self, sampling: Sampling) -> Completion:
        if self._stream.is_stopped:
            version = self._parts.engine.policy_version
            return Completion(token_ids=(), sampled_logprobs=(), finish=Finish.LENGTH, policy_version=version)
        return await super().sample(sampling)

    def feed(self, token_id: int) -> bool:
        ends = super().feed(token_id)
        return self._stream.feed(token_id) or ends

    async def run_tools(self, calls: Sequence[ParsedAction]) -> list[ToolEvent] | None:
        """Runs the calls of the policy's own tools, and passes on the results as the policy reads them."""
        call_format = self._parts.call_format
        is_ours = [call.tool_name not in self._client_names or not call.success for call in calls]
        if all(is_ours) and not call_format.stops_at_call:
            self._stream.end_turn(has_calls=True)
        ours = [call for call, is_our in zip(calls, is_ours, strict=True) if is_our]
        events = await super().run_tools(ours)
        assert events is not None
        if not all(is_ours):
            done = iter(events)
            self.held = calls, [next(done) if is_our else None for is_our in is_ours]
            return None
        if call_format.stops_at_call:
            self._stream.resume(call_format.render_results(events))
        else:
            for event in events:
                self._stream.add_result(call_format.render_results([event]))
        return events
