"""A service over a small memory, in a thread of this process, and a client that sends what it is told to."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from midthought.memory.service.access import Access
from midthought.memory.service.app import make_app
from midthought.memory.service.catalogue import StoredQuestions
from midthought.memory.service.command import address, listen, make_server
from midthought.memory.service.parts import Parts
from midthought.memory.service.searcher import HandedVectors, Pace
from midthought.memory.store import MemoryStore
from midthought.types import Task


class Running:
    """A service, and how to ask it."""

    def __init__(self, url: str, parts: Parts) -> None:
        self.url = url
        self.parts = parts
        self.port = int(url.rpartition(":")[2])

    def ask(self, path: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON (else text) of the answer; a body that is no bytes is sent as JSON."""
        status, _, reply = self.answer(path, body, method, **headers)
        try:
            return status, json.loads(reply)
        except ValueError:
            return status, reply.decode()

    def answer(
        self, path: str, body: Any = None, method: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in small letters, and body."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if data is not None else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method or ("GET" if data is None else "POST"), path, data, sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read()
        finally:
            connection.close()

    def send(self, *parts: bytes, pause_seconds: float = 0.0) -> bytes:
        """What comes back for raw bytes, until the service closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            for part in parts:
                with contextlib.suppress(OSError):  # it has closed it already
                    connection.sendall(part)
                time.sleep(pause_seconds)
            received = b""
            with contextlib.suppress(OSError):
                while piece := connection.recv(65536):
                    received += piece
            return received


@contextlib.contextmanager
def served(
    uri: str | Path,
    embedder: Any,
    questions: list[Task] | StoredQuestions | None = None,
    access: Access | None = None,
    pace: Pace | None = None,
    **limits: float,
) -> Iterator[Running]:
    """The memory at `uri`, served on a free loopback port."""
    vectors = HandedVectors(embedder)
    store = MemoryStore.open(uri, embedder=vectors)
    parts = Parts(store, vectors, questions or [], pace)
    listening = listen("127.0.0.1", 0)
    server = make_server(make_app(parts, access or Access(), **limits))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield Running(address(listening), parts)
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
