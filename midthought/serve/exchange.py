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
import json
import math
import operator
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from midthought.errors import EngineError
from midthought.rollout.turn_graph import TurnNode
from midthought.serve.answer_stream import Piece
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.dialects.dialect import Asked, Dialect, RequestError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

KEEP_ALIVE_SECONDS = 10.0
"""A stream without a new event for this long gets an empty one, so that no proxy closes the connection."""

WRITE_SECONDS = 0.03
"""Pieces of a stream are collected for this long after the last write, and written together."""

Start = Callable[[Coroutine[Any, Any, Any]], "concurrent.futures.Future[Any]"]
"""Starts a coroutine on the engine's event loop."""


class Exchange:
    """Samples the answers of a request and keeps what is written of them; an ASGI application that sends it to a connection.
    Raises `EngineError` if the engine was shut down.

    `grace_seconds`: without a connection for this long, the answers are cancelled. `on_end` is called when they are whole, have
    failed or were cancelled.
    """

    def __init__(
        self,
        dialect: Dialect,
        asked: Asked,
        digest: bytes,
        answers: ChatAnswers,
        start: Start,
        grace_seconds: float,
        on_end: Callable[[Exchange], None],
    ) -> None:
        self.asked, self.digest = asked, digest
        self.answers: list[ChatAnswer] = []
        """The answers, while `on_end` is called."""
        self.failure: RequestError | None = None
        """The error that the client gets because of `cause`; without one, because it was cancelled."""
        self.cause: BaseException | None = None
        self.is_over = self.is_delivered = False
        self.ended = asyncio.Event()
        self.num_connections = 0
        self.left_at = math.inf
        """Time of the end of the last connection; infinite while there is one."""
        self._parts: list[bytes] = []
        """The events of a stream so far, or the whole body."""
        self._nodes: list[TurnNode] = []
        self._num_prompt = 0
        """Tokens of the prompt; 0 until they are known."""
        self._dialect, self._grace_seconds, self._on_end = dialect, grace_seconds, on_end
        self._changed = asyncio.Event()
        """Set, and replaced, when there is more to send."""
        self._grace: asyncio.TimerHandle | None = None
        self._inbox: deque[tuple[int, Piece]] = deque()
        self._is_reading = False
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        future = start(self._sample(answers))
        future.add_done_callback(lambda future: self._loop.call_soon_threadsafe(self._end, future))

    def cancel(self, failure: RequestError | None = None) -> None:
        """Stops sampling; what was not delivered will not be. `failure`: the error that connections get."""
        self.failure = failure or RequestError("the answer was cancelled", status=500)
        if self._task is not None and not self.is_over:
            with contextlib.suppress(RuntimeError):  # the engine's event loop is closed
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    # -- on the engine's event loop ---------------------------------------------------------------------------

    async def _sample(self, answers: ChatAnswers) -> None:
        def answer(number: int, request: ChatRequest) -> Coroutine[Any, Any, ChatAnswer]:
            post = functools.partial(self._post, number)
            return answers.answer(request, post, functools.partial(setattr, self, "_num_prompt"))

        self._task = asyncio.current_task()
        if self.failure is not None:
            raise asyncio.CancelledError
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(answer(*each)) for each in enumerate(self.asked.requests)]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        self.answers = [task.result() for task in tasks]

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
        if self._inbox and not self.is_over:  # a cancelled answer may go on for a moment
            self._is_reading = True
            self._loop.call_later(WRITE_SECONDS, self._read_inbox)
            self._write_pieces()

    def _write_pieces(self) -> None:
        """Writes what has arrived; a piece and those that continue it are one event."""
        parts: list[tuple[int, Piece, list[str]]] = []
        arrived = [self._inbox.popleft() for _ in range(len(self._inbox))]
        for number, piece in sorted(arrived, key=operator.itemgetter(0)):
            if piece.is_new or not parts or parts[-1][0] != number:
                parts.append((number, piece, []))
            parts[-1][2].append(piece.text)
        for number, piece, texts in parts:
            self._write(self.asked.writer.piece, number, Piece(piece.kind, "".join(texts), piece.is_new))
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _write(self, write: Callable[..., bytes], *given: Any) -> None:
        """Writes a part, a stream's first event before the first one, unless an earlier one could not be written."""
        if self.cause is None:
            try:
                if self.asked.stream and not self._parts:
                    self._parts.append(self.asked.writer.begin(self._num_prompt))
                self._parts.append(write(*given))
            except Exception as error:
                self.cause = error

    def _ending(self, answers: Sequence[ChatAnswer]) -> bytes:
        """Returns the whole body, or the last events of a stream: together, because some clients stop reading at the first."""
        writer = self.asked.writer
        if self.asked.stream:
            return writer.end(answers)
        return json.dumps(writer.whole(answers), ensure_ascii=False).encode(errors="replace")

    def _end(self, future: concurrent.futures.Future[None]) -> None:
        self._write_pieces()
        self.is_over = True
        if self._grace is not None:
            self._grace.cancel()
        error = None if future.cancelled() else future.exception()
        if self.failure is None and not self.answers:
            self.cause = error or EngineError("the engine cancelled an answer")
        elif self.failure is None:
            self._write(self._ending, self.answers)
            self._nodes = [answer.node for answer in self.answers]
        if self.failure is None and self.cause is not None:
            self.failure = self._dialect.failure(self.cause)
        if self.failure is not None and self._parts:
            self._parts.append(self.asked.writer.error(self.failure))
        self._on_end(self)
        self.answers = []  # the conversation is not needed any more
        self.asked = dataclasses.replace(self.asked, requests=())
        self.ended.set()
        self._tell()

    # -- connections ------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends what is written, from its start. Raises `RequestError` if the answers failed before anything was sent."""
        self.num_connections += 1
        self.left_at = math.inf
        if self._grace is not None:
            self._grace.cancel()
        leaving = asyncio.ensure_future(receive())  # the body has been read: the next message is the end
        leaving.add_done_callback(self.leave)
        try:
            await self._follow(leaving, send)
        finally:
            leaving.cancel()

    def leave(self, leaving: asyncio.Future[Any]) -> None:
        """A connection ends."""
        self.num_connections -= 1
        if not self.num_connections:
            self.left_at = time.monotonic()
            self._grace = None if self.is_over else self._loop.call_later(self._grace_seconds, self.cancel)
        self._tell()

    async def _follow(self, leaving: asyncio.Future[Any], send: Send) -> None:
        num_sent, is_stream = 0, self.asked.stream
        while not leaving.done():
            changed = self._changed
            if self.is_over:
                await _notice_the_end()
            parts = self._parts[num_sent:]
            if leaving.done():
                return
            if parts:
                if not num_sent:
                    await send(_start(is_stream, parts))
                num_sent += len(parts)
                await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
            elif self.is_over and self.failure is not None:
                raise self.failure
            if self.is_over and num_sent == len(self._parts) and not leaving.done():
                self.deliver()  # before anything else runs here: the client may close its session at once
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await changed.wait()
            except TimeoutError:
                if is_stream and self._num_prompt and not self.is_over:
                    self._write(self.asked.writer.keep_alive)

    def deliver(self) -> None:
        """The last bytes are written to a socket."""
        if self.failure is None:
            self.is_delivered = True
            for node in self._nodes:
                node.is_delivered = True


async def _notice_the_end() -> None:
    """Lets the event loop read what has arrived: an answer is not delivered to a connection that the client has closed."""
    for _ in range(4):  # socket, transport, protocol, task
        await asyncio.sleep(0)


def _start(is_stream: bool, parts: list[bytes]) -> dict[str, Any]:
    kind = b"text/event-stream; charset=utf-8" if is_stream else b"application/json"
    length = [] if is_stream else [(b"content-length", b"%d" % sum(map(len, parts)))]
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind), *length]}
