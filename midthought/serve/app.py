"""The endpoint's routes: requests to exchanges, errors in the form of the client's dialect. Does not depend on addresses."""

from __future__ import annotations

import math
import time
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from midthought.memory.service.auth import AccessPolicy, SecurityMiddleware, tokens_of
from midthought.serve.chat_answer import ChatAnswers
from midthought.serve.chat_policy import ChatPolicy
from midthought.serve.dialects import dialect_of
from midthought.serve.dialects.dialect import MAX_BODY_BYTES, Dialect, Given, RequestError, model_entry, parsed
from midthought.serve.exchange import Start
from midthought.serve.sessions import AgentClient, KeyKind, Session, SessionLimits, Sessions

ANSWER_SECONDS = 1800.0
"""Time limit of a response."""
_HEADERS = {403: {"x-should-retry": "false"}, 429: {"retry-after": "1"}}
"""Headers of errors: the official clients repeat a request after 408, 409, 429 and 5xx, unless `x-should-retry` is false."""


def make_app(sessions: Sessions, access: AccessPolicy) -> ASGIApp:
    """Returns the whole endpoint as an ASGI application."""
    return SecurityMiddleware(
        ChatRoutes(sessions),
        access,
        max_body_bytes=MAX_BODY_BYTES,
        answer_seconds=ANSWER_SECONDS,
        error_body=lambda path, status, detail: dialect_of(path).error(RequestError(detail, status=status)),
    )


def make_shared_app(
    policy: ChatPolicy, start: Start, model: str, access: AccessPolicy, *, max_answers: int = 512
) -> ASGIApp:
    """Returns the endpoint of `midthought serve`: one session, which needs no key of its own and has no end. The client's
    sampling options are used, and the oldest conversations are forgotten."""
    limits = SessionLimits(max_answers=max_answers, max_requests=math.inf, max_tokens=math.inf, grace_seconds=0.0)
    return make_app(Sessions(Session(ChatAnswers(policy), start, AgentClient(model=model), limits=limits)), access)


class GivenReward(Given):
    """`POST /v1/session/reward`: of the session or, with the id of a response, of one answer."""

    reward: float = Field(allow_inf_nan=False)
    response_id: str | None = None


class ChatRoutes:
    """The routes, without the security middleware."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._created = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] == "lifespan":
            for _ in range(2):
                await send({"type": f"{(await receive())['type']}.complete"})
            return
        request = Request(scope, receive)
        path = scope["path"]
        dialect = dialect_of(path, request.headers)
        try:
            response = await self._respond(request, path, dialect)
            await response(scope, receive, send)
        except Exception as error:
            failed = dialect.failure(error)
            body, headers = dialect.error(failed), dict(_HEADERS.get(failed.status, {}))
            if "request_id" in body:
                headers["request-id"] = body["request_id"]
            await JSONResponse(body, failed.status, headers)(scope, receive, send)

    async def _respond(self, request: Request, path: str, dialect: Dialect) -> ASGIApp:
        match request.method, path:
            case "GET", "/healthz":
                return JSONResponse({"status": "ok"})
            case "POST", "/v1/chat/completions" | "/v1/messages":
                count = request.headers.get("x-stainless-retry-count", "").strip()
                body = await request.body()
                return self._session(request).exchange(dialect, path, body, is_retry=count not in ("", "0"))
            case "POST", "/v1/messages/count_tokens":
                num_tokens = await self._session(request).count_tokens(path, await request.body())
                return JSONResponse({"input_tokens": num_tokens})
            case "GET", "/v1/models":
                entry = self._model(self._session(request))
                ends = {"has_more": False, "first_id": entry["id"], "last_id": entry["id"]}
                return JSONResponse({"object": "list", "data": [entry], **ends})
            case "GET", _ if path.startswith("/v1/models/"):
                session = self._session(request)
                session.require_model(path.removeprefix("/v1/models/"))
                return JSONResponse(self._model(session))
            case "GET", "/v1/session":
                session = self._session(request, "control")
                return JSONResponse({"id": session.id, "reward": session.reward, "counts": dict(session.counts)})
            case "POST", "/v1/session/reward":
                session = self._session(request, "control")
                given = parsed(await request.body(), GivenReward, {})
                session.give_reward(given.reward, given.response_id)
                return JSONResponse({"rewarded": True})
            case "POST", "/v1/session/close":
                await self._session(request, "control").close()
                return JSONResponse({"closed": True})
        raise RequestError(
            f"{request.method} {path!r:.200} is no route of this server, which answers /v1/chat/completions and "
            "/v1/messages; a base URL of OpenAI's clients ends with /v1, that of Anthropic's does not",
            status=404,
        )

    def _session(self, request: Request, kind: KeyKind = "model") -> Session:
        return self._sessions.find(tokens_of(request.headers), kind)

    def _model(self, session: Session) -> dict[str, Any]:
        return model_entry(session.client.model, self._created, session.answers.policy.max_seq_len)
