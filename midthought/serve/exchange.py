"""One request and its answers. The engine's event loop samples them; here they are written once, and every connection follows
them from the start, so that a client that lost its connection gets the same answer again.

Does not depend on keys, routes or the form of a dialect. Everything but `_sample` and `_post` runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from midthought.errors import EngineError
from midthought.rollout.turn_graph import TurnNode
from midthought.serve.answer_stream import Piece
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.dialects.dialect import Asked, Dialect
from midthought.serve.errors import RequestError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

KEEP_ALIVE_SECONDS = 10.0
"""A stream without a new event for this long gets an empty one, so that no proxy closes the connection."""

WRITE_SECONDS = 0.03
"""Pieces of a stream are collected for this long after the last write, and written together."""

Start = Callable[[Coroutine[Any, Any, Any]], "concurrent.futures.Future[Any]"]
"""Starts a coroutine on the engine's event loop."""

_log = logging.getLogger(__name__)


class Exchange:
    """Samples the answers of a request, and keeps what is written of them. `on_end` is called when they are whole, have failed or
    were cancelled."""

    def __init__(
        self,
        dialect: Dialect,
        asked: Asked,
        digest: bytes,
        answers: ChatAnswers,
        start: Start,
        on_end: Callable[[Exchange], None],
    ) -> None:
        self.asked, self.digest = asked, digest
        self.answers: dict[int, ChatAnswer] = {}
        """Finished answers by the number of their choice, until all are."""
        self.nodes: list[TurnNode] = []
        self.parts: list[bytes] = []
        """The events of a stream so far, or the whole body."""
        self.failure: RequestError | None = None
        """The error that the client gets because of `cause`."""
        self.cause: BaseException | None = None
        self.is_over = self.is_delivered = self.is_cancelled = False
        self._told: RequestError | None = None
        self.ended = asyncio.Event()
        self.left_at = 0.0
        """Time of the latest end of a connection."""
        self._dialect, self._on_end = dialect, on_end
        self._followers: set[asyncio.Event] = set()
        self._grace: asyncio.TimerHandle | None = None
        self._inbox: deque[tuple[int, Piece]] = deque()
        self._is_reading = False
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        try:
            future = start(self._sample(answers))
        except EngineError as error:  # it was shut down
            future = concurrent.futures.Future()
            future.set_exception(error)
        future.add_done_callback(lambda future: self._loop.call_soon_threadsafe(self._end, future))

    @property
    def is_followed(self) -> bool:
        """Whether a connection waits for it."""
        return bool(self._followers)

    def join(self, changed: asyncio.Event) -> None:
        """A connection follows; `changed` is set whenever there is more to send."""
        self._followers.add(changed)
        if self._grace is not None:
            self._grace.cancel()

    def leave(self, changed: asyncio.Event, grace_seconds: float) -> None:
        """A connection ends. Without any, the answers are cancelled after the grace time."""
        changed.set()
        self._followers.discard(changed)
        self.left_at = time.monotonic()
        if not self._followers and not self.is_over:
            self._grace = self._loop.call_later(grace_seconds, self.cancel)

    def begin(self) -> None:
        """Writes the first events of a stream."""
        if self.asked.stream and not self.parts:
            self.parts.append(self.asked.writer.begin())

    def deliver(self) -> None:
        """The last bytes were written to a socket."""
        if self.failure is None and not self.is_cancelled:
            self.is_delivered = True
            for node in self.nodes:
                node.is_delivered = True

    def cancel(self, failure: RequestError | None = None) -> None:
        """Stops sampling; what was not delivered will not be. `failure`: the error that connections get."""
        self.is_cancelled = True
        self._told = failure or RequestError("the answer was cancelled", status=500)
        if self._task is not None and not self.is_over:
            with contextlib.suppress(RuntimeError):  # the engine's event loop is closed
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    # -- on the engine's event loop ---------------------------------------------------------------------------

    async def _sample(self, answers: ChatAnswers) -> None:
        async def one(number: int, request: ChatRequest) -> None:
            self.answers[number] = await answers.answer(request, functools.partial(self._post, number))

        self._task = asyncio.current_task()
        if self.is_cancelled:
            raise asyncio.CancelledError
        try:
            async with asyncio.TaskGroup() as group:
                for number, request in enumerate(self.asked.requests):
                    group.create_task(one(number, request))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _post(self, number: int, piece: Piece) -> None:
        """Passes a piece of a stream on to the server's event loop."""
        if self.asked.stream:
            self._inbox.append((number, piece))
            if not self._is_reading:
                self._is_reading = True
                self._loop.call_soon_threadsafe(self._read_inbox)

    # -- on the server's event loop ---------------------------------------------------------------------------

    def _read_inbox(self) -> None:
        self._is_reading = False  # before it looks: a piece that comes later is read by another call
        if self._inbox:
            self._is_reading = True
            self._loop.call_later(WRITE_SECONDS, self._read_inbox)
            self._write_pieces()

    def _write_pieces(self) -> None:
        while self._inbox:
            self._write(self.asked.writer.piece, *self._inbox.popleft())
        for changed in self._followers:
            changed.set()

    def _write(self, write: Callable[..., bytes], *given: Any) -> None:
        """Writes a part, unless an earlier one could not be written."""
        if self.cause is None:
            try:
                self.begin()
                self.parts.append(write(*given))
            except Exception as error:
                self.cause = error

    def _ending(self, answers: Sequence[ChatAnswer]) -> bytes:
        """Returns the whole body, or the last events of a stream: together, because some clients stop reading at the first."""
        writer = self.asked.writer
        if not self.asked.stream:
            return to_json(writer.whole(answers))
        return b"".join([*itertools.starmap(writer.end, enumerate(answers)), writer.close(answers)])

    def _end(self, future: concurrent.futures.Future[None]) -> None:
        self._write_pieces()
        self.is_over, writer = True, self.asked.writer
        error = None if future.cancelled() else future.exception()
        if self.is_cancelled:
            self.failure = self._told
        elif error is not None or len(self.answers) < len(self.asked.requests):
            self.cause = error or EngineError("the engine cancelled an answer")
        else:
            answers = [self.answers[number] for number in range(len(self.answers))]
            self._write(self._ending, answers)
            self.nodes = [answer.node for answer in answers]
        if self.failure is None and self.cause is not None:
            self.failure = failure_of(self.cause, self._dialect)
        if self.failure is not None and self.parts:
            self.parts.append(writer.error(self.failure))
        self._on_end(self)
        self.answers = {}  # the conversation is not needed any more
        self.asked = dataclasses.replace(self.asked, requests=())
        self.ended.set()


