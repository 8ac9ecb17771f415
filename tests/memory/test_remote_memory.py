"""A served memory is searched like a local one, and errors name the problem."""

import contextlib
import copy
import gzip
import json
import math
import pickle
import re
import socket
import socketserver
import threading
import time
from dataclasses import replace

import pytest
from serving import served

from midthought.engines.servers.process import free_port
from midthought.errors import MemoryStoreError, NoReplyError, SettingsError
from midthought.memory.remote import RemoteMemory, open_memory
from midthought.memory.service.auth import AccessPolicy
from midthought.memory.tool import MemoryRetrievalTool

TOKEN = "a-token-that-nobody-guesses"
QUERIES = ["a copper hand", "mitten", "herring scales in the café", "yes", "' OR 1=1 --", "a\ud800b"]


@pytest.fixture
def service(store, embedder):
    with served(store.uri, embedder) as service:
        yield service


@pytest.mark.parametrize("mode", ["hybrid", "vector", "full_text"])
def test_the_tool_says_the_same_of_a_memory_here_and_of_one_that_is_served(service, store, mode):
    here, there = (MemoryRetrievalTool(memory, mode=mode) for memory in (store, RemoteMemory(service.url)))
    assert here.definition.json_schema() == there.definition.json_schema()
    for query in QUERIES:
        assert here.execute(query=query, k=4) == there.execute(query=query, k=4), query


def test_filters_lengths_and_chunks_are_those_of_the_store(service, store):
    remote = RemoteMemory(service.url)
    assert remote.search("yes", 5, "vector", speakers=["Ann"]) == store.search("yes", 5, "vector", speakers=["Ann"])
    assert len(remote) == 6 and remote.get(["tide_3", "none"]) == store.get(["tide_3", "none"])


def test_it_travels_without_its_connections_and_its_token(service, monkeypatch):
    monkeypatch.setenv("MEMORY_TOKEN", TOKEN)
    remote = RemoteMemory(service.url, token_env="MEMORY_TOKEN")
    remote.search("yes")
    data = pickle.dumps(MemoryRetrievalTool(remote))
    assert TOKEN.encode() not in data
    assert pickle.loads(data).execute(query="mitten", k=1).metadata == {"chunk_ids": ["tide_2"]}  # noqa: S301
    assert copy.deepcopy(remote).search("yes") == remote.search("yes")


def test_connections_are_used_again_and_opened_anew_where_the_service_closed_them(service, monkeypatch):
    from uvicorn.protocols.http.h11_impl import H11Protocol

    made, connect = [], H11Protocol.connection_made
    monkeypatch.setattr(H11Protocol, "connection_made", lambda self, to: (made.append(to), connect(self, to)))
    remote = RemoteMemory(service.url, retries=0)
    remote.search("yes")
    remote.search("yes")
    (transport,) = made
    assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    transport.abort()
    time.sleep(0.1)
    assert remote.search("mitten", 1)[0].chunk_id == "tide_2"
    assert len(made) == 2


def test_the_token_is_asked_for_and_given(store, embedder, monkeypatch):
    with served(store.uri, embedder, access=AccessPolicy(token=TOKEN)) as service:
        with pytest.raises(MemoryStoreError, match=r"rejects the token.*memory\.token_env"):
            open_memory(service.url)
        monkeypatch.setenv("MEMORY_TOKEN", TOKEN)
        assert open_memory(service.url, token_env="MEMORY_TOKEN").search("mitten", 1)[0].chunk_id == "tide_2"
        monkeypatch.setenv("MEMORY_TOKEN", "another-token-altogether")
        with pytest.raises(MemoryStoreError, match="check its value") as raised:
            open_memory(service.url, token_env="MEMORY_TOKEN")
        assert "another-token" not in str(raised.value)


def test_what_is_asked_for_at_the_start_is_said_at_the_start(service, chunks):
    with pytest.raises(MemoryStoreError, match="the service has table 'transcripts', not 'other'"):
        open_memory(service.url, "other")
    with pytest.raises(SettingsError, match="NO_SUCH_TOKEN is not set"):
        open_memory(service.url, token_env="NO_SUCH_TOKEN")
    for url in ("http://", "http://user:secret@host", "http://host?x", "http://host:port"):
        with pytest.raises(SettingsError) as raised:
            RemoteMemory(url)
        assert "secret" not in str(raised.value)
    RemoteMemory(service.url).require(chunks)
    with pytest.raises(MemoryStoreError, match="lacks 1 of 6 chunks, such as 'tide_1'"):
        RemoteMemory(service.url).require([replace(chunks[1], transcript="other words"), chunks[0], *chunks[2:]])


