"""The service's routes: requests to searches, hits to responses. Does not depend on addresses, tokens or processes."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from midthought.memory.service import schemas
from midthought.memory.service.auth import AccessPolicy
from midthought.memory.service.browse import sample
from midthought.memory.service.middleware import SecurityMiddleware
from midthought.memory.service.searcher import BusyError
from midthought.memory.service.state import FOLLOW_SECONDS, ServiceState
from midthought.types import Task

_REFUSALS = {
    400: "not JSON",
    401: "no token",
    408: "too slow",
    413: "too large",
    415: "wrong content type",
    422: "not valid",
}
_DOCUMENTED = {status: {"model": schemas.Refusal, "description": words} for status, words in _REFUSALS.items()}
_MAX_PROBLEMS = 5
_VERSION = importlib.metadata.version("midthought")


def make_app(
    state: ServiceState,
    access: AccessPolicy,
    *,
    body_seconds: float = 10.0,
    answer_seconds: float = 30.0,
    follow_seconds: float | None = FOLLOW_SECONDS,
) -> SecurityMiddleware:
    """Returns the whole service as an ASGI application. `follow_seconds` None: the memory is served as it is now."""
    return SecurityMiddleware(
        make_routes(state, follow_seconds),
        access,
        max_body_bytes=schemas.MAX_BODY_BYTES,
        body_seconds=body_seconds,
        answer_seconds=answer_seconds,
    )


def make_routes(state: ServiceState, follow_seconds: float | None = None) -> FastAPI:
    """Returns the routes, without the security middleware."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(state.poll(follow_seconds)) if follow_seconds else None
        yield
        if following:
            following.cancel()
        state.searcher.close()

    app = FastAPI(
        title="midthought memory",
        description="Searches a podcast memory: what was said, by whom, in which episode and when.",
        version=_VERSION,
        docs_url=None,  # their pages load scripts from other hosts
        redoc_url=None,
        lifespan=lifespan,
        responses=_DOCUMENTED,  # type: ignore[arg-type]
    )
    app.add_exception_handler(RequestValidationError, _invalid)
    for router in (_search_routes(state), _browse_routes(state), _question_routes(state), _service_routes(state)):
        app.include_router(router)
    return app


def _search_routes(state: ServiceState) -> APIRouter:
    router = APIRouter(tags=["search"], responses=_refusal(429, "too busy"))

    @router.post("/search")
    async def search(asked: schemas.Query) -> schemas.Found:
        """The best `k` chunks for a query, best first."""
        started = time.perf_counter()
        try:
            hits = await state.searcher.search(asked.query, asked.k, asked.mode, asked.filters(), asked.thought)
        except BusyError as error:
            raise HTTPException(429, str(error), {"Retry-After": "1"}) from None
        return schemas.Found(hits=hits, seconds=time.perf_counter() - started)

    return router


def _browse_routes(state: ServiceState) -> APIRouter:
    router = APIRouter(tags=["browse"])
    store, run = state.store, state.searcher.run

    @router.post("/chunks")
    async def chunks(asked: schemas.Ids) -> schemas.Chunks:
        """Chunks by their ids, in the order of the request; unknown ids are left out."""
        found = await run(functools.partial(store.get, asked.ids))
        return schemas.Chunks(chunks=[found[chunk_id] for chunk_id in dict.fromkeys(asked.ids) if chunk_id in found])

    @router.get("/episodes")
    async def episodes() -> dict[str, int]:
        """The episodes with their numbers of chunks, ordered by name."""
        return dict(state.facets.episodes)

    @router.get("/speakers")
    async def speakers() -> dict[str, int]:
        """The speakers with their numbers of chunks, ordered by name."""
        return dict(state.facets.speakers)

    return router


def _question_routes(state: ServiceState) -> APIRouter:
    router = APIRouter(tags=["questions"])

    @router.post("/qa/batch", responses=_refusal(404, "the memory has no questions"))
    async def qa_batch(asked: schemas.QuestionChoice) -> schemas.QuestionBatch:
        """Questions with their answers, sampled with a seed, or the first ones."""
        if not state.questions:
            raise HTTPException(404, "this memory has no questions; generate some with 'midthought memory questions'")
        taken, seed = sample(state.questions, **asked.model_dump())
        return schemas.QuestionBatch(questions=list(map(_question, taken)), seed=seed)

    return router


def _service_routes(state: ServiceState) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get("/stats")
    async def stats() -> schemas.Stats:
        """The size of the memory, and the limits of a search."""
        facets = state.facets
        name, dimension = facets.embedding or (None, None)
        return schemas.Stats(
            table=state.store.table,
            num_chunks=facets.num_chunks,
            num_episodes=len(facets.episodes),
            num_speakers=len(facets.speakers),
            num_questions=len(state.questions),
            embedding_model=name,
            embedding_dimension=dimension,
            version=_VERSION,
        )

    @router.get("/healthz")
    async def healthz() -> schemas.Health:
        """Health check; needs no token."""
        return schemas.Health()

    return router


def _refusal(status: int, words: str) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": schemas.Refusal, "description": words}}


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Returns one sentence about what is invalid. Does not repeat the request: some of it may not be encodable."""
    assert isinstance(error, RequestValidationError)
    problems = []
    for problem in error.errors()[:_MAX_PROBLEMS]:
        place = ".".join(str(part)[:50] for part in problem["loc"] if part not in ("body", "query"))
        words = problem["msg"].removeprefix("Value error, ")
        problems.append(f"{place}: {words}" if place else words)
    detail = "; ".join(problems).encode(errors="replace").decode()
    return JSONResponse({"detail": detail}, 400 if "json_invalid" in _kinds(error) else 422)


def _kinds(error: RequestValidationError) -> set[str]:
    return {problem["type"] for problem in error.errors()}


def _question(task: Task) -> schemas.Question:
    return schemas.Question(
        id=task.task_id,
        question=task.prompt,
        answer=task.answer,
        episode=str(task.labels.get("episode", "")),
        evidence=list(task.evidence),
        labels=json.loads(json.dumps(dict(task.labels), default=str)),
    )
