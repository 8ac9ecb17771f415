"""A request to a memory service ends at its deadline, whatever is slow: the name's lookup, connecting, TLS or sending."""

import concurrent.futures
import contextlib
import socket
import threading
import time

import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")

from midthought.errors import NoReplyError
from midthought.memory.remote import RemoteMemory

SECONDS = 0.5
GENEROUS = 20 * SECONDS
"""Stops a test whose request does not end at its deadline. Nothing is measured: the error says which deadline it was."""
GIVEN_UP = rf"the memory did not answer within {SECONDS:g} seconds"


class Silent:
    """Accepts connections, reads what comes first, and sends these pieces of nothing useful for ever."""

    def __init__(self, pieces: bytes = b"", reads: bool = True) -> None:
        self._pieces, self._reads = pieces, reads
        self.accepted: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            self.accepted.append(connection)
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


def assert_given_up(url: str, query: str = "yes") -> None:
    """Checks that a request ends, with the error that names its deadline."""
    ended: concurrent.futures.Future = concurrent.futures.Future()

    def ask():
        try:
            ended.set_result(RemoteMemory(url, timeout_seconds=SECONDS).search(query))
        except Exception as error:
            ended.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    with pytest.raises(NoReplyError, match=GIVEN_UP):
        ended.result(timeout=GENEROUS)


@pytest.mark.parametrize("pieces", [b"", b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"], ids=["silent", "byte by byte"])
def test_a_tls_handshake_that_never_ends_is_given_up(pieces):
    silent = Silent(pieces)
    assert_given_up(f"https://127.0.0.1:{silent.port}")
    assert len(silent.accepted) == 1


@pytest.fixture
def full():
    """A port whose queue of connections is full, so that a further one waits. Skips the test if a port cannot be filled here."""
    with contextlib.ExitStack() as opened:
        listening = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        further = opened.enter_context(socket.socket())
        further.settimeout(0.2)
        try:
            further.connect(listening.getsockname())
        except TimeoutError:
            yield listening.getsockname()[1]
        except OSError as error:
            pytest.skip(f"a connection to a full port is refused here: {error}")
        else:
            pytest.skip("a port cannot be made full here")


def test_a_name_with_several_addresses_that_do_not_answer_is_given_up(full, monkeypatch):
    """So many that a deadline for each of them would be noticed."""
    attempts, found = [], [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", full))] * 40
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: attempts.append(host) or found)
    assert_given_up(f"http://several.test:{full}")
    assert len(attempts) == 1


def test_a_request_that_is_not_read_is_given_up():
    silent = Silent(reads=False)
    assert_given_up(f"http://127.0.0.1:{silent.port}", "x" * 30_000_000)
    assert len(silent.accepted) == 1
