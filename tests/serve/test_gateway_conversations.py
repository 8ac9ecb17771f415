"""Random conversations over HTTP: whatever clients repeat, lose, ask at the same time or ask in another dialect, each answer that
was delivered is trained exactly once, on the tokens that the engine saw."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

pytest.importorskip("fastapi", reason="the serve extra is not installed")

from held_engine import CHAT, MESSAGES, NAME, Place, place, until

from midthought.engines.scripted import byte_tokenizer
from midthought.tokenization import Renderer
from midthought.types import SpanKind, Task, Trajectory

NUM_SESSIONS, NUM_STEPS = 100, 6
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "word": {"type": "string"}}}
RETRIED = {"x-stainless-retry-count": "1"}


class Writer:
    """The policy's script: every answer has its number in its text or in the arguments of its call."""

    def __init__(self) -> None:
        self.episodes: dict[int, int] = {}
        """Number in the engine of each answer."""
        renderer = Renderer(byte_tokenizer())
        self._ids = [renderer.control(tag)[0] for tag in ("<think>", "</think>", "<|im_start|>")]
        self._numbers, self._seen = itertools.count(1), set[int]()

    def __call__(self, episode: int, token_ids: Sequence[int]) -> str | None:
        if episode in self._seen:
            return None
        self._seen.add(episode)
        number = next(self._numbers)
        self.episodes[number] = episode
        tags = [each for each in token_ids if each in self._ids]
        begin = "" if tags and tags[-1] == self._ids[0] else "<think>\n"
        if number % 3 == 0:
            return f'{begin}I look. #call look {{"word": "w", "n": {number}}}'
        return f"{begin}Thought {number}.\n</think>\n\nAnswer {number}."


Message = dict[str, Any]
"""In OpenAI's form."""


def body_of(path: str, said: Sequence[Message], *, stream: bool, indent: int | None) -> dict[str, Any]:
    function = {"name": "look", "description": "Looks."}
    body: dict[str, Any] = {"model": NAME, "max_tokens": 300, "stream": stream}
    if path == CHAT:
        tools = [{"type": "function", "function": {**function, "parameters": SCHEMA}}]
        return {**body, "tools": tools, "messages": [_indented(each, indent) for each in said]}
    messages: list[Message] = []
    for each in said:
        role, blocks = _blocks(each)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    return {**body, "tools": [{**function, "input_schema": SCHEMA}], "messages": messages}


