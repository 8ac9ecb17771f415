"""Answers conversations in OpenAI's form: the loop of an episode, with the text passed on as it is sampled.

The policy's own tools run here; a call of a tool that the client declared ends the answer. Does not depend on HTTP.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from midthought.engines.engine import Sampling
from midthought.env.episode import QuestionEnvironment
from midthought.rollout.episode import Episode, RolloutParts, open_tools
from midthought.rollout.turn_graph import Finished, TurnGraph, TurnNode, append_answer
from midthought.serve.answer_stream import AnswerStream, OnPiece, Piece, PieceKind
from midthought.serve.chat_messages import can_come_back, chained, next_digest
from midthought.serve.chat_policy import ChatPolicy, ChatPrompt, prompt_of, require_room
from midthought.serve.errors import ContextOverflowError
from midthought.tokenization.chat_template import Message, as_tool_calls
from midthought.tools.definition import ToolDefinition
from midthought.tools.executor_state import EpisodeTools
from midthought.types import Completion, Finish, ParsedAction, StopReason, Task, ToolEvent, Trajectory

MAX_KEPT_TOKENS = 2_000_000
"""Tokens of answers and contexts that are kept to be continued, about 80 bytes each; the oldest are forgotten."""
_numbers = itertools.count(2**40)
"""Of the engine's sequences: in one process, episodes that are no answers to a client have lower numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """A conversation to answer. None: the policy's own setting."""

    messages: Sequence[Message]
    """As `checked_messages` returns them."""
    tools: Sequence[ToolDefinition] = ()
    """The client's tools. One with the name of a tool of the policy replaces it."""
    seed: int | None = None
    """None: `TurnGraph.seed` gives one."""
    max_tokens: int | None = None
    """Maximum tokens after the prompt, results of the policy's own tools included."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Sampling` that the client has set."""
    stop: Sequence[str] = ()
    answer_id: str = ""
    """Random text that the client gets with the answer."""


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
    stop_text: str | None = None
    """The client's stop text that ended the answer."""
    node: TurnNode

    def message(self) -> Message:
        """Returns the answer as a client sends it back, without thoughts."""
        calls = [as_tool_calls([(each.name, json.loads(each.arguments), each.id)])[0] for each in self.calls]
        return {"role": "assistant", "content": self.content, **({"tool_calls": calls} if calls else {})}

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
    """Answers any number of conversations at the same time. Use it on one event loop.

    Args:
        policy: what answers.
        graph: keeps the answers, which are continued; None: a new one that forgets the oldest.
        seed: seed of the requests that have none.
        sampling: fields of `Sampling`, which replace those of the requests, and their seeds; None: a request's are used.
    """

    def __init__(
        self,
        policy: ChatPolicy,
        graph: TurnGraph | None = None,
        *,
        seed: int = 0,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self.policy = policy
        self.graph = graph or TurnGraph(MAX_KEPT_TOKENS)
        self._seed, self._sampling = seed, sampling

    async def answer(self, request: ChatRequest, on_piece: OnPiece = lambda piece: None) -> ChatAnswer:
        """Returns the answer; `on_piece` gets its text as it arrives. Raises `ContextOverflowError`, `SettingsError` if the chat
        template refuses the conversation, and `EngineError`."""
        policy, prompt, before = self._prompt(request)
        if (num := len(prompt.token_ids)) >= policy.max_seq_len:
            raise ContextOverflowError(num, policy.max_seq_len)
        if prompt.parent is not None:
            prompt.parent.is_delivered = True
        seed = request.seed if self._sampling is None else None
        seed = self.graph.seed(self._seed, prompt.token_ids) if seed is None else seed
        asked = next((each["content"] for each in reversed(request.messages) if each["role"] == "user"), "")
        trajectory = Trajectory(Task(task_id="chat", prompt=asked, answer=""), prompt.token_ids, seed=seed)
        number, parts = next(_numbers), self._parts(policy, request, prompt)
        tools = open_tools(parts, trajectory, QuestionEnvironment())
        stream = AnswerStream(policy.renderer, policy.call_format, on_piece, stop=request.stop)
        policy.engine.open(number)
        try:
            episode = _ChatEpisode(stream, request, parts, trajectory, number, tools, in_thought=prompt.in_thought)
            reason = await episode.run(QuestionEnvironment())
        finally:
            policy.engine.close(number)
            await tools.close()
        episode.end_text()
        calls = _for_client(*episode.held)
        is_whole = reason is StopReason.ANSWERED or bool(episode.unread) or stream.is_stopped
        finish: Finished = "tool_calls" if calls else "stop" if is_whole else "length"
        node = episode.node(prompt, request, calls, finish)
        answer = ChatAnswer(
            trajectory=trajectory,
            pieces=stream.pieces,
            calls=calls,
            finish=finish,
            stop_text=stream.stop_text,
            node=node,
        )
        node.key = next_digest(before, answer.message())
        self.graph.add(node)
        return answer

    def count_tokens(self, request: ChatRequest) -> int:
        """Returns the number of tokens of the prompt of `answer`. Raises as `answer`."""
        return len(self._prompt(request)[1].token_ids)

    def _prompt(self, request: ChatRequest) -> tuple[ChatPolicy, ChatPrompt, bytes]:
        """Returns the policy with the client's tools, the prompt, and the digest of the conversation."""
        require_room(self.policy, request.messages, request.tools)
        digests = chained(request.messages, request.tools)
        policy = self.policy.with_client_tools(request.tools)
        return policy, prompt_of(policy, request.messages, request.tools, digests, self.graph), digests[-1]

    def _parts(self, policy: ChatPolicy, request: ChatRequest, prompt: ChatPrompt) -> RolloutParts:
        """Returns the components of an answer's episode, with the request's limits and sampling options."""
        room = policy.max_seq_len - len(prompt.token_ids)
        num_tokens = min(request.max_tokens or policy.inference.max_tokens, room)
        inference = policy.inference.model_copy(update={"max_tokens": num_tokens})  # validating again takes 2 ms
        own: dict[str, Any] = {"temperature": inference.temperature, "top_p": inference.top_p}
        given = request.sampling if self._sampling is None else self._sampling
        return RolloutParts(
            engine=policy.engine,
            renderer=policy.renderer,
            call_format=policy.call_format,
            executor=policy.executor,
            messages=lambda task: prompt.messages,
            environment=lambda task: QuestionEnvironment(),
            inference=inference,
            answers=Sampling(max_tokens=inference.max_tokens, **{**own, **given}),
        )


def _for_client(calls: Sequence[ParsedAction], events: Sequence[ToolEvent | None]) -> list[ClientCall]:
    """Returns the calls without an event, with new ids."""
    return [
        ClientCall(
            id=f"call_{secrets.token_hex(12)}",
            name=str(call.tool_name),
            arguments=json.dumps(dict(call.parameters), ensure_ascii=False),
        )
        for call, event in zip(calls, events, strict=True)
        if event is None
    ]


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
        self.held: tuple[Sequence[ParsedAction], Sequence[ToolEvent | None]] = (), ()
        """Calls of a turn that waits for the client, and their events: None for the client's calls."""
        self.unread = ""
        """Text of the calls of a turn that the client gets as text, because one of them could not be read."""
        self._stream = stream
        self._client_names = {tool.name for tool in request.tools}
        super().__init__(parts, trajectory, number, tools, in_thought=in_thought)

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
        """Runs the calls of the policy's own tools, and passes on the results as the policy reads them. The client gets calls of
        other tools, if it has any tools, and calls that cannot be read."""
        call_format, names = self._parts.call_format, self._client_names
        if names and not all(map(can_come_back, calls)):
            self.unread = "\n".join(call.raw_text for call in calls)
            return None
        own = set(self._parts.executor.registry) - names
        is_ours = [not names or call.tool_name in own for call in calls]
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
                self._stream.add(PieceKind.RESULT, call_format.render_results([event]))
        return events

    def end_text(self) -> None:
        """Passes on the text that was held back, except calls."""
        if self.held[0] or self._stream.is_stopped:
            return
        self._stream.end_turn(has_calls=bool(self.calls) and not self.unread)
        if self._stream.in_thought:
            self._stream.add(PieceKind.ANSWER, self.unread)

    def node(self, prompt: ChatPrompt, request: ChatRequest, calls: Sequence[ClientCall], finish: Finished) -> TurnNode:
        """Returns the answer, without its key."""
        start = 0 if prompt.parent is None else prompt.parent.num_tokens
        trajectory = self.trajectory
        record = Trajectory(trajectory.task, trajectory.token_ids[start : len(prompt.token_ids)], seed=trajectory.seed)
        append_answer(record, trajectory)
        is_in_text = bool(calls) and self._parts.call_format.stops_at_call
        return TurnNode(
            key=b"",
            ids=frozenset(filter(None, (request.answer_id, *(call.id for call in calls)))),
            parent=prompt.parent,
            record=record,
            finish=finish,
            messages=prompt.messages if is_in_text else self.conversation(self.held[0]),
            calls=self.held[0],
            events=self.held[1],
            in_thought=self._stream.in_thought if is_in_text else None,
            answered=prompt.answered,
            observation=prompt.observation,
            is_same_turn=prompt.in_thought is not None,
        )
