"""Sessions of the endpoint: the exchange that a repeated request finds again, rewards, limits, counts; and their keys.

A session sees its own turn graph only. Does not depend on routes or the server; used on the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from midthought.rollout.turn_graph import TurnNode
from midthought.serve.chat_answer import ChatAnswers
from midthought.serve.dialects import ANTHROPIC
from midthought.serve.dialects.dialect import Dialect, RequestError
from midthought.serve.exchange import Exchange, Start

KeyKind = Literal["model", "control"]
RETRY_SECONDS = 60.0
"""A finished exchange is found by the same request for this long after its last connection ended."""
STOP_SECONDS = 5.0
"""Time for cancelled answers to end."""


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

    base_url: str = ""
    """Base URL of OpenAI's clients."""
    anthropic_base_url: str = ""
    """Base URL of Anthropic's clients, which append /v1 themselves."""
    api_key: str = field(default="", repr=False)
    control_key: str = field(default="", repr=False)
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

    `close` closes it, in training: the client's sampling options have no effect, and what is needed for rewards is kept.
    """

    def __init__(
        self,
        answers: ChatAnswers,
        start: Start,
        client: AgentClient,
        *,
        session_id: str = "",
        limits: SessionLimits | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.answers, self.start, self.client, self.is_training = answers, start, client, close is not None
        self.id, self.limits = session_id, limits or SessionLimits()
        self.counts: Counter[str] = Counter()
        self.overridden: set[str] = set()
        """Sampling options that the client has set without effect."""
        self.reward: float | None = None
        """Reward of the whole session that was posted."""
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

        `is_retry`: the client says that it has sent the request before. Raises `RequestError`.
        """
        self._last_active = now = time.monotonic()
        self._exchanges = [each for each in self._exchanges if not each.is_over or now - each.left_at < RETRY_SECONDS]
        digest = _digest(path, body)
        if (found := self._same(digest, is_retry=is_retry)) is not None:
            self.counts["retried"] += 1
            return found
        with self._noting(dialect, digest):
            asked = dialect.read(body, training=self.is_training, renderer=self.answers.policy.renderer)
            self.require_model(asked.model)
            self._admit(len(asked.requests))
            grace = self.limits.grace_seconds
            exchange = Exchange(dialect, asked, digest, self.answers, self.start, grace, self._ended)
        self._exchanges.append(exchange)
        self._num_running += len(asked.requests)
        self.counts["requests"] += 1
        self.counts["overridden"] += bool(asked.overridden)
        self.counts["response_format"] += asked.has_response_format
        self.overridden.update(asked.overridden)
        return exchange

    async def count_tokens(self, path: str, body: bytes) -> int:
        """Returns the number of tokens of the prompt of a request in Anthropic's form. Raises `RequestError`."""
        digest = _digest(path, body)
        with self._noting(ANTHROPIC, digest):
            asked = ANTHROPIC.read_count(body, training=self.is_training)
            self.require_model(asked.model)
            counting = self.start(self.answers.count_tokens(asked.requests[0]))
            num_tokens: int = await asyncio.wrap_future(counting)
        self._failures.pop(digest, None)
        return num_tokens

    @contextlib.contextmanager
    def _noting(self, dialect: Dialect, digest: bytes) -> Iterator[None]:
        """Raises an error in the block as the client reads it. One of ours is a failure of the session, not of the agent."""
        try:
            yield
        except Exception as error:
            failure = dialect.failure(error)
            self._note(digest, failure, error)
            raise failure from None

    def _note(self, digest: bytes, failure: RequestError, cause: BaseException | None) -> None:
        if self.is_training and failure.status >= 500:
            self.counts["failed"] += 1
            self._failures.setdefault(digest, f"{type(cause).__name__}: {cause}")

    def _same(self, digest: bytes, *, is_retry: bool) -> Exchange | None:
        """Returns the exchange that a request repeats: one without a connection, or, if the client says so, any. None: it is a
        request of its own, or repeats one that failed."""
        same = [each for each in self._exchanges if each.digest == digest]
        failed = [each for each in same if each.failure is not None]
        waiting = [each for each in same if not each.is_delivered and each not in failed]
        if lost := [each for each in waiting if not each.num_connections]:
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

    def give_reward(self, reward: float, response_id: str | None = None) -> None:
        """Sets the reward of the session, or of one answer. Raises `RequestError`."""
        nodes = self._nodes.get(response_id or "", [])
        if response_id is not None and len(nodes) != 1:
            words = f"there is no response {response_id!r:.80} with one answer in this session"
            raise RequestError(words, param="response_id")
        whose, rewarded = ("the session", self) if response_id is None else (f"the answer {response_id!r}", nodes[0])
        if rewarded.reward is not None:
            raise RequestError(f"{whose} has its reward already: {rewarded.reward:g}", param="reward")
        rewarded.reward = reward

    async def close(self) -> None:
        """Ends the session, on any event loop. What a client has received is marked as delivered when this returns."""
        assert self._close is not None, "a shared session is not closed"
        await self._close()

    async def end(self) -> None:
        """Ends the session: nothing is delivered any more; answers in progress are cancelled and awaited."""
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

    def _ended(self, exchange: Exchange) -> None:
        self._last_active = time.monotonic()
        self._num_running -= len(exchange.asked.requests)
        answers, asked, num = exchange.answers, exchange.asked, len(exchange.answers)
        num_continued = sum(answer.node.parent is not None for answer in answers)
        has_answer = any(message["role"] == "assistant" for message in asked.requests[0].messages)
        self.counts.update(answers=num, continued=num_continued, continuable=has_answer * num)
        self._num_tokens += sum(len(answer.node.record.token_ids) for answer in answers)
        if (name := asked.required_tool) is not None:
            num_called = sum(any(name in ("", call.name) for call in answer.calls) for answer in answers)
            self.counts.update(required=num, required_missed=num - num_called)
        if not self.is_training:
            return
        self._nodes[asked.writer.response_id] = [answer.node for answer in answers]
        if (failure := exchange.failure) is None:
            self._failures.pop(exchange.digest, None)
            return
        if exchange.cause is None:
            self.counts["undelivered"] += len(asked.requests) - len(answers)
        else:
            self._note(exchange.digest, failure, exchange.cause)


