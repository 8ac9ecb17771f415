import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")
pytest.importorskip("fastapi", reason="the serve extra is not installed")
pytest.importorskip("prometheus_client", reason="the serve extra is not installed")

from serving import served

from midthought.memory.service.auth import AccessPolicy
from midthought.memory.service.browse import QuestionTable
from midthought.types import Task

TOKEN = "a token that nobody guesses".replace(" ", "-")
QUESTIONS = [  # their label `episode` is a file's name, as in the questions that are made by rules
    Task(
        task_id="q0",
        prompt="Which hand has the tide clock?",
        answer="A copper one.",
        labels={"episode": "tide"},
        evidence=("tide_0",),
    ),
    Task(
        task_id="q1",
        prompt="What was in the café?",
        answer="Herring scales.",
        labels={"episode": "tide"},
        evidence=("tide_3",),
    ),
    Task(task_id="q2", prompt="Who asks?", answer="Nobody.", labels={}, evidence=()),
]


def as_json(record):
    """The record as a client of the service reads it."""
    return json.loads(json.dumps(asdict(record)))


@pytest.fixture
def service(store, embedder):
    with served(store.uri, embedder, QUESTIONS) as service:
        yield service


@pytest.mark.parametrize("mode", ["hybrid", "vector", "full_text"])
def test_a_search_finds_what_the_store_finds(service, store, mode):
    asked = {"query": "a copper hand", "k": 2, "mode": mode}
    status, found = service.ask("/search", asked)
    assert status == 200
    assert found["hits"] == [as_json(hit) for hit in store.search("a copper hand", 2, mode)]


def test_a_batch_finds_what_its_queries_find(service, store):
    queries = ["a mitten", "herring scales", "a mitten"]
    status, found = service.ask("/search/batch", {"queries": queries, "k": 1, "mode": "vector"})
    assert status == 200
    expected = [[as_json(hit) for hit in hits] for hits in store.search_batch(queries, 1, "vector")]
    assert found["results"] == expected


def test_only_chosen_speakers_and_episodes_are_found(service):
    _, found = service.ask("/search", {"query": "yes", "k": 6, "mode": "vector", "speakers": ["Bob"]})
    assert {hit["speaker"] for hit in found["hits"]} == {"Bob"} and len(found["hits"]) == 2
    assert service.ask("/search", {"query": "yes", "episodes": ["' OR 1=1 --"]})[1]["hits"] == []


def test_many_at_once_find_what_each_finds_alone_and_are_embedded_together(service, store, embedder):
    queries = [f"{word} {number}" for number in range(16) for word in ("copper", "mitten", "herring", "yes")]
    expected = {query: [as_json(hit) for hit in store.search(query, 3, "vector")] for query in queries}
    with ThreadPoolExecutor(32) as pool:
        asked = pool.map(lambda query: service.ask("/search", {"query": query, "mode": "vector"})[1]["hits"], queries)
        assert dict(zip(queries, asked, strict=True)) == expected
    metrics = service.ask("/metrics")[1]
    (calls,) = (line for line in metrics.splitlines() if line.startswith("midthought_memory_embedded_together_count"))
    assert float(calls.split()[1]) < len(queries)


def test_the_context_of_a_chunk_ends_where_its_episode_does(service):
    _, found = service.ask("/context?id=tide_1&before=3&after=2")
    assert [chunk["chunk_id"] for chunk in found["chunks"]] == ["tide_0", "tide_1", "tide_2", "tide_3"]
    assert found["position"] == 1
    assert service.ask("/context?id=tide_99") == (404, {"detail": "there is no chunk with this id"})


def test_chunks_come_by_their_ids_in_the_order_asked_for(service, chunks):
    _, found = service.ask("/chunks", {"ids": ["tide_2", "none", "tide_0"]})
    assert found["chunks"] == [as_json(chunks[2]), as_json(chunks[0])]


def test_episodes_and_speakers_are_counted_and_leafed_through(service):
    assert service.ask("/episodes")[1] == {"items": [{"name": "The Tide Clock", "num_chunks": 6}], "num_available": 1}
    _, found = service.ask("/speakers?contains=O")
    assert found == {"items": [{"name": "Bob", "num_chunks": 2}, {"name": "Zoë", "num_chunks": 1}], "num_available": 2}
    assert service.ask("/speakers?offset=1&limit=1")[1]["items"] == [{"name": "Bob", "num_chunks": 2}]


def test_stats_tell_what_is_there(service):
    _, found = service.ask("/stats")
    assert (found["num_chunks"], found["num_episodes"], found["num_speakers"], found["num_questions"]) == (6, 1, 3, 3)
    assert (found["embedding_model"], found["embedding_dimension"]) == ("words", 64)


def test_questions_are_drawn_by_a_seed_that_is_told(service):
    _, drawn = service.ask("/qa/batch", {"size": 2})
    assert len(drawn["questions"]) == 2 and drawn["num_available"] == 3
    assert service.ask("/qa/batch", {"size": 2, "seed": drawn["seed"]})[1] == drawn


