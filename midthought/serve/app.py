"""The endpoint's routes: requests to conversations, answers to responses or streams. Does not depend on addresses or keys."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from midthought.engines.generation import BaseInferenceEngine
from midthought.errors import DataError, SettingsError
from midthought.memory.service.auth import AccessPolicy
from midthought.memory.service.middleware import SecurityMiddleware
from midthought.serve.answer_stream import Piece
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.openai_chat import MAX_BODY_BYTES, MAX_SEED, ChatCompletionRequest, Completion, error_body

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
        length = self._answers.policy.max_seq_len
        return {
            "id": self.name,
            "object": "model",
            "created": self._created,
            "owned_by": "midthought",
            "max_model_len": length,
        }

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
        error_body=error_body,
    )


def make_routes(service: ChatService) -> FastAPI:
    """Returns the routes, without the security middleware."""
    app = FastAPI(title="midthought", docs_url=None, redoc_url=None)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(DataError, _wrong)
    app.add_exception_handler(SettingsError, _wrong)
    app.add_exception_handler(Exception, _wrong)  # raised again afterwards, for the log

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [service.model()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        _require_model(service, name)
        return service.model()

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/chat/completions")
    async def chat_completions(asked: ChatCompletionRequest, request: Request) -> Response:
        _require_model(service, asked.model)
        requests = asked.requests(secrets.randbelow(MAX_SEED))
        completion = Completion(
            asked.model, service.renderer, logprobs=bool(asked.logprobs), token_ids=asked.return_token_ids
        )
        if asked.stream:
            return await _streamed(service, requests, completion, asked)
        with service.admitted(len(requests)):
            answers = await _unless_gone(request, _all(service, requests))
        return JSONResponse(completion.whole(answers))

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


async def _streamed(
    service: ChatService, requests: Sequence[ChatRequest], completion: Completion, asked: ChatCompletionRequest
) -> Response:
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

    async def events() -> AsyncIterator[str]:
        async for chunk in _chunks(queue, first, running, completion, asked):
            yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
        yield "data: [DONE]\n\n"

    return _Stream(events(), stack)


def _report(queue: asyncio.Queue[Any], number: int, done: asyncio.Future[ChatAnswer]) -> None:
    queue.put_nowait((number, done))


class _Stream(StreamingResponse):
    """A stream of events; its end, also by the client, closes `stack`."""

    def __init__(self, events: AsyncIterator[str], stack: contextlib.ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._stack = stack

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._stack:
            await super().__call__(scope, receive, send)


async def _chunks(
    queue: asyncio.Queue[Any],
    first: tuple[int, Any],
    running: Sequence[asyncio.Future[ChatAnswer]],
    completion: Completion,
    asked: ChatCompletionRequest,
) -> AsyncIterator[dict[str, Any]]:
    for number in range(len(running)):
        yield completion.first(number)
    answers: dict[int, ChatAnswer] = {}
    number, found = first
    while True:
        if isinstance(found, Piece):
            yield completion.piece(number, found)
        else:
            try:
                answers[number] = found.result()
            except Exception as error:
                status, body = _error_of(error)
                if status >= 500:
                    _log.error("an answer failed in its stream", exc_info=error)
                yield body
                return
            for chunk in completion.last(number, answers[number]):
                yield chunk
        if len(answers) == len(running):
            break
        number, found = await queue.get()
    if asked.stream_options is not None and asked.stream_options.include_usage:
        yield completion.total([answers[number] for number in sorted(answers)])


# -- errors ------------------------------------------------------------------------------------------------------


def _require_model(service: ChatService, name: str) -> None:
    if name != service.name:
        raise HTTPException(404, f"there is no model {name!r:.200}; this server has {service.name!r}")


def _error_of(error: Exception) -> tuple[int, dict[str, Any]]:
    if isinstance(error, DataError | SettingsError):
        is_long = "a sequence may have" in str(error)
        return 400, error_body(400, str(error), param="messages", code="context_length_exceeded" if is_long else None)
    return 500, error_body(500, "internal error; see the server's log")


async def _wrong(request: Request, error: Exception) -> JSONResponse:
    status, body = _error_of(error)
    return JSONResponse(body, status)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    code = "model_not_found" if error.status_code == 404 and request.url.path.startswith("/v1/") else None
    return JSONResponse(error_body(error.status_code, str(error.detail), code=code), error.status_code, error.headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Returns one sentence about the first thing that is wrong. Does not repeat the request."""
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    where = () if problem["type"] == "json_invalid" else problem["loc"]  # a position in the text
    place = ".".join(str(part)[:50] for part in where if part != "body")
    words = {
        "json_invalid": "the body is not JSON",
        "extra_forbidden": f"the parameter {place!r} is not supported; leave it out",
        "missing": f"the parameter {place!r} is missing" if place else "the body is missing",
    }.get(problem["type"], f"{place}: {problem['msg']}")
    return JSONResponse(error_body(400, words.encode(errors="replace").decode(), param=place or None), 400)
