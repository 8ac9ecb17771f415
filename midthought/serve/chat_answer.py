"""Answers conversations in OpenAI's form: the loop of an episode, with the text passed on as it is sampled.

The policy's own tools run here; a call of a tool that the client declared ends the answer. Does not depend on HTTP.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import secrets
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from midthought.engines.engine import Sampling
from midthought.env.episode import QuestionEnvironment
from midthought.rollout.episode import Episode, RolloutParts, open_tools
from midthought.rollout.turn_graph import Finished, TurnGraph, TurnNode, append_answer
from midthought.serve.answer_stream import AnswerStream, OnPiece, Piece, PieceKind
from midthought.serve.chat_messages import can_come_back, chained, next_digest
from midthought.serve.chat_policy import ChatPolicy, ContextOverflowError, prompt_of, require_room
from midthought.tokenization.chat_template import Message
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, StopReason, Task, ToolEvent, Trajectory

MAX_KEPT_TOKENS = 2_000_000
"""Tokens of answers and contexts that are kept to be continued, about 80 bytes each; the oldest are forgotten."""
_numbers = itertools.count(2**40)
"""Numbers of the engine's sequences. Other episodes of this process have lower ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """A conversation to answer. None: the policy's own setting."""

    messages: Sequence[Message]
    """As `checked_messages` returns them."""
    tools: Sequence[ToolDefinition] = ()
    """The client's tools. One with the name of a tool of the policy replaces it."""
    seed: int | None = None
    """None: as `ChatAnswers` says."""
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

    def in_openai_form(self) -> dict[str, Any]:
        """Returns the entry of `tool_calls`."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


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
        calls = [call.in_openai_form() for call in self.calls]
        return {"role": "assistant", "content": self.content, **({"tool_calls": calls} if calls else {})}

    @property
    def content(self) -> str:
        """The text outside of thoughts."""
        return self._text(of_thoughts=False)

    @property
    def thoughts(self) -> str:
        """The thoughts, with the calls of the policy's own tools and their results."""
        return self._text(of_thoughts=True)

    def _text(self, *, of_thoughts: bool) -> str:
        pieces = [piece for piece in self.pieces if (piece.kind is PieceKind.ANSWER) != of_thoughts]
        return "".join(["\n" * piece.is_new + piece.text for piece in pieces]).removeprefix("\n")


class ChatAnswers:
    """Answers any number of conversations at the same time. Use it on one event loop.

    Args:
        policy: what answers.
        graph: keeps the answers, which are continued; None: a new one that forgets the oldest.
        seed: gives the seeds of requests without one (`TurnGraph.seed`), in training; the policy's limit of tokens is then an
            upper bound. None: these are random, and a request's limit is used.
    """

    def __init__(self, policy: ChatPolicy, graph: TurnGraph | None = None, *, seed: int | None = None) -> None:
        self.policy = policy
        self.graph = graph or TurnGraph(MAX_KEPT_TOKENS)
        self._seed = seed

    async def answer(
        self,
        request: ChatRequest,
        on_piece: OnPiece = lambda piece: None,
        on_prompt: Callable[[int], None] = lambda num_tokens: None,
    ) -> ChatAnswer:
        """Returns the answer; `on_prompt` gets the number of tokens of its prompt, then `on_piece` its text as it arrives. Raises
        `ContextOverflowError`, `SettingsError` if the chat template refuses the conversation, and `EngineError`."""
        policy, node, before = self._prompt(request)
        token_ids, messages = node.token_ids(), node.messages
        if len(token_ids) >= policy.max_seq_len:
            raise ContextOverflowError(len(token_ids), policy.max_seq_len)
        on_prompt(len(token_ids))
        if node.parent is not None:
            node.parent.is_delivered = True
        asked = next((each["content"] for each in reversed(request.messages) if each["role"] == "user"), "")
        trajectory = Trajectory(Task(task_id="chat", prompt=asked, answer=""), token_ids)
        trajectory.seed = self._seed_of(request, token_ids)
        number, parts = next(_numbers), self._parts(policy, request, messages, len(token_ids))
        tools = open_tools(parts, trajectory, QuestionEnvironment())
        stream = AnswerStream(policy.call_format, on_piece, stop=request.stop)
        policy.engine.open(number)
        try:
            names = {tool.name for tool in request.tools}
            in_thought = node.parent.in_thought if node.parent and node.is_same_turn else None
            episode = ChatEpisode(stream, names, parts, trajectory, number, tools, in_thought=in_thought)
            reason = await episode.run(QuestionEnvironment())
        finally:
            policy.engine.close(number)
            await tools.close()
        episode.end_text()
        if stream.stop_text is not None and (text := trajectory.turns[-1].answer) is not None:
            trajectory.turns[-1].answer = text.partition(stream.stop_text)[0].rstrip()
        calls = episode.calls_of_client()
        is_whole = reason is StopReason.ANSWERED or bool(episode.unread) or stream.stop_text is not None
        node.finish = "tool_calls" if calls else "stop" if is_whole else "length"
        answer = ChatAnswer(
            trajectory=trajectory,
            pieces=stream.pieces,
            calls=calls,
            finish=node.finish,
            stop_text=stream.stop_text,
            node=node,
        )
        episode.complete(node)
        node.ids = frozenset(each for each in (request.answer_id, *(call.id for call in calls)) if each)
        node.key = next_digest(before, answer.message())
        self.graph.add(node)
        return answer

    async def count_tokens(self, request: ChatRequest) -> int:
        """Returns the number of tokens of the prompt of `answer`. Raises as `answer`."""
        return len(self._prompt(request)[1].token_ids())

    def _prompt(self, request: ChatRequest) -> tuple[ChatPolicy, TurnNode, bytes]:
        """Returns the policy with the client's tools, the prompt, and the digest of the conversation."""
        described = [json.dumps(tool.json_schema(), ensure_ascii=False) for tool in request.tools]
        require_room(self.policy, request.messages, described)
        digests = chained(request.messages, described)
        policy = self.policy.with_client_tools(request.tools, described)
        return policy, prompt_of(policy, request.messages, request.tools, digests, self.graph), digests[-1]

    def _seed_of(self, request: ChatRequest, token_ids: Sequence[int]) -> int:
        if request.seed is not None:
            return request.seed
        return secrets.randbelow(2**62) if self._seed is None else self.graph.seed(self._seed, token_ids)

    def _parts(
        self, policy: ChatPolicy, request: ChatRequest, messages: Sequence[Message], num_prompt: int
    ) -> RolloutParts:
        """Returns the components of an answer's episode, with the request's limits and sampling options."""
        limit = policy.inference.max_tokens
        if request.max_tokens is not None:
            limit = request.max_tokens if self._seed is None else min(limit, request.max_tokens)
        limit = min(limit, policy.max_seq_len - num_prompt)
        inference = policy.inference.model_copy(update={"max_tokens": limit})  # validating again takes 2 ms
        own: dict[str, Any] = {"temperature": inference.temperature, "top_p": inference.top_p}
        return RolloutParts(
            engine=policy.engine,
            renderer=policy.renderer,
            call_format=policy.call_format,
            executor=policy.executor,
            messages=lambda task: messages,
            environment=lambda task: QuestionEnvironment(),
            inference=inference,
            answers=Sampling(max_tokens=limit, **{**own, **request.sampling}),
        )