def test_questions_are_leafed_through_in_their_order_and_name_the_episode_as_chunks_do(service):
    _, found = service.ask("/qa/batch", {"shuffle": False, "offset": 1, "size": 2})
    assert [pair["id"] for pair in found["questions"]] == ["q1", "q2"] and found["seed"] is None
    assert found["questions"][0]["episode"] == "The Tide Clock" and found["questions"][0]["evidence"] == ["tide_3"]
    _, found = service.ask("/qa/batch", {"shuffle": False, "episodes": ["The Tide Clock"], "contains": "CAFÉ"})
    assert [pair["id"] for pair in found["questions"]] == ["q1"]


def test_questions_of_the_memorys_own_table_are_found_without_being_named(store):
    import lancedb

    shared = {"episode": "The Tide Clock", "episode_file": "tide", "difficulty": "hard", "evidence": ["tide_0"]}
    rows = [
        {"id": f"tide:asked:{n}", "qa_index": n, "type": kind, "text": f"text {n}", "answer": f"answer {n}"} | shared
        for n in (1, 0)
        for kind in ("qa_question", "qa_answer")
    ]
    stored = QuestionTable(store.uri)
    assert not stored.changed()
    database = lancedb.connect(store.uri)
    database.create_table("questions", rows)
    found = stored.changed()
    assert stored.changed() is None
    assert [(task.prompt, task.answer, task.evidence) for task in found] == [
        ("text 0", "answer 0", ("tide_0",)),
        ("text 1", "answer 1", ("tide_0",)),
    ]
    database.create_table("questions", [{"something": "else"}], mode="overwrite")
    assert stored.changed() == []


def test_a_memory_without_questions_says_so(store, embedder):
    with served(store.uri, embedder) as service:
        status, found = service.ask("/qa/batch", {})
    assert status == 404 and "midthought memory questions" in found["detail"]


def test_without_the_token_there_is_the_page_and_a_sign_of_life_only(store, embedder):
    with served(store.uri, embedder, access=AccessPolicy(token=TOKEN)) as service:
        document = service.ask("/openapi.json", Authorization=f"Bearer {TOKEN}")[1]
        for path, methods in document["paths"].items():
            if path != "/healthz":
                method = next(iter(methods)).upper()
                for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
                    status, headers, _ = service.answer(path, None, method, **given)
                    assert (status, headers["www-authenticate"]) == (401, "Bearer"), (path, given)
        assert service.ask("/openapi.json")[0] == 401
        assert [service.ask(path)[0] for path in ("/", "/page.js", "/page.css", "/healthz")] == [200] * 4
        assert service.ask("/search", {"query": "yes"}, Authorization=f"bearer {TOKEN}")[0] == 200


def test_a_name_that_was_made_to_point_here_is_refused(service):
    assert service.ask("/stats", Host="evil.example")[0] == 421
    assert service.ask("/", Host=f"evil.example:{service.port}")[0] == 421
    for host in (f"localhost:{service.port}", "127.0.0.1", "[::1]:80"):
        assert service.ask("/stats", Host=host)[0] == 200, host


def test_pages_from_elsewhere_may_not_ask_and_get_no_permission_to(service):
    assert service.ask("/search", {"query": "yes"}, Origin="http://evil.example")[0] == 403
    status, headers, _ = service.answer("/search", None, "OPTIONS", Origin=service.url)
    assert status == 405 and not any(name.startswith("access-control") for name in headers)
    assert service.ask("/search", {"query": "yes"}, Origin=service.url)[0] == 200


def test_every_answer_carries_safe_headers(service):
    for path in ("/", "/stats", "/nothing", "/context?id=none"):
        _, headers, _ = service.answer(path)
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert "server" not in headers


def test_what_is_too_large_or_no_json_is_refused(service):
    assert service.ask("/search", {"query": "x" * 4001})[0] == 422
    assert service.ask("/search", {"query": "x", "k": 101})[0] == 422
    assert service.ask("/search/batch", {"queries": ["x"] * 65})[0] == 422
    assert service.ask("/search", b" " * 300_000)[0] == 413
    assert service.ask("/search", b"{")[0] == 400
    assert service.ask("/search", b"query=x", Content_Type="application/x-www-form-urlencoded")[0] == 415
    assert service.ask("/search", b"\x1f\x8b", Content_Encoding="gzip")[0] == 415


def test_metrics_count_requests_by_route_and_not_by_what_was_asked_for(service):
    service.ask("/search", {"query": "yes"})
    service.ask("/some/path/that/is/not/there")
    metrics = service.ask("/metrics")[1]
    assert 'midthought_memory_requests_total{method="POST",route="/search",status="200"} 1.0' in metrics
    assert 'route="other",status="404"' in metrics and "some/path" not in metrics
    assert "midthought_memory_chunks 6.0" in metrics


def test_openapi_tells_the_limits(service):
    _, document = service.ask("/openapi.json")
    query = document["components"]["schemas"]["Query"]["properties"]
    assert (query["query"]["maxLength"], query["k"]["maximum"]) == (4000, 100)
    assert json.dumps(document["paths"]["/search"]["post"]["responses"]).count("Refusal") >= 5
