"""The HTTP server: uvicorn with our limits. Does not depend on routes."""

from __future__ import annotations

import signal
import socket
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from midthought.errors import SettingsError

MAX_CONNECTIONS = 1024
MAX_HEAD_BYTES = 32 * 1024
IDLE_SECONDS = 30
"""Keep-alive timeout of a connection without a request."""
STOP_SECONDS = 30
"""Time for requests in progress after the signal to stop."""


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 selects a free port."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except OverflowError:
        raise SettingsError(f"--port {port} is not a port; give 0 to 65535") from None
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"cannot listen on {host}, port {port} ({reason}); give another --port") from None
    # With this protocol number asyncio sets TCP_NODELAY; else head and body of a response arrive 40 ms apart.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listening.detach())


def address(listening: socket.socket) -> str:
    """`http://HOST:PORT`."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(
    app: ASGIApp, *, max_connections: int | None = MAX_CONNECTIONS, stop_seconds: int = STOP_SECONDS
) -> uvicorn.Server:
    """Returns uvicorn with the service's settings. `max_connections` None: any number."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,  # queries are private
        server_header=False,
        date_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        limit_concurrency=max_connections,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=stop_seconds,
    )
    return uvicorn.Server(config)


def run(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serves until a signal arrives. Uvicorn raises the signal again after its shutdown; it is ignored then."""

    def ignore(number: int, frame: FrameType | None) -> None: ...

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ignore) for number in numbers]
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        listening.close()