def _indented(message: Message, indent: int | None) -> Message:
    calls = [
        {**call, "function": {"name": "look", "arguments": json.dumps(arguments_of(call), indent=indent)}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def arguments_of(call: dict[str, Any]) -> dict[str, Any]:
    return json.loads(call["function"]["arguments"])


def _blocks(message: Message) -> tuple[str, list[dict[str, Any]]]:
    if message["role"] == "tool":
        result = {"tool_use_id": message["tool_call_id"], "content": message["content"]}
        return "user", [{"type": "tool_result", **result}]
    blocks = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        blocks.append({"type": "tool_use", "id": call["id"], "name": "look", "input": arguments_of(call)})
    return message["role"], blocks


def answers_of(path: str, response: httpx.Response, *, stream: bool) -> list[Message]:
    """The answers in a whole response or in all events of a stream."""
    if not stream:
        body = response.json()
        return [choice["message"] for choice in body["choices"]] if path == CHAT else [_answer(body["content"])]
    found = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    if path == CHAT:
        deltas = [choice["delta"] for each in found for choice in each["choices"]]
        calls = [call for each in deltas for call in each.get("tool_calls") or ()]
        text = "".join(each.get("content") or "" for each in deltas)
        return [{"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}]
    blocks = [dict(each["content_block"]) for each in found if each["type"] == "content_block_start"]
    for each in found:
        if each["type"] == "content_block_delta":
            block, delta = blocks[each["index"]], each["delta"]
            block["text"] = block.get("text", "") + delta.get("text", "")
            block["json"] = block.get("json", "") + delta.get("partial_json", "")
    return [_answer([{**block, "input": json.loads(block.get("json") or "{}")} for block in blocks])]


def _answer(blocks: Sequence[dict[str, Any]]) -> Message:
    calls = [
        {"id": block["id"], "type": "function", "function": {"name": "look", "arguments": json.dumps(block["input"])}}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    text = "".join(block.get("text", "") for block in blocks)
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def number_of(answer: Message) -> int:
    if answer.get("tool_calls"):
        return int(arguments_of(answer["tool_calls"][0])["n"])
    return int(re.findall(r"Answer (\d+)\.", answer["content"])[0])


class Agent:
    """A random client of one session. `received`: numbers of the answers that it has in full, each once."""

    def __init__(self, found: Place, seed: int, patience: float) -> None:
        self.session = found.open(seed)
        self.received: list[int] = []
        self._found, self._rng, self._patience = found, random.Random(seed), patience
        self._said: list[Message] = [{"role": "user", "content": f"question {seed}"}]

    def step(self) -> None:
        """Asks in some way, and goes on from one of the answers or from an earlier place."""
        rng = self._rng
        path, stream = rng.choice((CHAT, MESSAGES)), rng.random() < 0.5
        body = body_of(path, self._said, stream=stream, indent=rng.choice((None, 1)))
        ways: list[Callable[..., list[Message]]] = [self._once, self._again, self._together, self._lost, self._given_up]
        found = rng.choice(ways)(path, body, stream)
        self.received += map(number_of, found)
        answer = rng.choice(found)
        self._said = [*self._said, answer]
        if calls := answer.get("tool_calls"):
            self._said.append({"role": "tool", "content": f"result {rng.random()}", "tool_call_id": calls[0]["id"]})
        if not calls or rng.random() < 0.3:
            self._said.append({"role": "user", "content": f"more {rng.random()}"})
        if rng.random() < 0.3:
            places = [n for n, said in enumerate(self._said) if said["role"] == "user"]
            self._said = self._said[: rng.choice(places) + 1]

    def _post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        headers = {"Content-Type": "application/json", **headers}
        response = self._found.client(self.session).post(path, content=json.dumps(body), headers=headers)
        assert response.status_code == 200, response.text
        return response

    def _once(self, path: str, body: dict[str, Any], stream: bool) -> list[Message]:
        if path == CHAT and not stream:
            body = {**body, "n": 2}
        return answers_of(path, self._post(path, body), stream=stream)

    def _again(self, path: str, body: dict[str, Any], stream: bool) -> list[Message]:
        """A repeated request with the marker has the same answer."""
        first, second = self._post(path, body), self._post(path, body, **RETRIED)
        assert first.content == second.content
        return answers_of(path, second, stream=stream)

    def _together(self, path: str, body: dict[str, Any], stream: bool) -> list[Message]:
        """Requests at the same time have an answer each, and so has a further one."""
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(self._post, path, body) for _ in range(2)]
            responses = [*(each.result() for each in waiting), self._post(path, body)]
        found = [answer for each in responses for answer in answers_of(path, each, stream=stream)]
        assert len(set(map(number_of, found))) == 3
        return found

    def _lost(self, path: str, body: dict[str, Any], stream: bool) -> list[Message]:
        """A connection is lost in mid-answer; the request comes again, with or without the marker, before or after its end."""
        engine, headers = self._found.engine, self._rng.choice(({}, RETRIED))
        self._leave(path, body)
        if self._rng.random() < 0.5:
            num = self.session.counts["answers"]
            engine.go.set()
            until(lambda: self.session.counts["answers"] == num + 1, self._patience)
            return answers_of(path, self._post(path, body, **headers), stream=stream)
        num = self.session.counts["retried"]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(self._post, path, body, **headers)
            try:
                until(lambda: self.session.counts["retried"] == num + 1, self._patience)
            finally:
                engine.go.set()
            return answers_of(path, waiting.result(), stream=stream)

    def _given_up(self, path: str, body: dict[str, Any], stream: bool) -> list[Message]:
        """A connection is lost, and the answer is cancelled; the same request has another one."""
        num, limits = self.session.counts["undelivered"], self.session.limits
        self.session.limits = dataclasses.replace(limits, grace_seconds=0.0)
        self._leave(path, body)
        until(lambda: self.session.counts["undelivered"] == num + 1, self._patience)
        self.session.limits = limits
        self._found.engine.go.set()
        return answers_of(path, self._post(path, body, **self._rng.choice(({}, RETRIED))), stream=stream)

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
def world():
    writer = Writer()
    with place(writer) as found:
        yield found, writer


def test_each_delivered_answer_is_trained_exactly_once(world):
    for seed in range(NUM_SESSIONS):
        play(*world, seed)
