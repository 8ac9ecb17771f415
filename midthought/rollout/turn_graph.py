"""The answers of a session as a tree, from which conversations are continued, and which becomes the segments of an episode.

An answer keeps the tokens that were sampled; nothing changes, moves or removes them. Does not depend on messages, chat templates
or HTTP: a key stands for the conversation up to an answer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import struct
from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from midthought.tokenization.chat_template import Message
from midthought.types import ParsedAction, ToolEvent, Trajectory
from midthought.types.task import number_of

Finished = Literal["stop", "length", "tool_calls"]


@dataclass(kw_only=True, slots=True, eq=False)
class TurnNode:
    """One answer, and what is needed to continue it. It begins as the prompt of an answer; `key` to `in_thought` are set when
    the answer ends."""

    parent: TurnNode | None = None
    """The answer that this one continues; None: its prompt was rendered."""
    record: Trajectory
    """Tokens after the parent's: the context between the two answers, then the answer."""
    messages: Sequence[Message] = ()
    """The conversation, as the chat template takes it: before the answer, then with it, unless results follow in its text."""
    answered: Sequence[ToolEvent] = ()
    """Calls of the parent whose results are in the context."""
    observation: str = ""
    """Text of the messages in the context."""
    is_same_turn: bool = False
    """Whether this answer continues the turn of the parent, after the results of its calls."""
    key: bytes = b""
    """Digest of the conversation with this answer."""
    ids: frozenset[str] = frozenset()
    """Ids that the client got with this answer."""
    finish: Finished = "stop"
    calls: Sequence[ParsedAction] = ()
    """Calls of a turn that waits for results."""
    events: Sequence[ToolEvent | None] = ()
    """Results of the policy's own tools; None for a call of the client's."""
    in_thought: bool | None = None
    """Whether the results follow within a thought; None: they are chat messages."""
    number: int = field(default=-1, init=False)
    """Position in the order of the answers' ends."""
    is_delivered: bool = field(default=False, init=False)
    """Whether the client has the whole answer."""
    reward: float | None = field(default=None, init=False)

    @property
    def num_context(self) -> int:
        """Number of tokens between the parent's and the answer."""
        return self.record.segments[0].spans[0].end

    def path(self) -> list[TurnNode]:
        """Returns the answers from the first one to this."""
        nodes = [self]
        while nodes[-1].parent is not None:
            nodes.append(nodes[-1].parent)
        return nodes[::-1]

    def token_ids(self) -> list[int]:
        """Returns all tokens up to the end of this answer."""
        found: list[int] = []
        for node in self.path():
            found += node.record.token_ids  # as a whole: it is done for each request
        return found


