"""Random conversations over HTTP: whatever clients repeat, lose, ask at the same time or ask in another dialect, each answer that
was delivered is trained exactly once, on the tokens that the engine saw. What else a client changes in a conversation:
`test_turn_graph.py`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

pytest.importorskip("fastapi", reason="the serve extra is not installed")

from dialect_answers import TOOLS
from held_engine import CHAT, MESSAGES, Place, asks, events, place, texts, until

from midthought.serve.exchange import Exchange
from midthought.serve.sessions import Session
from midthought.types import SpanKind, Task, Trajectory

NUM_SESSIONS, NUM_STEPS = 100, 6
RETRIED = {"x-stainless-retry-count": "1"}


class Writer:
    """The policy's script: every answer has its number in its text or its call. `episodes`: their numbers in the engine."""

    def __init__(self) -> None:
        self.episodes: dict[int, int] = {}
        self._seen: set[int] = set()

    def __call__(self, episode: int, token_ids: Sequence[int]) -> str | None:
        if episode in self._seen:
            return None
        self._seen.add(episode)
        number = len(self._seen)
        self.episodes[number] = episode
        if number % 3 == 0:
            return f'<think>\nI look. #call weather {{"city": "{number}"}}'
        return f"<think>\nThought {number}.\n</think>\n\nAnswer {number}."


def calls_in(response: httpx.Response) -> list[list[tuple[str, str]]]:
    """Ids and arguments of the calls of each answer in a response of either dialect; in a stream of Anthropic's one at most."""
    if response.headers["content-type"] != "application/json":
        found = events(response)
        deltas = [choice["delta"] for each in found for choice in each.get("choices", ())]
        whole = [
            (call["id"], call["function"]["arguments"]) for each in deltas for call in each.get("tool_calls") or ()
        ]
        blocks = [each["content_block"] for each in found if each.get("type") == "content_block_start"]
        pieces = [each["delta"] for each in found if each.get("type") == "content_block_delta"]
        written = "".join(each.get("partial_json", "") for each in pieces)
        return [[*whole, *((block["id"], written) for block in blocks if block["type"] == "tool_use")]]
    body = response.json()
    if "choices" in body:
        calls = [choice["message"].get("tool_calls") or () for choice in body["choices"]]
        return [[(call["id"], call["function"]["arguments"]) for call in each] for each in calls]
    return [[(block["id"], json.dumps(block["input"])) for block in body["content"] if block["type"] == "tool_use"]]


def answers_in(response: httpx.Response) -> list[dict[str, Any]]:
    """The answers as messages of OpenAI's form."""
    found = []
    for text, calls in zip(texts(response), calls_in(response), strict=True):
        functions = [(call_id, {"name": "weather", "arguments": given}) for call_id, given in calls]
        called = [{"id": call_id, "type": "function", "function": function} for call_id, function in functions]
        found.append({"role": "assistant", "content": text, **({"tool_calls": called} if called else {})})
    return found


def number_of(answer: dict[str, Any]) -> int:
    called = [call["function"]["arguments"] for call in answer.get("tool_calls", ())]
    return int(re.findall(r"\d+", "".join([answer["content"], *called]))[0])


def in_anthropics_form(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for each in messages:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": each["content"]}] if each["content"] else []
        if each["role"] == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": each["tool_call_id"], "content": each["content"]}]
        for call in each.get("tool_calls", ()):
            given = json.loads(call["function"]["arguments"])
            blocks.append({"type": "tool_use", "id": call["id"], "name": "weather", "input": given})
        role = "assistant" if each["role"] == "assistant" else "user"
        if found and found[-1]["role"] == role:
            found[-1]["content"] += blocks
        else:
            found.append({"role": role, "content": blocks})
    return found


def in_chats_form(messages: Sequence[dict[str, Any]], indent: int | None) -> list[dict[str, Any]]:
    """With arguments as some clients write them."""
    found = json.loads(json.dumps(messages))
    for call in (call for each in found for call in each.get("tool_calls", ())):
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=indent)
    return found


