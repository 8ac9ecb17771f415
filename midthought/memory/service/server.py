"""The HTTP server: uvicorn with our limits, and a timeout for request heads. Does not depend on routes."""

from __future__ import annotations

import asyncio
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from midthought.errors import SettingsError
from midthought.memory.service.middleware import MAX_HEAD_BYTES, App

MAX_CONNECTIONS = 1024
IDLE_SECONDS = 30
"""Keep-alive timeout of a connection without a request."""
STOP_SECONDS = 30
"""Time for requests in progress after the signal to stop."""
MAX_CONNECTIONS_PER_CLIENT = MAX_CONNECTIONS // 2
"""Connections of one address: no client alone can take all of them."""
HEAD_SECONDS = 10.0
"""Timeout from connecting, or from the first byte of a further request, until its head is complete."""
SEND_SECONDS = 30.0
"""Time for which a client may leave a response unread that does not fit into the send buffer."""


class LimitedProtocol(H11Protocol):
    """Closes connections that send no request or send its head too slowly, that do not read the response, and those above
    `MAX_CONNECTIONS_PER_CLIENT`. Uvicorn has no such limits. h11 limits the size of a head."""

    _head_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._num_of_same_client() > MAX_CONNECTIONS_PER_CLIENT:
            transport.abort()
            return
        connected = transport.get_extra_info(
            "socket"
        )  # asyncio sets it only if the protocol number is TCP's; uvicorn leaves it at 0
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else head and body arrive 40 ms apart
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._unwatch()
        else:
            self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_timer = self._send_timer or self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_send_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._end_send_timer()
        super().connection_lost(exc)

    def _num_of_same_client(self) -> int:
        clients = [connection.client for connection in self.connections if isinstance(connection, LimitedProtocol)]
        return sum(self.client is not None and client is not None and client[0] == self.client[0] for client in clients)

    def _end_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _watch(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _unwatch(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self._is_answering() and not self.transport.is_closing():
            self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 selects a free port."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except OverflowError:
        raise SettingsError(f"--port {port} is not a port; give 0 to 65535") from None
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"cannot listen on {host}, port {port} ({reason}); give another --port") from None


def address(listening: socket.socket) -> str:
    """`http://HOST:PORT`."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: App) -> uvicorn.Server:
    """Returns uvicorn with the service's settings."""
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,  # queries are private
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
