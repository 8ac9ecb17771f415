"""A service finds the results of later builds, and answers requests while they write."""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")
pytest.importorskip("fastapi", reason="the serve extra is not installed")

from serving import Running, served

from midthought.memory.service.browse import QuestionTable
from midthought.memory.store import MemoryStore

SECONDS = 0.05
QUESTION = {
    "id": "tide:asked:0", "qa_index": 0, "type": "qa_question", "text": "Which hand?", "answer": "Copper.",
    "episode": "The Tide Clock", "episode_file": "tide", "difficulty": "hard", "evidence": ["tide_0"],
}  # fmt: skip


@pytest.fixture
def other_chunks(chunks):
    words = "A lamplighter counted seven herons on the quay."
    return [replace(chunks[0], chunk_id="quay_0", episode="The Quay", stem="quay", speaker="Eve", transcript=words)]


def best(service: Running) -> str:
    status, found = service.ask("/search", {"query": "herons on the quay", "k": 1})
    assert status == 200
    return found["hits"][0]["chunk_id"]


def version_of(uri: str) -> int:
    import lancedb

    return lancedb.connect(uri).open_table("transcripts").version


def comes(what: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not (come := what()) and time.monotonic() < until:
        time.sleep(SECONDS)
    return come


def test_what_another_process_builds_is_found(store, embedder, chunks, other_chunks):
    with served(store.uri, embedder, follow_seconds=SECONDS) as service:
        assert best(service).startswith("tide")
        store.build(chunks + other_chunks)
        assert comes(lambda: best(service) == "quay_0")
        assert comes(lambda: service.ask("/stats")[1]["num_chunks"] == len(chunks) + 1)
        assert set(service.ask("/episodes")[1]) == {"The Quay", "The Tide Clock"}
        assert "Eve" in service.ask("/speakers")[1]


def test_a_memory_that_was_deleted_is_served_as_soon_as_it_stands_again(store, embedder, other_chunks):
    with served(store.uri, embedder, follow_seconds=SECONDS) as service:
        version = version_of(store.uri)
        shutil.rmtree(store.uri)
        anew = MemoryStore.open(store.uri, embedder=embedder)
        anew.build(other_chunks)
        assert version_of(store.uri) == version  # its files alone tell the two apart
        assert comes(lambda: service.ask("/stats")[1]["num_chunks"] == 1)
        assert best(service) == "quay_0"


def test_questions_that_come_later_are_found(store, embedder):
    import lancedb

    with served(store.uri, embedder, QuestionTable(store.uri), follow_seconds=SECONDS) as service:
        assert service.ask("/qa/batch", {})[0] == 404
        lancedb.connect(store.uri).create_table("questions", [QUESTION])
        assert comes(lambda: service.ask("/qa/batch", {})[0] == 200)
        assert service.ask("/qa/batch", {})[1]["questions"][0]["question"] == "Which hand?"


def test_a_memory_of_another_model_is_not_taken_up(store, embedder, new_embedder, other_chunks, caplog):
    with served(store.uri, embedder, follow_seconds=SECONDS) as service:
        shutil.rmtree(store.uri)
        assert comes(lambda: "the previous version is still served" in caplog.text)
        MemoryStore.open(store.uri, embedder=new_embedder(32)).build(other_chunks)
        assert comes(lambda: "with words (32 dimensions), not with words (64 dimensions)" in caplog.text)
        time.sleep(5 * SECONDS)
        assert caplog.text.count("not with words (64 dimensions)") == 1
        assert service.ask("/stats")[1]["embedding_dimension"] == 64


@pytest.mark.parametrize("failing", ["state.FacetCounts.read", "browse._tasks_of"])
def test_what_fails_once_is_made_up_for(store, embedder, chunks, other_chunks, monkeypatch, failing):
    import lancedb

    with served(store.uri, embedder, QuestionTable(store.uri), follow_seconds=None) as service:
        store.build(chunks + other_chunks)
        lancedb.connect(store.uri).create_table("questions", [QUESTION])
        with monkeypatch.context() as broken:
            broken.setattr(f"midthought.memory.service.{failing}", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                service.state.follow()
        service.state.follow()
        assert service.ask("/stats")[1]["num_chunks"] == len(chunks) + 1
        assert service.ask("/stats")[1]["num_questions"] == 1
