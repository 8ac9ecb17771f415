"""The service: what it tells, who may ask, and requests that are invalid or hostile: they are refused with 4xx."""

import json
import logging
from dataclasses import asdict

import hypothesis
import lancedb
import pytest
from serving import served

from midthought.errors import SettingsError
from midthought.http.network import is_loopback
from midthought.memory.service.auth import AccessPolicy, is_same_origin
from midthought.memory.service.searcher import stored_questions
from midthought.types import Task

TOKEN = "a-token-that-nobody-guesses"
TIDE = {"episode": "tide"}  # a file's name
QUESTIONS = [
    Task(task_id="q0", prompt="Which hand has it?", answer="A copper one.", labels=TIDE, evidence=("tide_0",)),
    Task(task_id="q1", prompt="What was in the café?", answer="Herring scales.", labels=TIDE, evidence=("tide_3",)),
    Task(task_id="q2", prompt="Who asks?", answer="Nobody.", labels={}),
]


@pytest.fixture
def service(store, embedder):
    with served(store.uri, embedder, QUESTIONS, body_seconds=1.0) as service:
        yield service


def test_chunks_episodes_speakers_and_stats_tell_what_is_there(service, chunks):
    _, found = service.ask("/chunks", {"ids": ["tide_2", "none", "tide_0"]})
    assert found["chunks"] == json.loads(json.dumps([asdict(chunks[2]), asdict(chunks[0])]))
    assert service.ask("/episodes")[1] == {"The Tide Clock": 6}
    assert service.ask("/speakers")[1] == {"Ann": 3, "Bob": 2, "Zoë": 1}
    _, found = service.ask("/stats")
    assert (found["num_chunks"], found["num_episodes"], found["num_speakers"], found["num_questions"]) == (6, 1, 3, 3)
    assert (found["embedding_model"], found["embedding_dimension"]) == ("words", 64)


def test_questions_are_sampled_with_a_seed_that_is_returned_or_are_in_order(service, store, embedder):
    _, drawn = service.ask("/qa/batch", {"size": 2})
    assert len(drawn["questions"]) == 2
    assert service.ask("/qa/batch", {"size": 2, "seed": drawn["seed"]})[1] == drawn
    _, found = service.ask("/qa/batch", {"shuffle": False, "size": 2})
    assert [pair["id"] for pair in found["questions"]] == ["q0", "q1"] and found["seed"] is None
    assert found["questions"][1]["episode"] == "tide" and found["questions"][1]["evidence"] == ["tide_3"]
    with served(store.uri, embedder) as without_questions:
        status, found = without_questions.ask("/qa/batch", {})
    assert status == 404 and "midthought memory questions" in found["detail"]


def test_questions_of_the_memorys_own_table_are_found_without_being_named(store):
    shared = {"episode": "The Tide Clock", "episode_file": "tide", "difficulty": "hard", "evidence": ["tide_0"]}
    rows = [
        {"id": f"tide:asked:{n}", "qa_index": n, "type": kind, "text": f"text {n}", "answer": f"answer {n}"} | shared
        for n in (1, 0)
        for kind in ("qa_question", "qa_answer")
    ]
    assert stored_questions(store.uri) == []
    database = lancedb.connect(store.uri)
    database.create_table("questions", rows)
    found = [(task.prompt, task.answer, task.evidence) for task in stored_questions(store.uri)]
    assert found == [(f"text {n}", f"answer {n}", ("tide_0",)) for n in range(2)]
    database.create_table("questions", [{"something": "else"}], mode="overwrite")
    assert stored_questions(store.uri) == []


def test_without_the_token_there_is_a_sign_of_life_only(store, embedder):
    with served(store.uri, embedder, access=AccessPolicy(token=TOKEN)) as service:
        document = service.ask("/openapi.json", Authorization=f"Bearer {TOKEN}")[1]
        for path, methods in document["paths"].items():
            if path != "/healthz":
                method = next(iter(methods)).upper()
                wrong = ("Bearer wrong", TOKEN, "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer{TOKEN}")
                for given in ({}, *({"Authorization": each} for each in wrong)):
                    status, headers, _ = service.answer(path, None, method, **given)
                    assert (status, headers["www-authenticate"]) == (401, "Bearer"), (path, given)
        assert service.ask("/openapi.json")[0] == 401
        assert service.ask("/healthz")[0] == 200
        assert service.ask("/search", {"query": "yes"}, Authorization=f"bearer {TOKEN}")[0] == 200


