import json
from dataclasses import asdict

import pytest
from serving import served

from midthought.memory.service.auth import AccessPolicy
from midthought.memory.service.searcher import stored_questions
from midthought.types import Task

TOKEN = "a token that nobody guesses".replace(" ", "-")
TIDE = {"episode": "tide"}  # a file's name
QUESTIONS = [
    Task(
        task_id="q0", prompt="Which hand has the tide clock?", answer="A copper one.", labels=TIDE, evidence=("tide_0",)
    ),
    Task(task_id="q1", prompt="What was in the café?", answer="Herring scales.", labels=TIDE, evidence=("tide_3",)),
    Task(task_id="q2", prompt="Who asks?", answer="Nobody.", labels={}),
]


def as_json(record):
    """The record as a client of the service reads it."""
    return json.loads(json.dumps(asdict(record)))


@pytest.fixture
def service(store, embedder):
    with served(store.uri, embedder, QUESTIONS) as service:
        yield service


def test_chunks_episodes_speakers_and_stats_tell_what_is_there(service, chunks):
    _, found = service.ask("/chunks", {"ids": ["tide_2", "none", "tide_0"]})
    assert found["chunks"] == [as_json(chunks[2]), as_json(chunks[0])]
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
    import lancedb

    shared = {"episode": "The Tide Clock", "episode_file": "tide", "difficulty": "hard", "evidence": ["tide_0"]}
    rows = [
        {"id": f"tide:asked:{n}", "qa_index": n, "type": kind, "text": f"text {n}", "answer": f"answer {n}"} | shared
        for n in (1, 0)
        for kind in ("qa_question", "qa_answer")
    ]
    assert stored_questions(store.uri) == []
    database = lancedb.connect(store.uri)
    database.create_table("questions", rows)
    assert [(task.prompt, task.answer, task.evidence) for task in stored_questions(store.uri)] == [
        ("text 0", "answer 0", ("tide_0",)),
        ("text 1", "answer 1", ("tide_0",)),
    ]
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


def test_what_is_too_large_or_no_json_is_refused(service):
    assert service.ask("/search", {"query": "x" * 4001})[0] == 422
    assert service.ask("/search", {"query": "x", "k": 101})[0] == 422
    assert service.ask("/search", b" " * 300_000)[0] == 413
    assert service.ask("/search", b"{")[0] == 400
    assert service.ask("/search", b"query=x", Content_Type="application/x-www-form-urlencoded")[0] == 415
    assert service.ask("/search", b"\x1f\x8b", Content_Encoding="gzip")[0] == 415


def test_openapi_tells_the_limits(service):
    _, document = service.ask("/openapi.json")
    query = document["components"]["schemas"]["Query"]["properties"]
    assert (query["query"]["maxLength"], query["k"]["maximum"]) == (4000, 100)
    assert json.dumps(document["paths"]["/search"]["post"]["responses"]).count("Refusal") >= 5
