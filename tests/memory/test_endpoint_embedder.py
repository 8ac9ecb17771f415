"""Embeddings from a real HTTP server with `/embeddings` that answers well, badly, slowly or not at all."""

import asyncio
import itertools
import json
import pickle

import numpy as np
import pytest
from chat_server import ChatServer
from episodes import episode

from midthought.errors import MemoryStoreError, SettingsError
from midthought.memory.embedding import embed_queries, embed_texts, load_embedder
from midthought.memory.endpoint_embedder import EndpointEmbedder, EndpointModel

pytest.importorskip("httpx")

KEY = "sk-secret-0123456789"
DIMENSION = 8


def vector_of(text: str) -> list[float]:
    return np.random.default_rng(list(text.encode())).normal(size=DIMENSION).tolist()


def reply(texts: list[str]) -> bytes:
    rows = [{"object": "embedding", "index": row, "embedding": vector_of(text)} for row, text in enumerate(texts)]
    return json.dumps({"object": "list", "data": rows[::-1]}).encode()


class Endpoint(ChatServer):
    """Returns embeddings, unless `faults` has a fault for the request (one per request, None: no fault)."""

    path = "/v1/embeddings"

    def __init__(self) -> None:
        super().__init__()
        self.faults = iter(())

    def next_reply(self, body):
        fault = next(self.faults, None)
        return reply(body["input"]) if fault is None else fault(body["input"])


def answers(change):
    return lambda texts: (200, {}, json.dumps(change(json.loads(reply(texts)))).encode())


@pytest.fixture
def endpoint():
    with Endpoint() as server:
        yield server


def embedder_at(endpoint, **settings) -> EndpointEmbedder:
    defaults = {"texts_per_call": 3, "backoff_seconds": 0.01, "retries": 3, "timeout_seconds": 5.0}
    return EndpointEmbedder(EndpointModel(model="m", base_url=endpoint.url, **{**defaults, **settings}))


def expected(texts):
    vectors = np.asarray([vector_of(text) for text in texts])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


TEXTS = [f"text {number}" for number in range(10)]


def test_vectors_come_in_the_order_of_the_texts_in_batches(endpoint):
    embedder = embedder_at(endpoint, dimension=None)
    assert (embedder.name, embedder.dimension, embedder.dimension) == ("m", DIMENSION, DIMENSION)
    assert len(endpoint.requests) == 1
    np.testing.assert_allclose(embedder.embed(TEXTS), expected(TEXTS), atol=1e-6)
    assert sorted(len(body["input"]) for body in endpoint.requests[1:]) == [1, 3, 3, 3]
    assert embedder.embed([]).shape == (0, DIMENSION)
    assert all("dimensions" not in body and body["model"] == "m" for body in endpoint.requests)

    async def ask():
        return pickle.loads(pickle.dumps(embedder)).embed(TEXTS)  # noqa: S301

    np.testing.assert_allclose(asyncio.run(ask()), expected(TEXTS), atol=1e-6)


def rows(**changes):
    """An answer whose rows have other values."""
    return answers(lambda document: {"data": [{**row, **changes} for row in document["data"]]})


def short(document):
    return {"data": [{**row, "embedding": row["embedding"][:4]} for row in document["data"]]}


@pytest.mark.parametrize(
    "fault",
    [
        lambda texts: (503, {}, b""), answers(lambda document: {"data": document["data"][1:]}),
        rows(index=1), answers(short), rows(embedding=[0.0] * DIMENSION), rows(embedding=[float("nan")] * DIMENSION),
        answers(lambda document: {"data": None}), lambda texts: (200, {}, b"<html>"),
    ],
)  # fmt: skip
def test_a_batch_that_fails_is_sent_again_and_none_is_missing(endpoint, fault):
    endpoint.faults = iter([None, fault, fault, None, fault])
    embedder = embedder_at(endpoint, dimension=DIMENSION)
    np.testing.assert_allclose(embedder.embed(TEXTS), expected(TEXTS), atol=1e-6)
    assert len(endpoint.requests) == 7, "three of four batches failed once"