class Sessions:
    """Open sessions by their ids. `shared`: the only one, which needs no key of its own.

    A key holds the id of its session and a code that only this process can make, which is compared in constant time; nothing is
    kept of a closed session.
    """

    def __init__(self, shared: Session | None = None) -> None:
        self._shared = shared
        self._open: dict[str, Session] = {}
        self._secret = secrets.token_bytes(32)

    def key(self, kind: KeyKind, session_id: str) -> str:
        """Returns the key of a session with this id, which has no hyphen."""
        code = hmac.digest(self._secret, f"{kind} {session_id}".encode(), "sha256").hex()
        return f"mt-{kind}-{session_id}-{code}"

    def knows(self, key: str) -> bool:
        """Whether it is the key of a session, open or closed."""
        parts: Any = key.split("-")
        return len(parts) == 4 and hmac.compare_digest(key.encode(), self.key(parts[1], parts[2]).encode())

    def add(self, session: Session) -> None:
        """From now on the session is found by its keys."""
        self._open[session.id] = session

    def find(self, keys: Sequence[str], kind: KeyKind) -> Session:
        """Returns the session of the first key that is known. Raises `RequestError`: 401 if none is, 403 if the session is closed
        or it is the session's other key."""
        if self._shared is not None and kind == "model":
            return self._shared
        if (key := next(filter(self.knows, keys), None)) is None:
            raise RequestError("the key is not that of a session", status=401)
        _, found, session_id, _ = key.split("-")
        if session_id not in self._open:
            raise closed()
        if found != kind:
            raise RequestError(f"this needs the session's {kind} key, not its {found} key", status=403)
        return self._open[session_id]

    async def close(self, session: Session) -> None:
        """Ends a session; later requests with its keys get status 403."""
        self._open.pop(session.id, None)
        await session.end()

    async def close_all(self) -> None:
        """Ends all sessions."""
        await asyncio.gather(*map(self.close, list(self._open.values())))


def _digest(path: str, body: bytes) -> bytes:
    return hashlib.blake2b(path.encode() + b"\n" + body, digest_size=16).digest()


def closed() -> RequestError:
    """Returns the error of every request to a session that is closed."""
    words = "this session is closed; each episode has its own key, client.api_key"
    return RequestError(words, status=403, code="session_closed")
