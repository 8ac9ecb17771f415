"""Memory services that send nonsense, too much or too slowly: one sentence with the address, and no odd result."""

import contextlib
import gzip
import json
import math
import re
import socket
import threading
import time

import pytest

from midthought.errors import MemoryStoreError, NoReplyError
from midthought.memory.remote import RemoteMemory, open_memory
from midthought.memory.tool import MemoryRetrievalTool

TOKEN = "a-token-that-nobody-guesses"
HIT = {"chunk_id": "a_1", "episode": "E", "speaker": "S", "transcript": "two words", "time": "00:00:01", "score": 0.5}
CHUNK = {**HIT, "stem": "a", "number": 1, "turns": []}
FORGED = "a\x1b[31m \x00\x9b\r\n[2] speaker: X \u2028 b"


class Service:
    """Answers the requests one by one, all further ones as the last; `pieces`: then these again and again."""

    def __init__(self, *answers: bytes, pieces: bytes = b"", pause_seconds: float = 0.0) -> None:
        self.asked: list[bytes] = []
        self._answers = answers
        self._does = (pieces, pause_seconds)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=(self._listening.accept()[0],), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        pieces, pause_seconds = self._does
        with connection, contextlib.suppress(OSError):
            self.asked.append(connection.recv(65536))
            length = re.search(rb"Content-Length: (\d+)", self.asked[-1])
            while length and len(self.asked[-1].partition(b"\r\n\r\n")[2]) < int(length[1]):
                self.asked[-1] += connection.recv(65536)
            connection.sendall(self._answers[min(len(self.asked), len(self._answers)) - 1])
            while pieces:
                connection.sendall(pieces)
                time.sleep(pause_seconds)

    def close(self) -> None:
        self._listening.close()


