"""An ASGI application served on loopback, in a thread of the test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest


def plain_server(application: Any) -> Any:
    uvicorn = pytest.importorskip("uvicorn")
    return uvicorn.Server(uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=1))


@contextlib.contextmanager
def served(application: Any, make_server: Callable[[Any], Any] = plain_server) -> Iterator[str]:
    """Gives the application's address."""
    from midthought.memory.service.server import address, listen

    server = make_server(application)
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield address(listener)
        finally:
            server.should_exit = True
            thread.join(30)
