"""HTTP connections on which a whole request has one deadline: name lookup, connecting, TLS, sending, head and body.

The timeouts of `http.client` and httpx are per operation: many slow ones take any time. Does not depend on what is sent.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any


class TooLargeError(Exception):
    """A reply has more bytes than the request allows."""


class TimedConnection(http.client.HTTPConnection):
    """A connection to one host, for one request after the other."""

    def __init__(self, host: str, port: int, *, is_tls: bool) -> None:
        super().__init__(host, port)
        self._tls = ssl.create_default_context() if is_tls else None
        self._ends_at = 0.0
        if is_tls:
            self.default_port = http.client.HTTPS_PORT  # the header `Host` omits it

    def exchange(self, request: tuple[Any, ...], ends_at: float, most: int) -> tuple[int, str, bytes]:
        """Sends a request (method, path, body, headers). Returns status, Retry-After and body.

        Raises TimeoutError after `ends_at` (of `time.monotonic`), however slowly anything arrives, and TooLargeError for a body
        of more than `most` bytes.
        """
        self._ends_at = ends_at
        self.response_class = functools.partial(_Response, ends_at)  # type: ignore[assignment]
        self.request(*request)
        response = self.getresponse()
        parts, size = [], 0
        while True:
            part = response.read1(1 << 16)
            if not part:
                break
            parts.append(part)
            size += len(part)
            if size > most:
                raise TooLargeError
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        response.close()  # `read1` does not close it; the connection could not be reused
        if response.will_close:
            self.close()
        return response.status, response.getheader("Retry-After", ""), b"".join(parts)

    def connect(self) -> None:
        """Looks up the host, connects, and agrees on TLS."""
        self.sock = _connected(_addresses(self.host, self.port, self._ends_at), self._ends_at)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            self.sock.settimeout(_left(self._ends_at))
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)

    def send(self, data: Any) -> None:
        """Sends bytes, after connecting if there is no connection."""
        if self.sock is None:
            self.connect()
        rest = memoryview(data)
        while rest:
            self.sock.settimeout(_left(self._ends_at))
            rest = rest[self.sock.send(rest) :]


def _addresses(host: str, port: int, ends_at: float) -> list[Any]:
    """Returns the results of `getaddrinfo`, which has no timeout itself: its thread is left to end by itself."""
    found: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()

    def look_up() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=look_up, name="midthought-name-lookup", daemon=True).start()
    return found.result(timeout=_left(ends_at))


def _connected(addresses: Sequence[Any], ends_at: float) -> socket.socket:
    """Returns a connection to the first address that answers. Each has an equal share of the time that is left."""
    last_error = OSError("the host has no address")
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        try:
            with contextlib.ExitStack() as opened:
                sock = opened.enter_context(socket.socket(family, kind, protocol))
                sock.settimeout(_left(ends_at) / (len(addresses) - number))
                sock.connect(address)
                opened.pop_all()
                return sock
        except OSError as error:
            last_error = error
    raise last_error


class _Response(http.client.HTTPResponse):
    """A response of which every byte, also of its head, has to arrive before `ends_at`."""

    def __init__(self, ends_at: float, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp = io.BufferedReader(_TimedReader(self.fp.detach(), sock, ends_at))


class _TimedReader(io.RawIOBase):
    def __init__(self, reader: io.RawIOBase, sock: socket.socket, ends_at: float) -> None:
        self._reader = reader
        self._sock = sock
        self._ends_at = ends_at

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left(self._ends_at))
        return self._reader.readinto(buffer)

    def close(self) -> None:
        self._reader.close()
        super().close()


def _left(ends_at: float) -> float:
    left = ends_at - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