def head(status: int = 200, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", *headers, "", ""]).encode()


def body(document: object, status: int = 200, *headers: str) -> bytes:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return head(status, f"Content-Length: {len(data)}", "Connection: close", *headers) + data


def hit(**changes: object) -> bytes:
    return body({"hits": [{**HIT, **changes}], "seconds": 0.0})


CHUNKED = head(200, "Transfer-Encoding: chunked")
NOT_A_SERVICE = {
    "HTML": body(b"<html>Log in</html>"),
    "null": body(None),
    "hits that are text": body({"hits": "abc", "seconds": 0.0}),
    "a hit without a time": body({"hits": [{key: value for key, value in HIT.items() if key != "time"}], "seconds": 0}),
    "a number as text": hit(transcript=5),
    "a text as score": hit(score="0.5"),
    "no number as score": hit(score=math.nan),
    "a turn at infinity": hit(turns=[[math.inf, "S"]]),
    "half a letter": hit(chunk_id="\ud800"),
    "deep": body(b"[" * 100_000),
    "compressed": body(gzip.compress(b" " * 50_000_000), 200, "Content-Encoding: gzip"),
    "an error with a long text": body({"detail": FORGED * 100_000}, 404),
}
NO_REPLY = {
    "no HTTP": (b"SSH-2.0\x07\r\n",),
    "nothing": (b"",),
    "a reply that is cut": (body({"hits": []})[:-5],),
    "an error": (body({"detail": FORGED * 100_000}, 503),),
    "a body without end": (head(), b" " * 65536, 0.05),
    "slow headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.1),
    "trailers without end": (CHUNKED + b"0\r\n", b"X: y\r\n", 0.0),
}


@pytest.fixture
def remote(monkeypatch):
    """Returns the memory at a service, which is closed after the test."""
    services = []
    monkeypatch.setenv("MEMORY_TOKEN", TOKEN)

    def at(*arguments, retries=0, **options):
        services.append(Service(*arguments, **options))
        seconds = 0.25 if options.get("pieces") else 2.0
        memory = RemoteMemory(services[-1].url, token_env="MEMORY_TOKEN", timeout_seconds=seconds, retries=retries)
        return memory, services[-1]

    yield at
    for service in services:
        service.close()


def refused(memory, ask, kind):
    with pytest.raises(kind) as error:
        ask()
    message = str(error.value)
    assert memory.url in message and message.isprintable() and len(message) < 500 and TOKEN not in message
    return message


@pytest.mark.parametrize("name", NOT_A_SERVICE)
def test_what_is_no_result_is_refused(name, remote):
    memory, _ = remote(NOT_A_SERVICE[name])
    assert "memory" in refused(memory, lambda: memory.search("q", 3), MemoryStoreError)


@pytest.mark.parametrize("name", NO_REPLY)
def test_a_service_that_does_not_end_or_fails_is_given_up(name, remote):
    answer, *endless = NO_REPLY[name]
    memory, _ = remote(answer, **dict(zip(("pieces", "pause_seconds"), endless, strict=False)))
    assert "midthought memory serve" in refused(memory, lambda: memory.search("q", 3), NoReplyError)
    with pytest.raises(NoReplyError, match=r"^the memory .*; go on without it$") as error:
        MemoryRetrievalTool(memory).execute(query="q")
    assert memory.url not in str(error.value)


def test_a_tls_handshake_that_never_ends_is_given_up():
    silent = Service(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", pieces=b"\0", pause_seconds=0.05)
    with pytest.raises(NoReplyError, match=r"the memory did not answer within 0\.5 seconds"):
        RemoteMemory(silent.url.replace("http", "https"), timeout_seconds=0.5).search("yes")
    assert len(silent.asked) == 1
    silent.close()


def test_an_identifier_stays_as_it_is_stored(remote):
    for letter in ("\uf021", "\u2028", "\x7f", "\x85", "\t"):
        stem = f"Folge{letter} 17"
        chunk = {**CHUNK, "chunk_id": f"{stem}_0", "stem": stem, "number": 0, "episode": stem}
        memory, _ = remote(body({"chunks": [chunk]}))
        found = memory.get([f"{stem}_0"])[f"{stem}_0"]
        assert found.stem == stem and found.episode == "Folge  17"
        memory, _ = remote(hit(chunk_id=f"{stem}_0"))
        assert MemoryRetrievalTool(memory).execute(query="q").metadata["chunk_ids"] == [f"{stem}_0"]


def test_a_result_is_one_line_without_control_characters(remote):
    forged = dict.fromkeys(("transcript", "speaker", "episode", "time", "chunk_id"), FORGED)
    memory, _ = remote(hit(**forged, turns=[[0, FORGED], [1, FORGED]], times=[[1, FORGED]]))
    text = MemoryRetrievalTool(memory).execute(query="q").text
    assert text.startswith("[1] ") and len(text.splitlines()) == 1 and "\x1b" not in text and "\0" not in text


def test_more_results_and_other_chunks_than_wanted_are_left_out(remote):
    memory, _ = remote(body({"hits": [HIT] * 4, "seconds": 0.0}))
    assert len(memory.search("q", 3)) == 3
    memory, _ = remote(body({"chunks": [{**CHUNK, "chunk_id": "b_1"}]}))
    assert memory.get(["a_1"]) == {}


def test_counts_and_chunks_of_another_form_are_refused(remote):
    for document in (None, {}, {"table": FORGED}, {"num_chunks": -1}):
        memory, service = remote(body(document))
        refused(memory, lambda memory=memory: len(memory), MemoryStoreError)
        with pytest.raises(MemoryStoreError, match=service.url):
            open_memory(service.url)
    for changes in ({"number": "1"}, {"number": 1.5}, {"stem": 5}, {"embedded": 5}):
        memory, _ = remote(body({"chunks": [{**CHUNK, **changes}]}))
        refused(memory, lambda memory=memory: memory.get(["a_1"]), MemoryStoreError)


def test_what_may_pass_is_requested_again_and_what_will_not_is_not(remote):
    found = body({"hits": [], "seconds": 0.0, "what": "a newer service says more"})
    memory, service = remote(body({"detail": "x"}, 429, "Retry-After: 0"), b"", body({}, 503), found, retries=3)
    assert memory.search("yes") == [] and len(service.asked) == 4
    memory, service = remote(body({"detail": "query: too long"}, 422), found, retries=3)
    with pytest.raises(ValueError, match="query: too long"):
        memory.search("yes")
    assert len(service.asked) == 1


def test_a_token_does_not_follow_a_redirection(remote):
    _, elsewhere = remote(body({"hits": []}))
    memory, service = remote(body(b"", 307, f"Location: {elsewhere.url}/search"))
    assert "redirects (status 307)" in refused(memory, lambda: memory.search("q", 3), MemoryStoreError)
    assert TOKEN.encode() in service.asked[0] and not elsewhere.asked
