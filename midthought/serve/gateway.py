"""The gateway: the endpoint on loopback, in a thread of this process, with a session for each episode of an agent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import resource
import secrets
import threading
from collections.abc import Awaitable
from typing import Any

from midthought.config.references import require_installed
from midthought.rollout.turn_graph import TurnGraph
from midthought.serve.chat_answer import ChatAnswers
from midthought.serve.chat_policy import ChatPolicy
from midthought.serve.exchange import Start
from midthought.serve.sessions import AgentClient, Session, SessionLimits, Sessions
from midthought.tools.background_loop import BackgroundLoop

HOST = "127.0.0.1"
"""Agents on other machines cannot reach it."""
STOP_SECONDS = 1
"""Time for requests in progress when the gateway closes."""
MAX_FILES = 65_536
"""Open files that this process may have, if the system allows it: a session with an agent in this process needs two."""


class Gateway:
    """Serves policies in training under one name. The server starts with the first session.

    Raises `MissingExtraError` without the extra `serve`.
    """

    def __init__(self, name: str, *, limits: SessionLimits | None = None) -> None:
        require_installed("serve", "fastapi", "uvicorn")
        self.name = name
        self.sessions = Sessions()
        self._limits = limits
        self._lock = threading.Lock()
        self._loop = BackgroundLoop("midthought-gateway")
        self._server: Any = None

    def open_session(self, policy: ChatPolicy, *, seed: int, start: Start) -> Session:
        """Returns a session whose answers are sampled as `policy.inference` says; `start` starts coroutines on the engine's event
        loop. Any thread may call it."""
        url, session_id = self._url(), secrets.token_hex(8)
        client = AgentClient(
            base_url=f"{url}/v1",
            anthropic_base_url=url,
            api_key=self.sessions.key("model", session_id),
            control_key=self.sessions.key("control", session_id),
            model=self.name,
        )
        answers = ChatAnswers(policy, TurnGraph(), seed=seed)

        def close() -> Awaitable[None]:
            return asyncio.wrap_future(self._loop.start(self.sessions.close(session)))

        session = Session(answers, start, client, session_id=session_id, limits=self._limits, close=close)
        self.sessions.add(session)
        return session

    def close(self) -> None:
        """Ends all sessions and stops the server. A later session starts it again."""
        with self._lock:
            if self._server is not None:
                self._loop.run(self.sessions.close_all())
                self._server.should_exit = True
                concurrent.futures.wait([self._serving], 3 * STOP_SECONDS)
                self._loop.close()
            self._server = None

    def _url(self) -> str:
        from midthought.memory.service.auth import AccessPolicy
        from midthought.memory.service.server import address, listen, make_server
        from midthought.serve.app import make_app

        with self._lock:
            if self._server is None:
                _allow_files()
                listening = listen(HOST, 0)
                app = make_app(self.sessions, AccessPolicy(host=HOST, knows=self.sessions.knows))
                self._server = make_server(app, max_connections=None, stop_seconds=STOP_SECONDS)
                self._server.config.lifespan = "off"  # uvicorn prints a traceback if the loop ends before the server
                self._address = address(listening)
                self._serving = self._loop.start(self._server.serve([listening]))
            return self._address


def _allow_files() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    number, maximum = (limit % 2**63 for limit in limits)  # -1 is no limit
    with contextlib.suppress(OSError, ValueError):  # the system allows fewer
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(number, min(maximum, MAX_FILES)), limits[1]))