def test_a_service_that_is_not_there_is_a_sentence_for_the_user_and_for_the_model():
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(MemoryStoreError, match=r"no service answers at this address.*midthought memory serve"):
        open_memory(url)
    with pytest.raises(NoReplyError, match=rf"{url}: the memory cannot be reached .*memory serve"):
        RemoteMemory(url, retries=1).search("yes")
    with pytest.raises(NoReplyError, match=r"http://a\.\.b: the memory cannot be reached .*memory serve"):
        RemoteMemory("http://a..b", retries=0).search("yes")


# -- services of others ----------------------------------------------------------------------------------------------


HIT = {"chunk_id": "a_1", "episode": "E", "speaker": "S", "transcript": "two words", "time": "00:00:01", "score": 0.5}
CHUNK = {**HIT, "stem": "a", "number": 1, "turns": []}
FORGED = "a\x1b[31m \x00\x9b\r\n[2] speaker: X \u2028 b"


class Service(socketserver.ThreadingTCPServer):
    """Answers the requests one by one, all further ones as the last; `pieces`: then these again and again."""

    daemon_threads = True

    def __init__(self, *answers: bytes, pieces: bytes = b"", pause_seconds: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), None)
        self.asked: list[bytes] = []
        self.does = (answers, pieces, pause_seconds)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def finish_request(self, connection: socket.socket, _: object) -> None:
        answers, pieces, pause_seconds = self.does
        with contextlib.suppress(OSError):
            self.asked.append(connection.recv(65536))
            length = re.search(rb"Content-Length: (\d+)", self.asked[-1])
            while length and len(self.asked[-1].partition(b"\r\n\r\n")[2]) < int(length[1]):
                self.asked[-1] += connection.recv(65536)
            connection.sendall(answers[min(len(self.asked), len(answers)) - 1])
            while pieces:
                connection.sendall(pieces)
                time.sleep(pause_seconds)


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
    "no HTTP": (b"SSH-2.0\x07\r\n", b"", 0.0),
    "nothing": (b"", b"", 0.0),
    "a reply that is cut": (body({"hits": []})[:-5], b"", 0.0),
    "an error": (body({"detail": FORGED * 100_000}, 503), b"", 0.0),
    "a body without end": (head(), b" " * 65536, 0.05),
    "slow headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.1),
    "trailers without end": (CHUNKED + b"0\r\n", b"X: y\r\n", 0.0),
}


@pytest.fixture
def remote(monkeypatch):
    """Returns the memory at a service, which is closed after the test."""
    monkeypatch.setenv("MEMORY_TOKEN", TOKEN)
    with contextlib.ExitStack() as services:

        def at(*arguments, retries=0, **options):
            service = services.enter_context(Service(*arguments, **options))
            services.callback(service.shutdown)
            seconds = 0.25 if options.get("pieces") else 2.0
            return RemoteMemory(
                service.url, token_env="MEMORY_TOKEN", timeout_seconds=seconds, retries=retries
            ), service

        yield at


def refused(memory, ask, kind):
    with pytest.raises(kind) as error:
        ask()
    message = str(error.value)
    assert memory.url in message and message.isprintable() and len(message) < 400 and TOKEN not in message
    return message


@pytest.mark.parametrize("name", NOT_A_SERVICE)
def test_what_is_no_result_is_refused(name, remote):
    memory, _ = remote(NOT_A_SERVICE[name])
    assert "memory" in refused(memory, lambda: memory.search("q", 3), MemoryStoreError)


@pytest.mark.parametrize("name", NO_REPLY)
def test_a_service_that_does_not_end_or_fails_is_given_up(name, remote):
    answer, pieces, pause_seconds = NO_REPLY[name]
    memory, _ = remote(answer, pieces=pieces, pause_seconds=pause_seconds)
    assert "midthought memory serve" in refused(memory, lambda: memory.search("q", 3), NoReplyError)
    with pytest.raises(NoReplyError, match=r"^the memory .*; go on without it$") as error:
        MemoryRetrievalTool(memory).execute(query="q")
    assert memory.url not in str(error.value)


def test_a_tls_handshake_that_never_ends_is_given_up(remote):
    _, silent = remote(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", pieces=b"\0", pause_seconds=0.05)
    with pytest.raises(NoReplyError, match=r"the memory did not answer within 0\.5 seconds"):
        RemoteMemory(silent.url.replace("http", "https"), timeout_seconds=0.5).search("yes")
    assert len(silent.asked) == 1


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
