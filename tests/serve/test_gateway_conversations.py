"""Random conversations over HTTP: whatever clients repeat, lose, ask at the same time or ask in another dialect, each answer that
was delivered is trained exactly once, on the tokens that the engine saw. Calls, and what else a client changes in a conversation:
`test_turn_graph.py`."""

from __future__ import annotations

import asyncio
import dataclasses
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

from held_engine import CHAT, MESSAGES, Place, asks, place, texts, until

from midthought.types import SpanKind, Task, Trajectory

NUM_SESSIONS, NUM_STEPS = 100, 6
RETRIED = {"x-stainless-retry-count": "1"}


class Writer:
    """The policy's script: every answer has its number in its text. `episodes`: number in the engine of each answer."""

    def __init__(self) -> None:
        self.episodes: dict[int, int] = {}
        self._seen: set[int] = set()

    def __call__(self, episode: int, token_ids: Sequence[int]) -> str | None:
        if episode in self._seen:
            return None
        self._seen.add(episode)
        number = len(self._seen)
        self.episodes[number] = episode
        return f"<think>\nThought {number}.\n</think>\n\nAnswer {number}."


class Agent:
    """A random client of one session. `received`: numbers of the answers that it has in full, each once."""

    def __init__(self, found: Place, seed: int) -> None:
        self.session = found.open(seed)
        self.received: list[int] = []
        self._found, self._rng = found, random.Random(seed)
        self._said = [{"role": "user", "content": f"question {seed}"}]

    def step(self) -> None:
        """Asks in some way, and goes on from one of the answers or from an earlier place."""
        rng = self._rng
        body = asks(messages=self._said, stream=rng.random() < 0.5)
        ways: list[Callable[..., list[str]]] = [self._once, self._again, self._together, self._lost, self._given_up]
        found = rng.choice(ways)(rng.choice((CHAT, MESSAGES)), body)
        self.received += [int(re.findall(r"Answer (\d+)\.", text)[0]) for text in found]
        answer = {"role": "assistant", "content": rng.choice(found)}
        self._said = [*self._said, answer, {"role": "user", "content": f"more {rng.random()}"}]
        if rng.random() < 0.3:
            self._said = self._said[: rng.randrange(1, len(self._said) + 1, 2)]

    def _post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        headers = {"Content-Type": "application/json", **headers}
        response = self._found.client(self.session).post(path, content=json.dumps(body), headers=headers)
        assert response.status_code == 200, response.text
        return response

    def _once(self, path: str, body: dict[str, Any]) -> list[str]:
        if path == CHAT and not body["stream"]:
            body = {**body, "n": 2}
        return texts(self._post(path, body))

    def _again(self, path: str, body: dict[str, Any]) -> list[str]:
        """A repeated request with the marker has the same answer."""
        first, second = self._post(path, body), self._post(path, body, **RETRIED)
        assert first.content == second.content
        return texts(second)

    def _together(self, path: str, body: dict[str, Any]) -> list[str]:
        """Requests at the same time have an answer each, and so has a further one."""
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(self._post, path, body) for _ in range(2)]
            responses = [*(each.result() for each in waiting), self._post(path, body)]
        found = [text for each in responses for text in texts(each)]
        assert len(set(found)) == 3
        return found

    def _lost(self, path: str, body: dict[str, Any]) -> list[str]:
        """A connection is lost in mid-answer; the request comes again, with or without the marker, before or after its end."""
        engine, headers = self._found.engine, self._rng.choice(({}, RETRIED))
        self._leave(path, body)
        if self._rng.random() < 0.5:
            num = self.session.counts["answers"]
            engine.go.set()
            until(lambda: self.session.counts["answers"] == num + 1)
            return texts(self._post(path, body, **headers))
        num = self.session.counts["retried"]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(self._post, path, body, **headers)
            try:
                until(lambda: self.session.counts["retried"] == num + 1)
            finally:
                engine.go.set()
            return texts(waiting.result())

    def _given_up(self, path: str, body: dict[str, Any]) -> list[str]:
        """A connection is lost, and the answer is cancelled; the same request has another one."""
        num, limits = self.session.counts["undelivered"], self.session.limits
        self.session.limits = dataclasses.replace(limits, grace_seconds=0.0)
        self._leave(path, body)
        until(lambda: self.session.counts["undelivered"] == num + 1)
        self.session.limits = limits
        self._found.engine.go.set()
        return texts(self._post(path, body, **self._rng.choice(({}, RETRIED))))

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


def play(found: Place, writer: Writer, seed: int) -> None:
    """Plays one session and compares what it trains with what its client has."""
    agent = Agent(found, seed)
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


def test_each_delivered_answer_is_trained_exactly_once():
    writer = Writer()
    with place(writer) as found:
        for seed in range(NUM_SESSIONS):
            play(found, writer, seed)