def test_other_hosts_and_pages_from_elsewhere_may_not_ask_and_answers_carry_safe_headers(service):
    assert service.ask("/stats", Host="evil.example")[0] == 421
    assert service.ask("/healthz", Host=f"evil.example:{service.port}")[0] == 421
    for host in (f"localhost:{service.port}", "127.0.0.1", "[::1]:80"):
        assert service.ask("/stats", Host=host)[0] == 200, host
    for path in ("/", "/stats", "/nothing", "/chunks"):
        _, headers, _ = service.answer(path)
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert "server" not in headers
    assert service.ask("/search", {"query": "yes"}, Origin="http://evil.example")[0] == 403
    status, headers, _ = service.answer("/search", None, "OPTIONS", Origin=service.url)
    assert status == 405 and not any(name.startswith("access-control") for name in headers)
    assert service.ask("/search", {"query": "yes"}, Origin=service.url)[0] == 200


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({"query": "x" * 4001}, {}, 422),
        ({"query": "x", "k": 101}, {}, 422),
        (b" " * 300_000, {}, 413),
        (b"{", {}, 400),
        (b"query=x", {"Content_Type": "application/x-www-form-urlencoded"}, 415),
        (b"\x1f\x8b", {"Content_Encoding": "gzip"}, 415),
    ],
    ids=range(6),
)
def test_what_is_too_large_or_no_json_is_refused(service, body, headers, expected):
    assert service.ask("/search", body, **headers)[0] == expected


def test_openapi_tells_the_limits(service):
    _, document = service.ask("/openapi.json")
    query = document["components"]["schemas"]["Query"]["properties"]
    assert (query["query"]["maxLength"], query["k"]["maximum"]) == (4000, 100)
    assert json.dumps(document["paths"]["/search"]["post"]["responses"]).count("Refusal") >= 5


# -- what is permitted --------------------------------------------------------------------------------------------


def test_beyond_loopback_nothing_is_served_without_a_token(monkeypatch):
    monkeypatch.setenv("KEY", TOKEN)
    for host in ("0.0.0.0", "::", "10.0.0.7", "example.org", "192.168.1.1", "localhost.example.org"):
        with pytest.raises(SettingsError, match=r"needs a token.*--token-env"):
            AccessPolicy.of(host, None)
        assert AccessPolicy.of(host, "KEY").token == TOKEN and not is_loopback(host)
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LocalHost")))


def test_a_token_that_is_missing_or_unsound_is_refused_and_not_shown(monkeypatch):
    with pytest.raises(SettingsError, match="NO_KEY holds no token of 16"):
        AccessPolicy.of("127.0.0.1", "NO_KEY")
    for value in ("", "short", "with a blank in its middle", "ümläuts-in-the-token"):
        monkeypatch.setenv("KEY", value)
        with pytest.raises(SettingsError, match="KEY holds no token of 16") as raised:
            AccessPolicy.of("127.0.0.1", "KEY")
        assert not value or value not in str(raised.value)
    assert TOKEN not in repr(AccessPolicy(token=TOKEN))


def test_the_host_of_a_request_must_be_this_machine():
    known = ("127.0.0.1:8100", "localhost", "LOCALHOST:1", "[::1]:8100")
    unknown = (
        "evil.example",
        "localhost.evil.example:8100",
        "evil@localhost",
        "localhost/evil",
        "localhost:port",
        "[",
        "",
    )
    for header in (*known, *unknown):
        assert AccessPolicy().accepts_host(header) is (header in known), header
        assert AccessPolicy(host="0.0.0.0", token=TOKEN).accepts_host(header)


def test_a_page_is_of_the_same_origin_by_name_and_port():
    assert is_same_origin("http://127.0.0.1:8100", "127.0.0.1:8100")
    for origin, host in (("http://127.0.0.1:8101", "127.0.0.1:8100"), ("null", ""), ("http://[", "[")):
        assert not is_same_origin(origin, host)


# -- hostile requests ------------------------------------------------------------------------------------------------


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
    get, post = (b"%s HTTP/1.1\r\nHost: localhost\r\n" % each for each in (b"GET /", b"POST /search"))
    for head in (
        get + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        get + b"".join(b"X%d: y\r\n" % number for number in range(9000)) + b"\r\n",
        get.replace(b"/ ", b"/" + b"a" * 100_000 + b" ") + b"\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        post + b"Content-Length: -5\r\n\r\n",
        post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        post + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /stats HTTP/1.1\r\nConnection: close\r\n\r\n",
    ):
        received = service.send(head)
        assert received.startswith(b"HTTP/1.1 4"), (head[:60], received[:80])
    assert service.ask("/healthz")[0] == 200


def test_a_body_that_drips_is_given_up(service):
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    assert service.send(head, *[b"x"] * 3, pause_seconds=0.5).startswith(b"HTTP/1.1 408")
    chunked = head.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")
    too_much = service.send(chunked, b"10000\r\n" + b"x" * 65536 + b"\r\n", b"40000\r\n" + b"x" * 262144)
    assert too_much.startswith(b"HTTP/1.1 413")


@pytest.mark.slow
def test_requests_made_from_the_schema_never_break_the_service(service, caplog):
    schemathesis = pytest.importorskip("schemathesis")
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
    assert service.ask("/search", {"query": "tide", "k": 1})[1]["hits"][0]["chunk_id"] == "tide_0"


def test_a_crowd_that_is_too_large_is_told_to_come_again(service):
    service.state.searcher.num_in_progress += 512
    try:
        status, headers, body = service.answer("/search", {"query": "tide"})
    finally:
        service.state.searcher.num_in_progress -= 512
    assert (status, headers["retry-after"]) == (429, "1") and "try again" in json.loads(body)["detail"]
