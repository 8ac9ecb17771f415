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
from midthought.rollout.episode import RolloutParts, open_tools
from midthought.rollout.turn_graph import Finished, TurnGraph, TurnNode
from midthought.serve.answer_stream import AnswerStream, OnPiece, Piece, PieceKind
from midthought.serve.chat_episode import ChatEpisode
from midthought.serve.chat_messages import chained, next_digest
from midthought.serve.chat_policy import ChatPolicy, ChatPrompt, prompt_of, require_room
from midthought.serve.errors import ContextOverflowError
from midthought.tokenization.chat_template import Message, as_tool_calls
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
        seed: gives the seeds of requests without one (`TurnGraph.seed`); None: these are random.
        sampling: fields of `Sampling`, which replace those of the requests, and their seeds; the policy's limit of tokens is then
            an upper bound. None: a request's are used.
    """

    def __init__(
        self,
        policy: ChatPolicy,
        graph: TurnGraph | None = None,
        *,
        seed: int | None = None,
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
        asked = next((each["content"] for each in reversed(request.messages) if each["role"] == "user"), "")
        trajectory = Trajectory(Task(task_id="chat", prompt=asked, answer=""), prompt.token_ids)
        trajectory.seed = self._seed_of(request, prompt)
        number, parts = next(_numbers), self._parts(policy, request, prompt)
        tools = open_tools(parts, trajectory, QuestionEnvironment())
        stream = AnswerStream(policy.renderer, policy.call_format, on_piece, stop=request.stop)
        policy.engine.open(number)
        try:
            names = {tool.name for tool in request.tools}
            episode = ChatEpisode(stream, names, parts, trajectory, number, tools, in_thought=prompt.in_thought)
            reason = await episode.run(QuestionEnvironment())
        finally:
            policy.engine.close(number)
            await tools.close()
        episode.end_text()
        if stream.stop_text is not None and (said := trajectory.turns[-1].answer) is not None:
            trajectory.turns[-1].answer = said.partition(stream.stop_text)[0].rstrip()
        calls = _for_client(*episode.held)
        ids = {each for each in (request.answer_id, *(call.id for call in calls)) if each}
        is_whole = reason is StopReason.ANSWERED or bool(episode.unread) or stream.is_stopped
        finish: Finished = "tool_calls" if calls else "stop" if is_whole else "length"
        node = episode.node(prompt, ids, finish)
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
        described = [json.dumps(tool.json_schema(), ensure_ascii=False) for tool in request.tools]
        require_room(self.policy, request.messages, described)
        digests = chained(request.messages, described)
        policy = self.policy.with_client_tools(request.tools, digests[0])
        return policy, prompt_of(policy, request.messages, request.tools, digests, self.graph), digests[-1]

    def _seed_of(self, request: ChatRequest, prompt: ChatPrompt) -> int:
        if request.seed is not None and self._sampling is None:
            return request.seed
        return secrets.randbelow(2**62) if self._seed is None else self.graph.seed(self._seed, prompt.token_ids)

    def _parts(self, policy: ChatPolicy, request: ChatRequest, prompt: ChatPrompt) -> RolloutParts:
        """Returns the components of an answer's episode, with the request's limits and sampling options."""
        room, limit = policy.max_seq_len - len(prompt.token_ids), policy.inference.max_tokens
        if request.max_tokens is not None:
            limit = request.max_tokens if self._sampling is None else min(limit, request.max_tokens)
        num_tokens = min(limit, room)
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
