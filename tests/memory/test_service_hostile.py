"""Invalid and hostile requests are refused with 4xx and never make the service fail."""

import json
import logging

import pytest
from serving import served

from midthought.memory.store import MemoryStore
from midthought.types import Task


@pytest.fixture(scope="module")
def service(tmp_path_factory, new_embedder):
    from midthought.memory.chunks import Chunk

    lines = ["the tide is late", "a copper hand", "herring scales ' OR 1=1", '% _ \\ " ;']
    chunks = [Chunk(f"t_{number}", "T", "t", "Ann", line, "00:00:01", number) for number, line in enumerate(lines)]
    path = tmp_path_factory.mktemp("hostile") / "memory"
    MemoryStore.open(path, embedder=new_embedder()).build(chunks)
    questions = [
        Task(task_id="q", prompt="What is late?", answer="The tide.", labels={"episode": "t"}, evidence=("t_0",))
    ]
    with served(path, new_embedder(), questions, body_seconds=1.0) as service:
        yield service


ODD_BODIES = [
    b"", b"null", b"[]", b'"query"', b"1e999", b"{", b"\xff\xfe", b"\x00", b'{"query": NaN}', b'{"query": "a", "k": NaN}',
    b'{"query": "a", "k": Infinity}', b'{"query": "a", "k": 1e400}', b'{"query": "a", "k": 3.0}', b'{"query": "a", "k": true}',
    b'{"query": "a", "k": "3"}', b'{"query": "a", "k": -1}', b'{"query": "a", "k": 0}',
    b'{"query": "a", "k": ' + b"9" * 5000 + b"}",
    b'{"query": ["a"]}', b'{"query": {"a": 1}}', b'{"query": "a", "mode": "sql"}', b'{"query": "a", "episodes": "T"}',
    b'{"query": "a", "episodes": [null]}', b'{"query": "a", "episodes": [["T"]]}', b'{"query": "a", "other": 1}',
    b'{"query": "\xff"}', b"[" * 100_000, b'{"a":' * 40_000, b'{"query": "a", "query": 1}',
    b'{"query": ""}', b'{"query": " \\n "}',
    b'{"query": "\\ud800"}', b'{"\\ud800": "\\udfff"}', b'{"query": "a", "speakers": [' + b'"x",' * 60 + b'"x"]}',
]  # fmt: skip


def test_odd_bodies_are_refused(service):
    for body in ODD_BODIES:
        for path in ("/search", "/chunks", "/qa/batch"):
            status, found = service.ask(path, body, method="POST")
            assert status in (400, 415, 422), (path, body[:50], found)
            assert isinstance(found["detail"], str) and len(found["detail"]) < 1000


def test_odd_addresses_and_methods_are_refused(service):
    for path in ("/..%2f..%2fetc%2fpasswd", "//", "/", "/search/", "/%00", "/search%0d%0aX:", "/static/../search"):
        assert service.ask(path)[0] in (404, 405, 307), path
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "BREW", "HEAD"):
        assert service.ask("/search", method=method)[0] in (400, 405), method


def test_heads_that_are_too_large_or_none_are_refused(service):
    for head in (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(9000)) + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        b"POST /search HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /stats HTTP/1.1\r\nConnection: close\r\n\r\n",
    ):
        received = service.send(head)
        assert received.startswith(b"HTTP/1.1 4"), (head[:60], received[:80])
    assert service.ask("/healthz")[0] == 200


def test_a_body_that_drips_is_given_up(service):
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    assert service.send(head, *[b"x"] * 3, pause_seconds=0.5).startswith(b"HTTP/1.1 408")
    chunked = head.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")
    assert service.send(chunked, b"10000\r\n" + b"x" * 65536 + b"\r\n", b"40000\r\n" + b"x" * 262144).startswith(
        b"HTTP/1.1 413"
    )


@pytest.mark.slow
def test_requests_made_from_the_schema_never_break_the_service(service, caplog):
    schemathesis = pytest.importorskip("schemathesis")
    import hypothesis

    _, document = service.ask("/openapi.json")
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=service.url)
    settings = hypothesis.settings(
        max_examples=25, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    num_sent = 0

    for operation in schema.get_all_operations():
        strategies = [operation.ok().as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode]

        @hypothesis.seed(0)
        @settings
        @hypothesis.given(case=hypothesis.strategies.one_of(strategies))
        def send(case):
            nonlocal num_sent
            num_sent += 1
            response = case.call()
            assert response.status_code < 500, (case.as_curl_command(), response.text)

        send()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert num_sent > 50
    assert service.ask("/search", {"query": "tide", "k": 1})[1]["hits"][0]["chunk_id"] == "t_0"


def test_a_crowd_that_is_too_large_is_told_to_come_again(service):
    service.state.searcher.num_in_progress += 512
    try:
        status, headers, body = service.answer("/search", {"query": "tide"})
    finally:
        service.state.searcher.num_in_progress -= 512
    assert (status, headers["retry-after"]) == (429, "1") and "try again" in json.loads(body)["detail"]