class Agent:
    """A random client of one session. `received`: numbers of the answers that it has in full, each once."""

    def __init__(self, found: Place, seed: int, patience: float) -> None:
        self.session = found.open(seed)
        self.received: list[int] = []
        self._found, self._rng, self._patience = found, random.Random(seed), patience
        self._said: list[dict[str, Any]] = [{"role": "user", "content": f"question {seed}"}]

    def step(self) -> None:
        """Asks in some way, and goes on from one of the answers or from an earlier place."""
        rng, path = self._rng, self._rng.choice((CHAT, MESSAGES))
        said = in_chats_form(self._said, rng.choice((None, 1))) if path == CHAT else in_anthropics_form(self._said)
        tools = TOOLS["chat" if path == CHAT else "anthropic"]
        body = asks(messages=said, tools=tools, stream=rng.random() < 0.5)
        ways: list[Callable[..., Any]] = [self._once, self._again, self._together, self._lost, self._given_up]
        found = rng.choice(ways)(path, body)
        self.received += map(number_of, found)
        answer = rng.choice(found)
        results = [{"role": "tool", "tool_call_id": call["id"]} for call in answer.get("tool_calls", ())]
        self._said = [*self._said, answer, *({**each, "content": f"result {rng.random()}"} for each in results)]
        if not results or rng.random() < 0.3:
            self._said.append({"role": "user", "content": f"more {rng.random()}"})
        if rng.random() < 0.3:
            asked = [number for number, each in enumerate(self._said) if each["role"] == "user"]
            self._said = self._said[: rng.choice(asked) + 1]

    def _post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        headers = {"Content-Type": "application/json", **headers}
        response = self._found.client(self.session).post(path, content=json.dumps(body), headers=headers)
        assert response.status_code == 200, response.text
        return response

    def _once(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        if path == CHAT and not body["stream"]:
            body = {**body, "n": 2}
        return answers_in(self._post(path, body))

    def _again(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """A repeated request with the marker has the same answer."""
        first, second = self._post(path, body), self._post(path, body, **RETRIED)
        assert first.content == second.content
        return answers_in(second)

    def _together(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Requests at the same time have an answer each, and so has a further one."""
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(self._post, path, body) for _ in range(2)]
            responses = [*(each.result() for each in waiting), self._post(path, body)]
        found = [answer for each in responses for answer in answers_in(each)]
        assert len(set(map(number_of, found))) == 3
        return found

    def _lost(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """A connection is lost in mid-answer; the request comes again, with or without the marker, before or after its end."""
        engine, headers = self._found.engine, self._rng.choice(({}, RETRIED))
        self._leave(path, body)
        if self._rng.random() < 0.5:
            num = self.session.counts["answers"]
            engine.go.set()
            until(lambda: self.session.counts["answers"] == num + 1, self._patience)
            return answers_in(self._post(path, body, **headers))
        num = self.session.counts["retried"]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(self._post, path, body, **headers)
            try:
                until(lambda: self.session.counts["retried"] == num + 1, self._patience)
            finally:
                engine.go.set()
            return answers_in(waiting.result())

    def _given_up(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """A connection is lost, and the answer is cancelled; the same request has another one."""
        num, limits = self.session.counts["undelivered"], self.session.limits
        self.session.limits = dataclasses.replace(limits, grace_seconds=0.0)
        self._leave(path, body)
        until(lambda: self.session.counts["undelivered"] == num + 1, self._patience)
        assert not self._found.engine.num_held, "it is sampled no longer"
        self.session.limits = limits
        self._found.engine.go.set()
        return answers_in(self._post(path, body, **self._rng.choice(({}, RETRIED))))

    def _leave(self, path: str, body: dict[str, Any]) -> None:
        """Sends the request, and closes the connection when some tokens are sampled."""
        engine, data = self._found.engine, json.dumps(body).encode()
        engine.go.clear()
        engine.hold_after = self._rng.randrange(1, 12)
        url = urlsplit(self.session.client.base_url)
        head = f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nX-Api-Key: {self.session.client.api_key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection((url.hostname, url.port)) as connection:
            connection.sendall(head.encode() + data)
            until(lambda: engine.num_held == 1)


def play(found: Place, writer: Writer, seed: int, patience: float = 20.0) -> None:
    """Plays one session and compares what it trains with what its client has. `patience`: seconds for each thing to happen."""
    agent = Agent(found, seed, patience)
    found.engine.go.set()
    for _ in range(NUM_STEPS):
        agent.step()
    asyncio.run(agent.session.close())
    trajectory = Trajectory(Task(task_id="t", prompt="", answer=""), [0])
    agent.session.answers.graph.fill(trajectory)
    trained: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for segment in trajectory.segments:
        for span in segment.spans:
            if span.kind is SpanKind.SAMPLED and all(segment.loss_mask[span.start : span.end]):
                trained[tuple(segment.token_ids[: span.start]), tuple(segment.token_ids[span.start : span.end])] += 1
    assert len(agent.received) == len(set(agent.received))
    assert trained == Counter(found.engine.calls[writer.episodes[number]] for number in agent.received)
    assert agent.session.failure == "" and agent.session.idle_seconds > 0


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Place, Writer]]:
    writer = Writer()
    with place(writer) as found:
        yield found, writer


def test_each_delivered_answer_is_trained_exactly_once(world):
    for seed in range(NUM_SESSIONS):
        play(*world, seed)


LEAVE = Exchange.leave
WRONG: list[tuple[type, str, Any]] = [
    (Session, "_same", lambda *_, **__: None),  # a retry is sampled anew
    (Exchange, "leave", lambda self, *given: setattr(self, "is_delivered", True) or LEAVE(self, *given)),
    (Exchange, "deliver", lambda self: None),
]


@pytest.mark.parametrize(("where", "name", "mutant"), WRONG)
def test_a_wrong_gateway_is_found(where, name, mutant, world, monkeypatch):
    monkeypatch.setattr(where, name, mutant)
    with pytest.raises(AssertionError):
        for seed in range(NUM_SESSIONS):
            play(*world, seed, patience=1.0)
