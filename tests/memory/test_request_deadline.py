"""A request to a memory service ends at its deadline, whatever is slow: the name's lookup, connecting, TLS or sending."""

import socket
import threading
import time

import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")

from midthought.errors import NoReplyError
from midthought.memory.remote import RemoteMemory

SECONDS = 1.0
GIVEN_UP = r"the memory did not answer within 1 seconds"


class Silent:
    """Accepts connections, reads what comes first, and sends these pieces of nothing useful for ever."""

    def __init__(self, pieces: bytes = b"", reads: bool = True) -> None:
        self._pieces, self._reads = pieces, reads
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            self._open.append(connection)
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        if self._reads:
            connection.recv(65536)
        try:
            while self._pieces:
                connection.sendall(self._pieces[:1])
                self._pieces = self._pieces[1:] or b"\0"
                time.sleep(0.05)
        except OSError:
            pass


def seconds_until_given_up(url: str, query: str = "yes") -> float:
    began = time.perf_counter()
    with pytest.raises(NoReplyError, match=GIVEN_UP):
        RemoteMemory(url, timeout_seconds=SECONDS).search(query)
    return time.perf_counter() - began


@pytest.mark.parametrize("pieces", [b"", b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"], ids=["silent", "byte by byte"])
def test_a_tls_handshake_that_never_ends_is_given_up(pieces):
    assert seconds_until_given_up(f"https://127.0.0.1:{Silent(pieces).port}") < 1.6 * SECONDS


def test_a_name_whose_lookup_takes_long_is_given_up(monkeypatch):
    look_up = socket.getaddrinfo

    def slowly(*arguments, **options):
        time.sleep(5 * SECONDS)
        return look_up(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    assert seconds_until_given_up("http://localhost:9") < 1.6 * SECONDS


@pytest.fixture
def full():
    """A port at three addresses of this machine that take no further connection: those to them wait."""
    sockets, port = [], 0
    for number in (1, 2, 3):
        listening = socket.create_server((f"127.0.0.{number}", port), backlog=0)
        port = listening.getsockname()[1]
        sockets.append(listening)
        for _ in range(4):
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
            sockets.append(waiting)
    yield port
    for each in sockets:
        each.close()


def resolve_to(monkeypatch, *addresses):
    def found(host, port, *_, **options):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)


def test_a_name_with_several_addresses_that_do_not_answer_is_given_up(full, monkeypatch):
    resolve_to(monkeypatch, *[(f"127.0.0.{number}", full) for number in (1, 2, 3)])
    assert seconds_until_given_up(f"http://several.test:{full}") < 1.6 * SECONDS


def test_an_address_that_does_not_answer_leaves_time_for_the_next(full, monkeypatch):
    silent = Silent(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")
    resolve_to(monkeypatch, ("127.0.0.1", full), ("127.0.0.1", silent.port))
    with pytest.raises(Exception, match="status 404"):
        RemoteMemory(f"http://several.test:{full}", timeout_seconds=8.0).search("yes")


def test_a_request_that_is_not_read_is_given_up():
    silent = Silent(reads=False)
    assert seconds_until_given_up(f"http://127.0.0.1:{silent.port}", "x" * 30_000_000) < 2.5 * SECONDS