def test_requests_run_side_by_side_and_no_more_than_set(endpoint):
    endpoint.delay = 0.05
    embedder = embedder_at(endpoint, dimension=DIMENSION, max_concurrency=3, texts_per_call=1)
    np.testing.assert_allclose(embed_texts(TEXTS, embedder), expected(TEXTS), atol=1e-6)
    embedder.embed(TEXTS)
    assert endpoint.num_most == 3


def test_the_key_travels_in_the_header_only_and_comes_from_the_environment(endpoint, monkeypatch):
    monkeypatch.setenv("EMBEDDING_KEY", KEY)
    embedder = load_embedder(f"{endpoint.url}?api_key_env=EMBEDDING_KEY&dimension=4#m")
    endpoint.faults = itertools.repeat(answers(short))
    assert embedder.embed(["a"]).shape == (1, 4)
    assert [each["Authorization"] for each in endpoint.headers] == [f"Bearer {KEY}"]
    assert endpoint.requests[0]["dimensions"] == 4
    assert KEY not in repr(vars(embedder)) and KEY.encode() not in pickle.dumps(embedder)


def test_prompts_stand_before_texts_and_queries_and_are_part_of_the_name(endpoint):
    embedder = embedder_at(endpoint, dimension=DIMENSION, query_prompt="query: ", text_prompt="passage: ")
    assert embedder.name == "m after 'passage: '"
    np.testing.assert_allclose(embedder.embed(["a"]), expected(["passage: a"]), atol=1e-6)
    np.testing.assert_allclose(embed_queries(["a"], embedder), expected(["query: a"]), atol=1e-6)
    endpoint.requests.clear()
    embedder_at(endpoint, dimension=DIMENSION, max_letters=5).embed(["", "123456789"])
    assert endpoint.requests[0]["input"] == [" ", "12345"], "blank and endless texts"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://localhost/v1?texts_per_call=0#m", "texts_per_call must be at least 1, not 0"),
        ("ftp://localhost/v1#m", "is no address"),
        ("http://localhost/v1", "has no model name; write https://HOST/v1#MODEL"),
        ("http://localhost/v1?dimensions=8#m", "Did you mean 'dimension'"),
        ("http://localhost/v1?retries=many#m", "retries='many' in .* is not a number"),
        ("http://localhost/v1?api_key_env=NOT_SET#m", "NOT_SET is not set"),
    ],
)
def test_an_address_that_cannot_work_is_refused(url, words):
    with pytest.raises(SettingsError, match=words):
        load_embedder(url)


def test_an_address_has_all_settings_of_an_endpoint():
    url = "https://host:8080/v1?query_prompt=query:%20&text_prompt=a%26b&timeout_seconds=2.5&retries=0&dimension=512#org/m-1"
    assert EndpointModel.of_url(url) == EndpointModel(
        model="org/m-1", base_url="https://host:8080/v1", query_prompt="query: ", text_prompt="a&b",
        timeout_seconds=2.5, retries=0, dimension=512,
    )  # fmt: skip


def test_what_was_paid_for_before_a_failure_is_not_asked_for_again(endpoint, tmp_path):
    from midthought.memory.store import MemoryStore

    chunks = episode("a", TEXTS)
    endpoint.faults = iter([None, None, lambda texts: (400, {}, b"no")])
    embedder = embedder_at(endpoint, dimension=DIMENSION, max_concurrency=1)
    with pytest.raises(MemoryStoreError, match="run the command again to continue"):
        MemoryStore.open(tmp_path / "memory", embedder=embedder).build(chunks)
    assert MemoryStore.open(tmp_path / "memory", embedder=embedder).build(chunks).num_embedded == 4
    sent = [text for body in endpoint.requests for text in body["input"]]
    assert sorted(sent) == sorted([*TEXTS, *TEXTS[6:9]])
