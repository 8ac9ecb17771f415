"""Random conversation trees against an engine that records what it sampled, and what must be true of the record of each session.

A tree is planned before it is played, so that it can be played in several orders. The engine's answer depends only on its prompt
and seed. It writes tokens that no tokenizer would choose for the text.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import json
import math
import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from playing import chat_policy
from published_templates import PUBLISHED
from small_tokenizer import small_tokenizer

from midthought.config import InferenceConfig
from midthought.engines.engine import Sampling, Stopper
from midthought.engines.scripted import ScriptedEngine
from midthought.rollout.turn_graph import TurnGraph, TurnNode
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.chat_messages import checked_messages, issued_ids
from midthought.serve.chat_policy import ChatPolicy
from midthought.tokenization import Renderer
from midthought.tools.builtin.calculate import CalculateTool
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.definition import ToolDefinition, ToolParameter
from midthought.types import Completion, Task, Trajectory

LOOK = ToolDefinition("look", "Looks it up.", [ToolParameter("at", "string", "Where."), ToolParameter("n", "integer")])
SAY = ToolDefinition("say", "Says it.", [ToolParameter("word", "string", "What.")])
TOOL_SETS = ((LOOK,), (LOOK,), (LOOK, SAY), ())
STYLES = ("native", "tagged", "in_thought")
_records: ContextVar[list[Record]] = ContextVar("records")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One call of the engine."""

    prompt: tuple[int, ...]
    completion: Completion
    temperature: float


class RecordingEngine(ScriptedEngine):
    """Writes thoughts, texts, calls, several calls, calls that cannot be read or of unknown tools, and lets others run."""

    def __init__(self, renderer: Renderer, style: str) -> None:
        super().__init__((), renderer)
        self._style = style

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        drawn = random.Random(hashlib.blake2b(array("q", [sampling.seed, *token_ids]).tobytes()).digest())
        for _ in range(drawn.randrange(4)):
            await asyncio.sleep(0)
        words = [*self._tokens(self._text(drawn), drawn), self._renderer.answer_end[0]]
        done = await ScriptedEngine([words], self._renderer).sample(0, token_ids, sampling, stopper=stopper)
        completion = dataclasses.replace(
            done,
            sampled_logprobs=tuple(-drawn.random() for _ in done.token_ids),
            policy_version=drawn.randrange(3),
            temperature=drawn.choice([None, 0.5, 2.0]),
        )
        temperature = sampling.temperature if completion.temperature is None else completion.temperature
        _records.get().append(Record(prompt=tuple(token_ids), completion=completion, temperature=temperature))
        return completion

    def _tokens(self, text: str, drawn: random.Random) -> list[int]:
        """Returns the tokens of pieces of the text, which are not those of the whole text; tags stay whole."""
        token_ids: list[int] = []
        for piece in self._renderer.split(text):
            while isinstance(piece, str) and piece:
                length = drawn.randint(1, 6)
                token_ids += self._renderer.foreign(piece[:length])
                piece = piece[length:]
            token_ids += [piece] if isinstance(piece, int) else []
        return token_ids

    def _text(self, drawn: random.Random) -> str:
        thought = drawn.choice(["", "Hm. ", "I look. ", "水 "])
        calls = [self._call(drawn) for _ in range(drawn.choice([0, 0, 1, 1, 2]))]
        said = drawn.choice(["", "Yes.", "No.", "It is so.", "<tool", f"{drawn.random()}"])
        if self._style == "in_thought":
            return f"<think>{thought}{calls[0]}" if calls else f"{thought}</think>\n\n{said}"
        return "".join(filter(None, [f"<think>\n{thought}\n</think>\n\n" * bool(thought), said, *calls]))

    def _call(self, drawn: random.Random) -> str:
        arguments = json.dumps({"at": drawn.choice("ab"), "n": drawn.randrange(3)})
        names = [*["look"] * 6, "say", "unknown", "not a name"]
        name, arguments = drawn.choice(
            [*((name, arguments) for name in names), ("calculate", '{"expression": "1+1"}'), ("look", '{"at": }')]
        )
        if self._style == "in_thought":
            return f"#call {name.replace(' ', '_')} {arguments}"
        return f'\n<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@functools.cache
