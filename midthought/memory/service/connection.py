"""HTTP/1.1 connections that may not dawdle: one that begins no request, or sends its head drop by drop, is closed."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""From connecting, or from the first byte of another request, until its head is whole."""


class PromptH11Protocol(H11Protocol):
    """Uvicorn's own has no such limit. h11 itself bounds a head's size."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connected = transport.get_extra_info(
            "socket"
        )  # asyncio knows it only by its protocol number, which uvicorn leaves at 0
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else head and body come 40 ms apart
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._unwatch()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

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
