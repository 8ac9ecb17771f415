"""What `midthought memory serve` does: opens a memory and serves it until it is told to end. Knows no command line."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from midthought.errors import MemoryStoreError, MissingExtraError, SettingsError
from midthought.memory.embedding import load_embedder
from midthought.memory.questions import read_questions
from midthought.memory.service.access import Access
from midthought.memory.service.catalogue import StoredQuestions
from midthought.memory.service.searcher import HandedVectors, Pace
from midthought.memory.store import MemoryStore

if TYPE_CHECKING:
    import uvicorn

    from midthought.memory.service.guard import App

MAX_CONNECTIONS = 1024
IDLE_SECONDS = 30
"""How long a connection without a request is kept."""
STOP_SECONDS = 30
"""How long requests in flight may take to be answered once the service is told to end."""


def serve(
    path: str,
    table: str = "transcripts",
    embedding_model: str = "minilm",
    *,
    questions: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8100,
    token_env: str | None = None,
    follow: bool = True,
    pace: Pace | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Serve the memory at `path` until SIGINT or SIGTERM; requests in flight are answered first.

    Questions are those of the file, else of the memory's own table `questions`. What builds write meanwhile is seen, unless
    `follow` is False.

    Raises SettingsError where the address is not loopback and no token is named, or cannot be listened on,
    MemoryStoreError where there is no memory, MissingExtraError without the extra `serve`.
    """
    access = Access.of(host, token_env)
    _require_extra()
    from midthought.memory.service.app import make_app
    from midthought.memory.service.parts import FOLLOW_SECONDS, Parts

    vectors = HandedVectors(load_embedder(embedding_model))
    store = MemoryStore.open(path, table, vectors)
    if not store.is_built:
        raise MemoryStoreError(f"{path}: there is no memory (table {table!r}); build it with 'midthought memory build'")
    parts = Parts(store, vectors, read_questions(questions) if questions else StoredQuestions(path), pace)
    parts.searcher.warm()
    listening = listen(host, port)
    tell(f"{path}: {parts.catalogue.num_chunks:,} chunks, {len(parts.questions):,} questions, at {address(listening)}")
    run(make_server(make_app(parts, access, follow_seconds=FOLLOW_SECONDS if follow else None)), listening)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes one that is free."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except OverflowError:
        raise SettingsError(f"--port {port} is none; give 0 to 65535") from None
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"{host}, port {port} cannot be listened on ({reason}); give another --port") from None


def address(listening: socket.socket) -> str:
    """`http://HOST:PORT`."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: App) -> uvicorn.Server:
    """Uvicorn as the service needs it."""
    import uvicorn

    from midthought.memory.service.connection import PromptH11Protocol
    from midthought.memory.service.guard import MAX_HEAD_BYTES

    config = uvicorn.Config(
        app,
        http=PromptH11Protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,  # queries are nobody else's business
        server_header=False,
        date_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return uvicorn.Server(config)


def run(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until a signal says to end. Uvicorn raises the signal anew when it has ended; by then it is heard."""

    def heard(number: int, frame: FrameType | None) -> None: ...

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, heard) for number in numbers]
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        listening.close()


def _require_extra() -> None:
    import importlib.util

    for package in ("fastapi", "uvicorn", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package.replace("_", "-"), "serve")
