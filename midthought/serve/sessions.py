"""Sessions of the endpoint: the exchange that a repeated request finds again, rewards, limits, counts.

A session sees its own turn graph only. Does not depend on routes or the server; used on the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from midthought.rollout.turn_graph import TurnNode
from midthought.serve.chat_answer import ChatAnswers
from midthought.serve.chat_policy import ChatPolicy
from midthought.serve.dialects.dialect import Asked, Dialect
from midthought.serve.errors import RequestError
from midthought.serve.exchange import Exchange, Start

RETRY_SECONDS = 60.0
"""A finished exchange is found by the same request for this long after its last connection ended."""
MAX_REWARD = sys.float_info.max
STOP_SECONDS = 5.0
"""Time for cancelled answers to end."""
CLOSED = "session_closed"
"""Code of the error that a request to a closed session gets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionLimits:
    """Limits of one session."""

    max_answers: int = 64
    """Answers in progress; further requests get status 429."""
    max_requests: float = 10_000
    max_tokens: float = 16_000_000
    """Tokens of all answers and the context between them, which the session keeps."""
    grace_seconds: float = 5.0
    """An answer without a connection is cancelled after this time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentClient:
    """What an agent needs to reach its session."""

    base_url: str
    """Base URL of OpenAI's clients."""
    anthropic_base_url: str
    """Base URL of Anthropic's clients, which append /v1 themselves."""
    api_key: str = field(repr=False)
    control_key: str = field(repr=False)
    """Gives rewards, closes the session, reads its counts."""
    model: str

    def environ(self) -> dict[str, str]:
        """Returns the environment variables that the official clients read."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "ANTHROPIC_API_KEY": self.api_key,
        }


class Session:
    """Requests of one agent, or, of `midthought serve`, of everybody. `start` starts coroutines on the engine's event loop.

    `is_training`: the client's sampling options have no effect, and what is needed for rewards is kept. `close` closes it.
    """

    def __init__(
        self,
        answers: ChatAnswers,
        start: Start,
        *,
        model: str,
        url: str = "",
        is_training: bool = False,
        limits: SessionLimits | None = None,
        close: Callable[[Session], Awaitable[None]] | None = None,
    ) -> None:
        self.answers, self.start, self.is_training = answers, start, is_training
        self.limits = limits or SessionLimits()
        self.id = secrets.token_hex(8)
        self.client = AgentClient(
            base_url=f"{url}/v1",
            anthropic_base_url=url,
            api_key=f"mt-model-{secrets.token_urlsafe(32)}",
            control_key=f"mt-control-{secrets.token_urlsafe(32)}",
            model=model,
        )
        self.counts: Counter[str] = Counter()
        self.overridden: set[str] = set()
        """Sampling options that the client has set without effect."""
        self.reward: float | None = None
        """Reward of the whole session that was posted."""
        self.is_closed = False
        self._close = close
        self._exchanges: list[Exchange] = []
        self._failures: dict[bytes, str] = {}
        self._nodes: dict[str, list[TurnNode]] = {}
        """Answers by the id of their response."""
        self._num_running = self._num_tokens = 0
        self._last_active = time.monotonic()

    @property
    def failure(self) -> str:
        """The first error of the server or the engine for which a request has no answer, also not when it was sent again."""
        return next(iter(self._failures.values()), "")

    @property
    def idle_seconds(self) -> float:
        """Time since the latest request or answer; 0 while an answer is in progress."""
        return 0.0 if self._num_running else time.monotonic() - self._last_active

    def exchange(self, dialect: Dialect, path: str, body: bytes, *, is_retry: bool) -> Exchange:
        """Returns the exchange of a request: that of the same request whose answer was not received, or a new one.

        `is_retry`: the client says that it has sent the request before. Raises `RequestError`, `DataError`, `SettingsError`.
        """
        self._last_active = now = time.monotonic()
        self._exchanges = [
            each
            for each in self._exchanges
            if not each.is_over or each.is_followed or now - each.left_at < RETRY_SECONDS
        ]
        digest = hashlib.blake2b(path.encode() + b"\n" + body, digest_size=16).digest()
        if (found := self._same(digest, is_retry=is_retry)) is not None:
            self.counts["retried"] += 1
            return found
        asked = dialect.read(body, training=self.is_training, renderer=self.answers.policy.renderer)
        self.require_model(asked.model)
        self._admit(len(asked.requests))
        exchange = Exchange(dialect, asked, digest, self.answers, self.start, self._ended)
        self._exchanges.append(exchange)
        self._num_running += len(asked.requests)
        self._count(asked)
        return exchange

    def _same(self, digest: bytes, *, is_retry: bool) -> Exchange | None:
        """Returns the exchange that a request repeats: one without a connection, or, if the client says so, any. None: it is a
        request of its own, or repeats one that failed."""
        same = [each for each in self._exchanges if each.digest == digest]
        failed = [each for each in same if each.is_cancelled or each.failure is not None]
        waiting = [each for each in same if not each.is_delivered and each not in failed]
        if lost := [each for each in waiting if not each.is_followed]:
            return lost[0]
        if failed:
            self._exchanges.remove(failed[0])
            return None
        return (waiting or same)[-1] if is_retry and same else None

    def require_model(self, name: str) -> None:
        """Raises `RequestError` 404 if the model has another name."""
        if name != self.client.model:
            words = f"there is no model {name!r:.200}; this server has {self.client.model!r}"
            raise RequestError(words, status=404, param="model", code="model_not_found")

    def give_reward(self, reward: Any, response_id: Any = None) -> None:
        """Sets the reward of the session, or of one answer. Raises `RequestError`."""
        is_number = isinstance(reward, int | float) and not isinstance(reward, bool)
        if not is_number or not abs(reward) <= MAX_REWARD:
            raise RequestError(f"the reward {reward!r:.80} is no finite number", param="reward")
        if response_id is None:
            if self.reward is not None:
                raise RequestError(f"the session has its reward already: {self.reward:g}", param="reward")
            self.reward = float(reward)
            return
        nodes = self._nodes.get(response_id) if isinstance(response_id, str) else None
        if nodes is None or len(nodes) != 1:
            words = f"there is no response {response_id!r:.80} with one answer in this session"
            raise RequestError(words, param="response_id")
        if nodes[0].reward is not None:
            words = f"the answer {response_id!r} has its reward already: {nodes[0].reward:g}"
            raise RequestError(words, param="response_id")
        nodes[0].reward = float(reward)

    async def close(self) -> None:
        """Ends the session, on any event loop. What a client has received is marked as delivered when this returns."""
        assert self._close is not None, "a shared session is not closed"
        await self._close(self)

    async def end(self) -> None:
        """Ends the session: nothing is delivered any more; answers in progress are cancelled and awaited."""
        self.is_closed = True
        ending = list(self._exchanges)
        for exchange in ending:
            exchange.cancel(closed())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                for exchange in ending:
                    await exchange.ended.wait()
        nodes = (node for nodes in self._nodes.values() for node in nodes)
        self.counts["undelivered"] += sum(not node.is_delivered for node in nodes)
        self._exchanges, self._nodes = [], {}

    def _admit(self, num_answers: int) -> None:
        limits = self.limits
        if self._num_running + num_answers > limits.max_answers:
            words = f"{self._num_running} answers are in progress, at most {limits.max_answers} may be; try again later"
            raise RequestError(words, status=429)
        if self.counts["requests"] >= limits.max_requests or self._num_tokens >= limits.max_tokens:
            raise RequestError(
                f"the session has had {self.counts['requests']} requests and {self._num_tokens} tokens; at most "
                f"{limits.max_requests:g} requests and {limits.max_tokens:g} tokens are allowed",
                status=403,
            )

    def _count(self, asked: Asked) -> None:
        self.counts["requests"] += 1
        self.counts["overridden"] += bool(asked.overridden)
        self.counts["response_format"] += asked.has_response_format
        self.overridden.update(asked.overridden)

    def _ended(self, exchange: Exchange) -> None:
        self._last_active = time.monotonic()
        self._num_running -= len(exchange.asked.requests)
        answers, asked = list(exchange.answers.values()), exchange.asked
        self.counts["answers"] += len(answers)
        self.counts["continued"] += sum(answer.node.parent is not None for answer in answers)
        has_answer = any(message["role"] == "assistant" for message in asked.requests[0].messages)
        self.counts["continuable"] += has_answer * len(answers)
        self._num_tokens += sum(len(answer.node.record.token_ids) for answer in answers)
        if (name := asked.required_tool) is not None:
            self.counts["required"] += len(answers)
            self.counts["required_missed"] += sum(
                not any(name in ("", call.name) for call in answer.calls) for answer in answers
            )
        if not self.is_training:
            return
        self._nodes[asked.writer.response_id] = [answer.node for answer in answers]
        if (failure := exchange.failure) is None:
            self._failures.pop(exchange.digest, None)
            return
        if exchange.is_cancelled:
            self.counts["undelivered"] += len(asked.requests) - len(answers)
        elif failure.status >= 500:
            self.counts["failed"] += 1
            self._failures.setdefault(exchange.digest, f"{type(exchange.cause).__name__}: {exchange.cause}")


def closed() -> RequestError:
    """Returns the error of every request to a session that is closed."""
    return RequestError("this session is closed; each episode has its own key, client.api_key", status=403, code=CLOSED)


def shared_session(policy: ChatPolicy, start: Start, model: str, *, max_answers: int = 512) -> Session:
    """Returns the session of `midthought serve`, which has no end: the client's sampling options are used, and the oldest
    conversations are forgotten."""
    limits = SessionLimits(
        max_answers=max_answers, max_requests=float("inf"), max_tokens=float("inf"), grace_seconds=0.0
    )
    return Session(ChatAnswers(policy), start, model=model, limits=limits)