class ChatEpisode(Episode):
    """An episode that passes on what is sampled and what tools return, and ends before calls of tools of the client."""

    def __init__(self, stream: AnswerStream, client_tools: Set[str], *episode: Any, **options: Any) -> None:
        """`episode`, `options`: arguments of `Episode`."""
        self.held: tuple[Sequence[ParsedAction], Sequence[ToolEvent | None]] = (), ()
        """Calls of a turn that waits for the client, and their events: None for the client's calls."""
        self.unread = ""
        """Text of the calls of a turn that the client gets as text, because one of them could not be read."""
        self._stream = stream
        self._client_tools = client_tools
        super().__init__(*episode, **options)

    def begin_turn(self, in_thought: bool | None = None) -> None:
        super().begin_turn(in_thought)
        self._stream.begin_turn(in_thought=self.in_thought)

    def feed(self, token_id: int) -> bool:
        ends, is_stopped = super().feed(token_id), self._stream.feed(self._watch.text)
        if is_stopped and self.answers is not None:
            self.answers = dataclasses.replace(self.answers, max_tokens=0)
        return ends or is_stopped

    async def run_tools(self, calls: Sequence[ParsedAction]) -> list[ToolEvent] | None:
        """Runs the calls of the policy's own tools, and passes on the results as the policy reads them. The client gets calls of
        other tools, if it has any tools, and calls that cannot be read."""
        call_format, names = self._parts.call_format, self._client_tools
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
        if self.held[0] or self._stream.stop_text is not None:
            return
        self._stream.end_turn(has_calls=bool(self.calls) and not self.unread)
        if self._stream.in_thought:
            self._stream.add(PieceKind.ANSWER, self.unread)

    def calls_of_client(self) -> list[ClientCall]:
        """Returns the calls that wait for the client, with new ids."""
        waiting = (call for call, event in zip(*self.held, strict=True) if event is None)
        return [
            ClientCall(
                id=f"call_{secrets.token_hex(12)}",
                name=str(call.tool_name),
                arguments=json.dumps(dict(call.parameters), ensure_ascii=False),
            )
            for call in waiting
        ]

    def complete(self, node: TurnNode) -> None:
        """Adds the answer to its prompt."""
        append_answer(node.record, self.trajectory)
        node.calls, node.events = self.held
        if node.calls and self._parts.call_format.stops_at_call:
            node.in_thought = self._stream.in_thought
        else:
            node.messages = self.conversation(node.calls)
