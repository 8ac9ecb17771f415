"""The service's routes: requests to searches, hits to responses. Does not depend on addresses, tokens or processes."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from midthought.memory.service import schemas
from midthought.memory.service.auth import AccessPolicy, SecurityMiddleware
from midthought.memory.service.searcher import BusyError, ServiceState
from midthought.types import Task

_REFUSALS = {
    400: "not JSON",
    401: "no token",
    404: "there is none",
    408: "too slow",
    413: "too large",
    415: "wrong content type",
    422: "not valid",
    429: "too busy",
}
_DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Refusal, "description": words} for status, words in _REFUSALS.items()
}
_MAX_PROBLEMS = 5
_VERSION = importlib.metadata.version("midthought")


def make_app(
    state: ServiceState, access: AccessPolicy, *, body_seconds: float = 10.0, answer_seconds: float = 30.0
) -> SecurityMiddleware:
    """Returns the whole service as an ASGI application."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        state.searcher.close()

    app = FastAPI(
        title="midthought memory",
        description="Searches a podcast memory: what was said, by whom, in which episode and when.",
        version=_VERSION,
        docs_url=None,  # their pages load scripts from other hosts
        redoc_url=None,
        lifespan=lifespan,
        responses=_DOCUMENTED,
    )
    app.add_exception_handler(RequestValidationError, _invalid)
    _add_routes(app, state)
    return SecurityMiddleware(
        app, access, max_body_bytes=schemas.MAX_BODY_BYTES, body_seconds=body_seconds, answer_seconds=answer_seconds
    )


def _add_routes(app: FastAPI, state: ServiceState) -> None:
    @app.post("/search")
    async def search(asked: schemas.Query) -> schemas.Found:
        """The best `k` chunks for a query, best first."""
        started = time.perf_counter()
        try:
            hits = await state.searcher.search(asked.query, asked.k, asked.mode, asked.filters())
        except BusyError as error:
            raise HTTPException(429, str(error), {"Retry-After": "1"}) from None
        return schemas.Found(hits=hits, seconds=time.perf_counter() - started)

    @app.post("/chunks")
    async def chunks(asked: schemas.Ids) -> schemas.Chunks:
        """Chunks by their ids, in the order of the request; unknown ids are left out."""
        found = await state.searcher.run(functools.partial(state.store.get, asked.ids))
        return schemas.Chunks(chunks=[found[chunk_id] for chunk_id in dict.fromkeys(asked.ids) if chunk_id in found])

    @app.post("/qa/batch")
    async def qa_batch(asked: schemas.QuestionChoice) -> schemas.QuestionBatch:
        """Questions with their answers, sampled with a seed, or the first ones."""
        if not state.questions:
            raise HTTPException(404, "this memory has no questions; generate some with 'midthought memory questions'")
        taken, seed = state.sample(asked.size, shuffle=asked.shuffle, seed=asked.seed)
        return schemas.QuestionBatch(questions=list(map(_question, taken)), seed=seed)

    @app.get("/episodes")
    async def episodes() -> dict[str, int]:
        """The episodes with their numbers of chunks, ordered by name."""
        return state.episodes

    @app.get("/speakers")
    async def speakers() -> dict[str, int]:
        """The speakers with their numbers of chunks, ordered by name."""
        return state.speakers

    @app.get("/stats")
    async def stats() -> schemas.Stats:
        """The size of the memory, and the limits of a search."""
        name, dimension = state.embedding or (None, None)
        return schemas.Stats(
            table=state.store.table,
            num_chunks=state.num_chunks,
            num_episodes=len(state.episodes),
            num_speakers=len(state.speakers),
            num_questions=len(state.questions),
            embedding_model=name,
            embedding_dimension=dimension,
            version=_VERSION,
        )

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Health check; needs no token."""
        return {"status": "ok"}


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Returns one sentence about what is invalid. Does not repeat the request: some of it may not be encodable."""
    assert isinstance(error, RequestValidationError)
    problems = []
    for problem in error.errors()[:_MAX_PROBLEMS]:
        place = ".".join(str(part)[:50] for part in problem["loc"] if part not in ("body", "query"))
        words = problem["msg"].removeprefix("Value error, ")
        problems.append(f"{place}: {words}" if place else words)
    detail = "; ".join(problems).encode(errors="replace").decode()
    is_no_json = any(problem["type"] == "json_invalid" for problem in error.errors())
    return JSONResponse({"detail": detail}, 400 if is_no_json else 422)


def _question(task: Task) -> schemas.Question:
    return schemas.Question(
        id=task.task_id,
        question=task.prompt,
        answer=task.answer,
        episode=str(task.labels.get("episode", "")),
        evidence=list(task.evidence),
        labels=json.loads(json.dumps(dict(task.labels), default=str)),
    )
