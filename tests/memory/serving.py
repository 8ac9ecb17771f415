"""Runs a service over a small memory in a thread of this process, with a test client."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from served import request
from served import served as on_loopback

from midthought.memory.service.app import make_app
from midthought.memory.service.auth import AccessPolicy
from midthought.memory.service.searcher import ServiceState
from midthought.memory.service.server import make_server
from midthought.memory.store import MemoryStore
from midthought.types import Task


class Running:
    """A running service with a client."""

    def __init__(self, url: str, state: ServiceState) -> None:
        self.url = url
        self.state = state
        self.port = int(url.rpartition(":")[2])

    def ask(self, path: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, Any]:
        """Returns status and JSON (else text) of the response; a body that is not bytes is sent as JSON."""
        status, _, reply = self.answer(path, body, method, **headers)
        try:
            return status, json.loads(reply)
        except ValueError:
            return status, reply.decode()

    def answer(
        self, path: str, body: Any = None, method: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Returns status, headers in lower case, and body."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return request(f"127.0.0.1:{self.port}", path, data, method, **headers)

    def send(self, *parts: bytes, pause_seconds: float = 0.0) -> bytes:
        """Sends raw bytes; returns the start of the response."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            for part in parts:
                with contextlib.suppress(OSError):  # the service closed it already
                    connection.sendall(part)
                time.sleep(pause_seconds)
            with contextlib.suppress(OSError):
                return connection.recv(65536)
            return b""


@contextlib.contextmanager
def served(
    uri: str | Path,
    embedder: Any,
    questions: list[Task] | None = None,
    access: AccessPolicy | None = None,
    **limits: float,
) -> Iterator[Running]:
    """Serves the memory at `uri` on a free loopback port."""
    store = MemoryStore.open(uri, embedder=embedder)
    state = ServiceState(store, embedder, questions or [])
    with on_loopback(make_app(state, access or AccessPolicy(), **limits), make_server) as url:
        yield Running(url, state)
