"""The episode of one answer in a conversation with a client: its text is passed on, and calls of the client's tools end it.

Does not depend on requests or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from midthought.engines.engine import Sampling
from midthought.rollout.episode import Episode, RolloutParts
from midthought.rollout.turn_graph import Finished, TurnNode, append_answer
from midthought.serve.answer_stream import AnswerStream, PieceKind
from midthought.serve.chat_messages import can_come_back
from midthought.serve.chat_policy import ChatPrompt
from midthought.tools.executor import EpisodeTools
from midthought.types import Completion, Finish, ParsedAction, ToolEvent, Trajectory


class ChatEpisode(Episode):
    """An episode that passes on what is sampled and what tools return, and ends before calls of tools of the client."""

    def __init__(
        self,
        stream: AnswerStream,
        client_tools: Set[str],
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
        self._client_tools = client_tools
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
        if self.held[0] or self._stream.is_stopped:
            return
        self._stream.end_turn(has_calls=bool(self.calls) and not self.unread)
        if self._stream.in_thought:
            self._stream.add(PieceKind.ANSWER, self.unread)

    def node(self, prompt: ChatPrompt, ids: Set[str], finish: Finished) -> TurnNode:
        """Returns the answer, without its key. `ids`: those that the client gets with it."""
        start = 0 if prompt.parent is None else len(prompt.parent.token_ids())
        trajectory = self.trajectory
        record = Trajectory(trajectory.task, trajectory.token_ids[start : len(prompt.token_ids)], seed=trajectory.seed)
        append_answer(record, trajectory)
        is_in_text = bool(self.held[0]) and self._parts.call_format.stops_at_call
        return TurnNode(
            key=b"",
            ids=frozenset(ids),
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