def policy_of(style: str) -> ChatPolicy:
    """A policy with a tool of its own, in one of three ways of writing."""
    tools = [CalculateTool()]
    if style == "native":
        qwen3 = next(each for each in PUBLISHED if each.name == "qwen3")
        choice = choose_call_format(Renderer(qwen3.tokenizer()), [CalculateTool.definition])
        renderer, call_format = choice.renderer, choice.call_format
    else:
        renderer = Renderer(small_tokenizer(tags=("<tool_call>", "</tool_call>")))
        call_format = "hermes" if style == "tagged" else style
    inference = InferenceConfig(max_tokens=2000)
    return chat_policy(RecordingEngine(renderer, style), renderer, call_format, tools, inference=inference)


# -- plans ---------------------------------------------------------------------------------------------------------

EDITS = ("edit_last", "edit_last", "edit_older", "other_tools", "other_system", "compaction")
HABITS = ("drop_thoughts", "other_spacing", "other_ids", "other_order")


@dataclass(kw_only=True, slots=True)
class Ask:
    """One request of a plan, and those that follow its answer."""

    number: int
    change: str
    """What happens to the conversation before it is continued: "", or one of `EDITS`."""
    habits: frozenset[str]
    fate: str
    """delivered, lost or cancelled."""
    num_copies: int
    max_tokens: int | None
    stop: tuple[str, ...]
    children: list[Ask] = field(default_factory=list)


