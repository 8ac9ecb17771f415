"""The endpoint's routes: requests to conversations, answers to responses or streams. Does not depend on addresses or keys."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from midthought.engines.generation import BaseInferenceEngine
from midthought.errors import DataError, SettingsError
from midthought.memory.service.auth import AccessPolicy
from midthought.memory.service.middleware import SecurityMiddleware
from midthought.serve.answer_stream import Piece
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.dialects import CHAT
from midthought.serve.dialects.chat import MAX_SEED
from midthought.serve.dialects.dialect import MAX_BODY_BYTES, Asked

ANSWER_SECONDS = 1800.0
"""Time limit of a response."""
MAX_ANSWERS = 512
"""Answers in progress; further requests are refused with status 429."""

_log = logging.getLogger(__name__)


class ChatService:
    """A policy on an engine, under a name. The engine's event loop computes; that of the server only passes text on."""

    def __init__(
        self, engine: BaseInferenceEngine, answers: ChatAnswers, name: str, *, max_answers: int = MAX_ANSWERS
    ) -> None:
        self.name = name
        self.renderer = answers.policy.renderer
        self._engine, self._answers, self._max_answers = engine, answers, max_answers
        self._num_answers = 0
        self._created = int(time.time())

    def model(self) -> dict[str, Any]:
        """Returns the entry in `/v1/models`."""
        return CHAT.model(self.name, self._created, self._answers.policy.max_seq_len)

    @contextlib.contextmanager
    def admitted(self, num_answers: int) -> Any:
        """Counts answers while they are in progress. Raises `HTTPException` 429 if there are too many."""
        if self._num_answers + num_answers > self._max_answers:
            words = f"{self._num_answers} answers are in progress, at most {self._max_answers} may be; try again later"
            raise HTTPException(429, words, {"Retry-After": "1"})
        self._num_answers += num_answers
        try:
            yield
        finally:
            self._num_answers -= num_answers

    async def answer(
        self, request: ChatRequest, queue: asyncio.Queue[Any] | None = None, number: int = 0
    ) -> ChatAnswer:
        """Returns an answer; `queue` gets (number, piece) as they arrive. Cancelling cancels the sampling."""
        loop = asyncio.get_running_loop()

        def on_piece(piece: Piece) -> None:
            if queue is not None:
                loop.call_soon_threadsafe(queue.put_nowait, (number, piece))

        return await asyncio.wrap_future(self._engine.start(self._answers.answer(request, on_piece)))


def make_app(
    service: ChatService, access: AccessPolicy, *, answer_seconds: float = ANSWER_SECONDS
) -> SecurityMiddleware:
    """Returns the whole endpoint as an ASGI application."""
    return SecurityMiddleware(
        make_routes(service),
        access,
        max_body_bytes=MAX_BODY_BYTES,
        answer_seconds=answer_seconds,
        error_body=CHAT.error,
    )


def make_routes(service: ChatService) -> FastAPI:
    """Returns the routes, without the security middleware."""
    app = FastAPI(title="midthought", docs_url=None, redoc_url=None)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(DataError, _wrong)
    app.add_exception_handler(SettingsError, _wrong)
    app.add_exception_handler(Exception, _wrong)  # raised again afterwards, for the log

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return CHAT.models([service.model()])

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        _require_model(service, name)
        return service.model()

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        asked = CHAT.read(await request.body(), training=False, renderer=service.renderer)
        _require_model(service, asked.model)
        seed = secrets.randbelow(MAX_SEED)
        requests = [
            dataclasses.replace(each, seed=seed + number) if each.seed is None else each
            for number, each in enumerate(asked.requests)
        ]
        if asked.stream:
            return await _streamed(service, requests, asked)
        with service.admitted(len(requests)):
            answers = await _unless_gone(request, _all(service, requests))
        return JSONResponse(asked.writer.whole(answers))

    return app


async def _all(service: ChatService, requests: Sequence[ChatRequest]) -> list[ChatAnswer]:
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(service.answer(request)) for request in requests]
    return [each.result() for each in running]


async def _unless_gone(request: Request, work: Any) -> list[ChatAnswer]:
    """Returns the result of `work`, which is cancelled if the client closes the connection."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.receive())  # the body has been read: the next message is the end
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(499, "the client has closed the connection")
        return working.result()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        leaving.cancel()
        working.cancel()


async def _streamed(service: ChatService, requests: Sequence[ChatRequest], asked: Asked) -> Response:
    """Starts the answers, and returns the stream when the first text or the first error has arrived: an error then has its
    status."""
    stack = contextlib.ExitStack()
    stack.enter_context(service.admitted(len(requests)))
    queue: asyncio.Queue[Any] = asyncio.Queue()
    running = [asyncio.ensure_future(service.answer(each, queue, number)) for number, each in enumerate(requests)]
    for number, each in enumerate(running):
        each.add_done_callback(functools.partial(_report, queue, number))
        stack.callback(each.cancel)
    try:
        first = await queue.get()
        if isinstance(first[1], asyncio.Future):
            first[1].result()
    except BaseException:
        stack.close()
        raise

    return _Stream(_events(queue, first, running, asked), stack)


def _report(queue: asyncio.Queue[Any], number: int, done: asyncio.Future[ChatAnswer]) -> None:
    queue.put_nowait((number, done))


class _Stream(StreamingResponse):
    """A stream of events; its end, also by the client, closes `stack`."""

    def __init__(self, events: AsyncIterator[bytes], stack: contextlib.ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._stack = stack

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._stack:
            await super().__call__(scope, receive, send)


async def _events(
    queue: asyncio.Queue[Any], first: tuple[int, Any], running: Sequence[asyncio.Future[ChatAnswer]], asked: Asked
) -> AsyncIterator[bytes]:
    yield asked.writer.begin()
    answers: dict[int, ChatAnswer] = {}
    number, found = first
    while True:
        if isinstance(found, Piece):
            yield asked.writer.piece(number, found)
        else:
            try:
                answers[number] = found.result()
            except Exception as error:
                failure = CHAT.failure(error)
                if failure.status >= 500:
                    _log.error("an answer failed in its stream", exc_info=error)
                yield asked.writer.error(failure)
                return
            yield asked.writer.end(number, answers[number])
        if len(answers) == len(running):
            break
        number, found = await queue.get()
    yield asked.writer.close([answers[number] for number in sorted(answers)])


# -- errors ------------------------------------------------------------------------------------------------------


def _require_model(service: ChatService, name: str) -> None:
    if name != service.name:
        raise HTTPException(404, f"there is no model {name!r:.200}; this server has {service.name!r}")


async def _wrong(request: Request, error: Exception) -> JSONResponse:
    failure = CHAT.failure(error)
    body = CHAT.error(failure.status, str(failure), param=failure.param, code=failure.code)
    return JSONResponse(body, failure.status)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    code = "model_not_found" if error.status_code == 404 and request.url.path.startswith("/v1/") else None
    return JSONResponse(CHAT.error(error.status_code, str(error.detail), code=code), error.status_code, error.headers)