class TurnGraph:
    """The answers of a session, or of many conversations, of which the oldest are forgotten. Use it on one event loop.

    Args:
        max_tokens: maximum number of tokens of all answers and the contexts between them; None: nothing is forgotten.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        self._max_tokens = max_tokens
        self._kept: dict[TurnNode, None] = {}
        """In the order of their last use. An answer was used after those that continue it, so it is forgotten after them."""
        self._by_key: defaultdict[bytes, list[TurnNode]] = defaultdict(list)
        self._num_tokens = 0
        self._numbers = itertools.count()
        self._num_asked: Counter[bytes] = Counter()

    def add(self, node: TurnNode) -> None:
        """Keeps a complete answer."""
        node.number = next(self._numbers)
        self._keep(node)

    def find(self, key: bytes, ids: Set[str]) -> TurnNode | None:
        """Returns the answer with this key. Of several: the one with the most issued ids on its path among `ids`, then one that
        the client has, then the newest."""

        def order(node: TurnNode) -> tuple[int, bool, int]:
            return sum(len(each.ids & ids) for each in node.path()), node.is_delivered, node.number

        node = max(self._by_key.get(key, ()), key=order, default=None)
        if node is not None:
            self._keep(node)
        return node

    def seed(self, session_seed: int, token_ids: Sequence[int]) -> int:
        """Returns the seed of the next answer to this prompt: it depends on the prompt and the number of earlier answers to it,
        not on other requests."""
        prompt = hashlib.blake2b(struct.pack(f"{len(token_ids)}i", *token_ids), digest_size=16).digest()
        self._num_asked[prompt] += 1
        return number_of((session_seed, prompt, self._num_asked[prompt]), 7)

    def _keep(self, node: TurnNode) -> None:
        for each in reversed(node.path()):
            if each not in self._kept:
                self._by_key[each.key].append(each)
                self._num_tokens += len(each.record.token_ids)
            self._kept.pop(each, None)
            self._kept[each] = None
        while self._max_tokens is not None and self._num_tokens > self._max_tokens:
            self._forget(next(iter(self._kept)))

    def _forget(self, node: TurnNode) -> None:
        del self._kept[node]
        self._num_tokens -= len(node.record.token_ids)
        self._by_key[node.key].remove(node)
        if not self._by_key[node.key]:
            del self._by_key[node.key]

    # -- the record of an episode ------------------------------------------------------------------------------

    def fill(self, trajectory: Trajectory, *, with_dropped: bool = True) -> list[TurnNode]:
        """Replaces the tokens, turns and tool events of an open record by the delivered answers, and returns these in the order
        of their turns; without any, the record stays as it is.

        One segment for each path to a last answer, in the order of the last answers. An answer that several paths share is
        trained in the longest one and is prompt in the others. `with_dropped` False leaves out a last answer if the client
        continued or asked for another answer to the same prompt.
        """
        leaves = self._leaves(with_dropped=with_dropped)
        if not leaves:
            return []
        for name in ("segments", "turns", "turn_ends", "tool_events", "call_ends"):
            setattr(trajectory, name, [])
        trajectory.num_cut, trajectory.engine_seconds, trajectory.tool_seconds = 0, 0.0, 0.0
        trained: list[TurnNode] = []
        fresh = _trained_by(leaves)
        for leaf in leaves:
            _add_segment(trajectory, fresh[leaf])
            trained += fresh[leaf]
        trajectory.turns[-1].done = leaves[-1].finish == "stop"
        return trained

    def _leaves(self, *, with_dropped: bool) -> list[TurnNode]:
        """Returns the delivered answers that nothing continues, by number."""

        def prompt(node: TurnNode) -> tuple[TurnNode | None, tuple[int, ...]]:
            return node.parent, tuple(node.record.token_ids[: node.num_context])

        delivered = sorted((node for node in self._kept if node.is_delivered), key=lambda node: node.number)
        continued = {node.parent for node in delivered}
        last = {prompt(node): node for node in sorted(delivered, key=lambda node: node in continued)}
        leaves = [node for node in delivered if node not in continued]
        return [leaf for leaf in leaves if with_dropped or last[prompt(leaf)] is leaf]


def _trained_by(leaves: Sequence[TurnNode]) -> dict[TurnNode, list[TurnNode]]:
    """Returns the answers that are trained in the segment of each leaf. This does not depend on the order of arrival."""
    seen: set[TurnNode] = set()
    fresh = {}
    tokens = {leaf: leaf.token_ids() for leaf in leaves}
    for leaf in sorted(leaves, key=lambda leaf: (-len(tokens[leaf]), tokens[leaf])):
        fresh[leaf] = [node for node in leaf.path() if node not in seen]
        seen.update(fresh[leaf])
    return fresh


def _add_segment(trajectory: Trajectory, nodes: Sequence[TurnNode]) -> None:
    """Appends a segment that trains these answers, each of which continues the one before it."""
    for node in nodes:
        context = node.record.token_ids[: node.num_context]
        if node is nodes[0]:
            trajectory.begin_segment([*(node.parent.token_ids() if node.parent else ()), *context])
        else:
            last = trajectory.turns[-1]
            last.observation = None if node.is_same_turn else node.observation
            if node.answered:
                last.tool_call = last.tool_call or node.answered[0].call
                trajectory.add_results(node.answered, context)
            else:
                trajectory.add_reply(context)
        append_answer(trajectory, node.record)
        trajectory.turns[-1].reward = node.reward or 0.0
        if node.is_same_turn and node is not nodes[0]:
            _join_last_turns(trajectory)


def _join_last_turns(trajectory: Trajectory) -> None:
    before, after = trajectory.turns[-2:]
    text, reward = f"{before.model_output}\n{after.model_output}", before.reward + after.reward
    trajectory.turns[-2:] = [dataclasses.replace(before, model_output=text, answer=after.answer, reward=reward)]
    del trajectory.turn_ends[-2]


def append_answer(trajectory: Trajectory, record: Trajectory) -> None:
    """Appends everything after the prompt of a record of one segment: tokens, turns, tool events, seconds."""
    (segment,) = record.segments
    start = segment.spans[0].end
    place, shift = len(trajectory.segments) - 1, len(trajectory.token_ids) - start
    trajectory.segments[-1].extend(segment, start)
    num_turns = len(trajectory.turns)
    trajectory.turns += [
        dataclasses.replace(turn, turn_number=num_turns + number, done=False)
        for number, turn in enumerate(record.turns, 1)
    ]
    trajectory.turn_ends += [(place, end + shift) for _, end in record.turn_ends]
    trajectory.tool_events += record.tool_events
    trajectory.call_ends += [(place, end + shift) for _, end in record.call_ends]
    trajectory.num_cut += record.num_cut
    trajectory.engine_seconds += record.engine_seconds
    trajectory.tool_seconds += record.tool_seconds