def planned(drawn: random.Random, max_asks: int = 8) -> Ask:
    """Returns a tree of requests; its first one begins a conversation."""
    asks: list[Ask] = []
    for number in range(drawn.randint(2, max_asks)):
        ask = Ask(
            number=number,
            change=drawn.choice([*[""] * 10, *EDITS]) if asks else "",
            habits=frozenset(habit for habit in HABITS if drawn.random() < 0.3),
            fate=drawn.choice([*["delivered"] * 6, "lost", "cancelled"]) if asks else "delivered",
            num_copies=drawn.choice([1, 1, 1, 2]),
            max_tokens=drawn.choice([*[None] * 10, 4, 30]),
            stop=drawn.choice([(), (), (), (), ("is",)]),
        )
        parents = [each for each in asks if each.fate == "delivered"]
        if parents:
            drawn.choice([*parents, parents[-1]]).children.append(ask)
        asks.append(ask)
    return asks[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """A conversation after an answer, as the client has it."""

    messages: list[dict[str, Any]]
    tools: tuple[ToolDefinition, ...]
    answer: ChatAnswer
    records: list[Record]

    @property
    def token_ids(self) -> list[int]:
        return self.answer.trajectory.token_ids


def view(messages: Sequence[dict[str, Any]], tools: Sequence[ToolDefinition]) -> str:
    """What must be equal so that a conversation is continued."""
    said = [
        [
            message["role"],
            message.get("content") or "",
            [[call["function"]["name"], json.loads(call["function"]["arguments"])] for call in message.get("tool_calls", ())],
        ]
        for message in messages
    ]  # fmt: skip
    return json.dumps([sorted(tool.name for tool in tools), said], sort_keys=True)


class Session:
    """Plays a plan as a client, and checks every answer against what the engine was given."""

    def __init__(self, style: str, name: str, drawn: random.Random | None = None) -> None:
        """`drawn` None: one request after the other; else in a random order, several at the same time."""
        self.graph = TurnGraph()
        self.answers = ChatAnswers(policy_of(style), self.graph, seed=7)
        self.is_ambiguous = False
        """Whether two answers looked equal when one was continued."""
        self.num_edits = self.num_continued = 0
        self._name, self._drawn = name, drawn
        self._known: defaultdict[str, list[State]] = defaultdict(list)
        self._states: dict[TurnNode, State] = {}
        self._delivered: set[TurnNode] = set()

    async def play(self, plan: Ask) -> None:
        waiting: list[tuple[Ask, State | None]] = [(plan, None)]
        while waiting:
            num_taken = 1
            if self._drawn is not None:
                self._drawn.shuffle(waiting)
                num_taken = self._drawn.randint(1, len(waiting))
            taken, waiting = waiting[:num_taken], waiting[num_taken:]
            states = await asyncio.gather(*(self._ask(*each) for each in taken))
            for (ask, _), state in zip(taken, states, strict=True):
                waiting += [(child, state) for child in ask.children]

    async def _ask(self, ask: Ask, before: State | None) -> State | None:
        messages, tools = self._conversation(ask, before)
        request = ChatRequest(
            messages=checked_messages(json.loads(json.dumps(messages))),
            tools=tools,
            max_tokens=ask.max_tokens,
            stop=ask.stop,
        )
        ids = [f"{self._name}-{ask.number}-{n}" for n in range(ask.num_copies)]
        copies = [asyncio.ensure_future(self._answer(dataclasses.replace(request, answer_id=each))) for each in ids]
        if ask.fate == "cancelled":
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for each in copies:
                each.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            return None
        states = []
        for answer, records in await asyncio.gather(*copies):
            state = State(messages=messages, tools=tools, answer=answer, records=records)
            self._check(ask, before, state)
            states.append(state)
            if ask.fate == "delivered":
                answer.node.is_delivered = True
                self._delivered.add(answer.node)
        return states[0]

    async def _answer(self, request: ChatRequest) -> tuple[ChatAnswer, list[Record]]:
        records: list[Record] = []
        _records.set(records)
        return await self.answers.answer(request), records

    def _conversation(self, ask: Ask, before: State | None) -> tuple[list[dict[str, Any]], tuple[ToolDefinition, ...]]:
        drawn = random.Random(f"{self._name} {ask.number}")
        asked = {"role": "user", "content": f"Question {ask.number}?"}
        if before is None:
            return [{"role": "system", "content": "Be brief."}, asked], drawn.choice(TOOL_SETS)
        said = as_said(before.answer)
        messages, tools = [*before.messages, said], before.tools
        for each in said.get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": each["id"], "content": f"Result {drawn.random()}"})
        num_answered = len(messages)
        if not said.get("tool_calls") or drawn.random() < 0.2:
            messages.append(asked)
        messages = json.loads(json.dumps(messages))
        place = len(before.messages)
        match ask.change:
            case "edit_last":
                edited(messages[place], drawn)
            case "edit_older":
                edited(drawn.choice(messages[:place]), drawn)
            case "other_system":
                messages[0]["content"] += f" {ask.number}"
            case "other_tools":
                tools = drawn.choice([each for each in TOOL_SETS if len(each) != len(tools)])
            case "compaction":
                summary = {"role": "user", "content": f"Summary {ask.number}"}
                kept = drawn.choice([[], messages[place:num_answered]])
                messages = [messages[0], summary, *kept, asked]
        if "other_order" in ask.habits:
            tools = tools[::-1]
        for habit in ask.habits:
            for message in messages:
                with_habit(message, habit, ask.number)
        return messages, tools

    def _check(self, ask: Ask, before: State | None, state: State) -> None:
        """Checks that the request continued what it had to, and nothing else."""
        prompt, parent = state.records[0].prompt, state.answer.node.parent
        last = max((n for n, each in enumerate(state.messages) if each["role"] == "assistant"), default=None)
        candidates = [] if last is None else self._known[view(state.messages[: last + 1], state.tools)]
        if ask.change or before is None:
            self.num_edits += before is not None
            assert parent is None and not candidates, f"an edit was continued: {ask}"
        else:
            self.num_continued += 1
            self.is_ambiguous |= len(candidates) > 1
            assert parent is not None, f"an unedited conversation was rendered again: {ask}"
            found = self._states[parent]
            assert found in candidates
            assert prompt[: len(found.token_ids)] == tuple(found.token_ids), "tokens were changed"
            is_named = issued_ids([state.messages[last]]) & before.answer.node.ids
            assert found is before or (len(candidates) > 1 and not is_named)
            between = self.answers.policy.renderer.decode(prompt[len(found.token_ids) :])
            assert all(each["content"] in between for each in state.messages[last + 1 :]), between
            self._delivered.add(parent)
        assert tuple(state.answer.trajectory.token_ids[: len(prompt)]) == prompt
        self._states[state.answer.node] = state
        self._known[view([*state.messages, as_said(state.answer)], state.tools)].append(state)

    def filled(self) -> Trajectory:
        """Returns the record of the session after it was checked."""
        trajectory = Trajectory(Task(task_id="t", prompt="", answer=""), [0])
        nodes = self.graph.fill(trajectory)
        trajectory.check()
        assert set(nodes) == self._delivered and len(nodes) == len(self._delivered)
        expected: Counter[tuple[Any, ...]] = Counter()
        for node in self._delivered:
            for record in self._states[node].records:
                expected.update(tokens_of(record))
        trained: Counter[tuple[Any, ...]] = Counter()
        for segment in trajectory.segments:
            prefix = hashlib.blake2b()
            temperatures = [span.temperature for span in segment.spans for _ in range(span.start, span.end)]
            for n, token_id in enumerate(segment.token_ids):
                prefix.update(array("q", [token_id]).tobytes())
                if segment.loss_mask[n]:
                    value = segment.sampled_logprobs[n], segment.policy_versions[n], temperatures[n]
                    trained[(prefix.digest(), *value)] += 1
            assert segment.loss_mask[-1]
        assert trained == expected, "the trained tokens are not those that were sampled, each once"
        return trajectory


def tokens_of(record: Record) -> list[tuple[Any, ...]]:
    """Each sampled token as a digest of all tokens up to it, log-probability, version and temperature."""
    prefix, found = hashlib.blake2b(array("q", record.prompt).tobytes()), []
    completion = record.completion
    for token_id, logprob in zip(completion.token_ids, completion.sampled_logprobs, strict=True):
        prefix.update(array("q", [token_id]).tobytes())
        found.append((prefix.digest(), logprob, completion.policy_version, record.temperature))
    return found


def as_said(answer: ChatAnswer) -> dict[str, Any]:
    """The answer as a client sends it back, with its thoughts."""
    thoughts = {"reasoning_content": answer.thoughts, "signature": max(answer.node.ids)} if answer.thoughts else {}
    return {**answer.message(), **thoughts}


def edited(message: dict[str, Any], drawn: random.Random) -> None:
    """Changes what a message says: the last of its calls if it has some, else its text."""
    if calls := message.get("tool_calls"):
        function = calls[-1]["function"]
        function["arguments"] = json.dumps({**json.loads(function["arguments"]), "edited": drawn.random()})
    else:
        message["content"] = f"{message['content']} {drawn.random()}"


def with_habit(message: dict[str, Any], habit: str, number: int) -> None:
    """Changes how a message is written, and not what it says."""
    if habit == "drop_thoughts":
        message.pop("reasoning_content", None)
        message.pop("signature", None)
    elif habit == "other_ids" and message.get("tool_call_id"):
        message["tool_call_id"] = f"mine-{number}-{message['tool_call_id']}"
    for call in message.get("tool_calls", ()):
        if habit == "other_ids":
            call["id"] = f"mine-{number}-{call['id']}"
        elif habit == "other_spacing":
            given = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(dict(reversed(given.items())), indent=1)


def segments_of(trajectory: Trajectory) -> Counter[str]:
    """The segments, without their order."""
    return Counter(
        repr((each.token_ids, each.loss_mask, [v for v in each.sampled_logprobs if not math.isnan(v)], each.policy_versions))
        for each in trajectory.segments
    )  # fmt: skip


def play(style: str, number: int, *, num_orders: int = 2) -> Session:
    """Plays a random tree, in several orders if no two of its answers look equal; returns the first session."""
    plan, sessions, found = planned(random.Random(f"plan {number}")), [], []
    for order in range(num_orders):
        drawn = random.Random(f"order {number} {order}") if order else None
        session = Session(style, f"session {number}", drawn)
        asyncio.run(session.play(plan))
        sessions.append(session)
        found.append(segments_of(session.filled()))
    if not any(session.is_ambiguous for session in sessions):
        assert all(each == found[0] for each in found), "the segments depend on the order of the requests"
    return sessions[0]