class Following:
    """The response of a connection that follows an exchange."""

    def __init__(self, exchange: Exchange, grace_seconds: float) -> None:
        self._exchange, self._grace_seconds = exchange, grace_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends what the exchange writes. Raises `RequestError` if it failed before anything was sent."""
        changed = asyncio.Event()
        leaving = asyncio.ensure_future(receive())  # the body has been read: the next message is the end
        leaving.add_done_callback(lambda _: self._exchange.leave(changed, self._grace_seconds))
        self._exchange.join(changed)
        try:
            await self._follow(changed, leaving, send)
        finally:
            leaving.cancel()

    async def _follow(self, changed: asyncio.Event, leaving: asyncio.Future[Any], send: Send) -> None:
        exchange, num_sent, is_stream = self._exchange, 0, self._exchange.asked.stream
        while not leaving.done():
            changed.clear()
            if exchange.is_over:
                await _notice_the_end()
            parts = exchange.parts[num_sent:]
            if leaving.done():
                return
            if parts:
                if not num_sent:
                    await send(_start(is_stream, parts))
                num_sent += len(parts)
                await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
            elif exchange.failure is not None:
                raise exchange.failure
            if exchange.is_over and num_sent == len(exchange.parts) and not leaving.done():
                exchange.deliver()  # before anything else runs here: the client may close its session at once
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await changed.wait()
            except TimeoutError:
                if is_stream and num_sent:
                    silence = exchange.asked.writer.keep_alive()
                    await send({"type": "http.response.body", "body": silence, "more_body": True})
                elif is_stream:
                    exchange.begin()


async def _notice_the_end() -> None:
    """Lets the event loop read what has arrived: an answer is not delivered to a connection that the client has closed."""
    for _ in range(4):  # socket, transport, protocol, task
        await asyncio.sleep(0)


def _start(is_stream: bool, parts: list[bytes]) -> dict[str, Any]:
    kind = b"text/event-stream; charset=utf-8" if is_stream else b"application/json"
    length = [] if is_stream else [(b"content-length", b"%d" % sum(map(len, parts)))]
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind), *length]}


def to_json(value: Any) -> bytes:
    """Returns the value as JSON."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def failure_of(error: BaseException, dialect: Dialect) -> RequestError:
    """Returns the error for the client. An error of the server (status 500) is logged, and its text is not sent."""
    failure = dialect.failure(error)
    if failure.status >= 500:
        _log.error("a request was not answered", exc_info=error)
    return failure
