"""The service's routes: requests to searches, hits to responses. Does not depend on addresses, tokens or processes."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from midthought.memory.service import schemas
from midthought.memory.service.auth import AccessPolicy
from midthought.memory.service.browse import neighbours, page
from midthought.memory.service.metrics import CONTENT_TYPE
from midthought.memory.service.middleware import SecurityMiddleware
from midthought.memory.service.searcher import BusyError, Searcher
from midthought.memory.service.state import FOLLOW_SECONDS, ServiceState
from midthought.types import Task

_PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
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

Letters = Annotated[schemas.Name, Query(description="Only names that contain this text, ignoring case.")]
Offset = Annotated[int, Query(ge=0, le=schemas.MAX_OFFSET)]
Limit = Annotated[int, Query(ge=1, le=schemas.MAX_PAGE)]
Neighbours = Annotated[int, Query(ge=0, le=schemas.MAX_NEIGHBOURS)]


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
        observe=state.metrics.count_request,
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
    folder = resources.files("midthought.memory.service") / "page"
    for path, (name, media_type) in _PAGE.items():
        endpoint = functools.partial(_static, (folder / name).read_bytes(), media_type)
        app.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False)
    return app


def _search_routes(state: ServiceState) -> APIRouter:
    router = APIRouter(tags=["search"], responses=_refusal(429, "too busy"))

    @router.post("/search")
    async def search(asked: schemas.Query) -> schemas.Found:
        """The best `k` chunks for a query, best first."""
        started = time.perf_counter()
        hits = await _search(state.searcher, [asked.query], asked, [asked.thought])
        return schemas.Found(hits=hits[0], seconds=time.perf_counter() - started)

    @router.post("/search/batch")
    async def search_batch(asked: schemas.QueryBatch) -> schemas.FoundBatch:
        """The best `k` chunks for each of several queries."""
        started = time.perf_counter()
        results = await _search(state.searcher, asked.queries, asked)
        return schemas.FoundBatch(results=results, seconds=time.perf_counter() - started)

    return router


def _browse_routes(state: ServiceState) -> APIRouter:
    router = APIRouter(tags=["browse"])
    store, run = state.store, state.searcher.run

    @router.post("/chunks")
    async def chunks(asked: schemas.Ids) -> schemas.Chunks:
        """Chunks by their ids, in the order of the request; unknown ids are left out."""
        found = await run(functools.partial(store.get, asked.ids))
        return schemas.Chunks(chunks=[found[chunk_id] for chunk_id in dict.fromkeys(asked.ids) if chunk_id in found])

    @router.get("/context", responses=_refusal(404, "no such chunk"))
    async def context(id: schemas.Name, before: Neighbours = 2, after: Neighbours = 2) -> schemas.Context:
        """A chunk with its neighbours in its episode."""
        found = await run(functools.partial(neighbours, store, id, before, after))
        if found is None:
            raise HTTPException(404, "there is no chunk with this id")
        return schemas.Context(chunks=found[0], position=found[1])

    @router.get("/episodes")
    async def episodes(contains: Letters = "", offset: Offset = 0, limit: Limit = 200) -> schemas.CountedPage:
        """The episodes with their numbers of chunks, ordered by name."""
        return _counted(*page(state.facets.episodes, contains, offset, limit))

    @router.get("/speakers")
    async def speakers(contains: Letters = "", offset: Offset = 0, limit: Limit = 200) -> schemas.CountedPage:
        """The speakers with their numbers of chunks, ordered by name."""
        return _counted(*page(state.facets.speakers, contains, offset, limit))

    return router


def _question_routes(state: ServiceState) -> APIRouter:
    router = APIRouter(tags=["questions"])

    @router.post("/qa/batch", responses=_refusal(404, "the memory has no questions"))
    async def qa_batch(asked: schemas.QuestionChoice) -> schemas.QuestionBatch:
        """Questions with their answers, sampled with a seed or in order."""
        questions = state.questions
        if not len(questions):
            raise HTTPException(404, "this memory has no questions; generate some with 'midthought memory questions'")
        taken, num_available, seed = await state.searcher.run(functools.partial(questions.take, **asked.model_dump()))
        return schemas.QuestionBatch(
            questions=[_question(task, questions.episode_of(task)) for task in taken],
            num_available=num_available,
            seed=seed,
        )

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

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(state.metrics.render(), headers={"content-type": CONTENT_TYPE})

    return router


def _refusal(status: int, words: str) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": schemas.Refusal, "description": words}}


async def _search(
    searcher: Searcher,
    queries: list[str],
    asked: schemas.Query | schemas.QueryBatch,
    thoughts: Sequence[str] = (),
) -> list[list[schemas.Hit]]:
    try:
        return await searcher.search(queries, asked.k, asked.mode, asked.filters(), thoughts)
    except BusyError as error:
        raise HTTPException(429, str(error), {"Retry-After": "1"}) from None


async def _static(body: bytes, media_type: str) -> Response:
    return Response(body, headers={"content-type": media_type})


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


def _counted(found: list[tuple[str, int]], num_available: int) -> schemas.CountedPage:
    items = [schemas.Counted(name=name, num_chunks=count) for name, count in found]
    return schemas.CountedPage(items=items, num_available=num_available)


def _question(task: Task, episode: str) -> schemas.Question:
    return schemas.Question(
        id=task.task_id,
        question=task.prompt,
        answer=task.answer,
        episode=episode,
        evidence=list(task.evidence),
        labels=json.loads(json.dumps(dict(task.labels), default=str)),
    )
