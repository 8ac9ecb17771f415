"""A gateway whose engine waits where a test wants it to; clients; and what a session would train."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from playing import chat_policy

from midthought.config import InferenceConfig
from midthought.engines.engine import Sampling, Stopper
from midthought.engines.generation import BaseInferenceEngine
from midthought.engines.scripted import LOGPROB, Script, ScriptedEngine, byte_tokenizer
from midthought.errors import EngineError
from midthought.rollout.turn_graph import TurnNode
from midthought.serve.chat_policy import ChatPolicy
from midthought.serve.gateway import Gateway
from midthought.serve.sessions import Session, SessionLimits
from midthought.tokenization import Renderer
from midthought.types import Completion, Finish, Task, Trajectory

ANSWER = "</think> The answer."
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
NAME = "policy"
_TLS = ssl.create_default_context()
"""Made once: it reads the certificates for 30 ms."""


class HeldEngine(ScriptedEngine):
    """Writes token by token. After `hold_after` tokens waits for `go` or another `hold_after`; after `fails_after` it fails."""

    def __init__(self, script: Script, renderer: Renderer) -> None:
        super().__init__(script, renderer)
        self.hold_after: int | None = None
        self.fails_after: int | None = None
        self.is_interrupted = False
        """An answer that is held returns what it has, as engines do for a weight update."""
        self.go = threading.Event()
        self.num_held = 0
        self.sampled: list[tuple[int, ...]] = []
        """Tokens of every call that ended."""
        self.calls: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """Prompt and tokens of the last call of each episode."""

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        written: list[int] = []
        finish, version = Finish.LENGTH, self.policy_version
        while len(written) < sampling.max_tokens:
            if len(written) == self.fails_after:
                raise EngineError("the engine broke")
            if len(written) == self.hold_after and not self.go.is_set():
                await self._hold(len(written))
                if self.is_interrupted:
                    break
            token_id = self._next_token(episode, [*token_ids, *written])
            written.append(token_id)
            if token_id in self.eos_token_ids:
                finish = Finish.END
                break
            if stopper is not None and stopper.feed(token_id):
                finish = Finish.CALL
                break
        self.sampled.append(tuple(written))
        self.calls[episode] = tuple(token_ids), tuple(written)
        logprobs = (LOGPROB,) * len(written)
        return Completion(token_ids=tuple(written), sampled_logprobs=logprobs, finish=finish, policy_version=version)

    async def _hold(self, num_written: int) -> None:
        self.num_held += 1
        try:
            while not self.go.is_set() and self.hold_after == num_written:
                await asyncio.sleep(0.001)
        finally:
            self.num_held -= 1


def answers_with(text: str) -> Script:
    """A script that writes the text as every answer."""
    started: set[int] = set()

    def write(episode: int, token_ids: Sequence[int]) -> str | None:
        if episode in started:
            return None
        started.add(episode)
        return text

    return write


@dataclass(kw_only=True)
class Place:
    """A gateway with one policy."""

    engine: HeldEngine
    gateway: Gateway
    policy: ChatPolicy
    start: Callable[[Any], Any]
    engine_shutdown: Callable[[], None]
    clients: list[httpx.Client] = field(default_factory=list)

    def open(self, seed: int = 0) -> Session:
        return self.gateway.open_session(self.policy, seed=seed, start=self.start)

    def client(self, session: Session, *, control: bool = False) -> httpx.Client:
        key = session.client.control_key if control else session.client.api_key
        headers = {"Authorization": f"Bearer {key}"}
        self.clients.append(
            httpx.Client(base_url=session.client.anthropic_base_url, headers=headers, timeout=30, verify=_TLS)
        )
        return self.clients[-1]

    def trained(self, session: Session) -> list[TurnNode]:
        """Closes the session; returns the answers that are trained."""
        asyncio.run(session.close())
        trajectory = Trajectory(Task(task_id="t", prompt="", answer=""), [0])
        nodes: list[TurnNode] = session.answers.graph.fill(trajectory)
        return nodes


@contextlib.contextmanager
def place(
    script: Script | None = None, *, max_seq_len: int = 4000, inference: InferenceConfig | None = None, **limits: Any
) -> Iterator[Place]:
    """Serves a scripted policy with `#call` in its thoughts."""
    renderer = Renderer(byte_tokenizer())
    core = HeldEngine(answers_with(ANSWER) if script is None else script, renderer)
    engine = BaseInferenceEngine(core, renderer)
    inference = inference or InferenceConfig(max_tokens=1000)
    policy = chat_policy(core, renderer, max_seq_len=max_seq_len, inference=inference)
    gateway = Gateway(NAME, limits=SessionLimits(**limits))
    made = Place(engine=core, gateway=gateway, policy=policy, start=engine.start, engine_shutdown=engine.shutdown)
    try:
        yield made
    finally:
        core.go.set()
        for client in made.clients:
            client.close()
        gateway.close()
        engine.shutdown()


def asks(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A request that both dialects read."""
    return {"model": NAME, "messages": [{"role": "user", "content": text}], "max_tokens": 500, **fields}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, to its end."""
    return [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]


def streamed_text(found: Sequence[dict[str, Any]]) -> str:
    """The text of an answer in events of either dialect."""
    chat = "".join(choice["delta"].get("content") or "" for each in found for choice in each.get("choices", ()))
    return chat + "".join(each["delta"].get("text", "") for each in found if each.get("type") == "content_block_delta")


def texts(response: httpx.Response) -> list[str]:
    """The answers in a response of either dialect, whole or a stream with one answer."""
    if response.headers["content-type"] != "application/json":
        return [streamed_text(events(response))]
    body = response.json()
    if "choices" in body:
        return [choice["message"]["content"] or "" for choice in body["choices"]]
    return ["".join(block.get("text", "") for block in body["content"])]


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits until it is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)
