"""Vectors of a window's sentences: how they order the windows, and what keeps them over changes of a memory."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.memory.build import embed_chunks
from midthought.memory.chunks import chunk_transcript, read_chunks, write_chunks
from midthought.memory.embedding import packed
from midthought.memory.embedding import window_scores as scores
from midthought.memory.rows import read_rows, sentences_of_rows, write_rows
from midthought.memory.splitting import Chunking, sentences_of
from midthought.memory.store import MemoryStore
from midthought.memory.transcripts import Transcript
from midthought.memory.turns import Turn


def episode(name: str, *sentences: str) -> Transcript:
    turns = tuple(
        Turn(speaker, text) for speaker, text in zip(("Ann", "Bob") * len(sentences), sentences, strict=False)
    )
    return Transcript(name.title(), name, turns, Path(f"{name}.txt"), "text", "utf-8")


def windows_of(transcript: Transcript):
    return chunk_transcript(transcript, Chunking("windows"))


def filler(subject: str, num: int) -> str:
    return " ".join(f"The {subject} number {n} was painted green before winter came back." for n in range(num))


TIDE = episode("tide", filler("buoy", 12), f"The copper hand points at the drowned chapel. {filler('rope', 12)}")
KILN = episode("kiln", filler("brick", 25))


def stored_sentences(store: MemoryStore) -> dict[str, bytes]:
    import lancedb

    rows = lancedb.connect(store.uri).open_table(store.table).to_arrow()
    sentences = sentences_of_rows(rows)
    return {} if sentences is None else dict(zip(rows["id"].to_pylist(), sentences, strict=True))


def test_short_sentences_are_joined_to_the_next():
    text = "Yeah. Right? The kiln was far too hot for that glaze. We let it cool. And then the second firing began at noon."
    assert sentences_of(text) == [
        "Yeah. Right? The kiln was far too hot for that glaze.",
        "We let it cool. And then the second firing began at noon.",
    ]
    assert " ".join(sentences_of(text)) == text
    assert sentences_of("Good morning.") == ["Good morning."]


@given(st.integers(1, 5), st.integers(2, 48), st.integers(0, 2**32 - 1))
def test_packed_vectors_keep_their_cosines(num, dimension, seed):
    drawn = np.random.default_rng(seed).normal(size=(num, dimension)).astype(np.float32)
    vectors = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    content = packed(vectors)
    assert len(content) == num * dimension
    one_each = [packed(vector[None]) for vector in vectors]
    assert content == b"".join(one_each)
    for query in vectors:
        cosines = np.array(scores([0.0] * num, query, one_each)) * 1.8 / 0.8
        assert np.abs(cosines - vectors @ query).max() < 0.01


def test_the_scores_by_hand():
    query = np.array([1, 0], dtype=np.float32)
    many, one = packed(np.array([[0, 1], [1, 0], [0.6, 0.8], [-1, 0]], dtype=np.float32)), packed(query[None])
    assert scores([0.5, 0.5], query, [many, one]) == pytest.approx(
        [(0.5 + 0.8 * (1 + 0.6) / 2) / 1.8, (0.5 + 0.8) / 1.8], abs=0.01
    )


@pytest.mark.parametrize("content", [b"", b"123"])
def test_without_whole_vectors_the_score_is_the_cosine(content):
    query = np.array([0, 1], dtype=np.float32)
    assert scores([0.25, 0.0], query, [content, packed(query[None])]) == pytest.approx([0.25, 0.8 / 1.8])
    assert scores([], query, []) == []


def test_a_window_with_the_sentence_that_was_asked_for_is_first(tmp_path, new_embedder):
    store = MemoryStore.open(tmp_path, embedder=new_embedder())
    store.build([*windows_of(TIDE), *windows_of(KILN)])
    hits = store.search("The copper hand points at the drowned chapel.", 3, "vector")
    assert "drowned chapel" in hits[0].transcript
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    queries = [
        "The brick number 7 was painted green before winter came back.",
        "The copper hand points at the drowned chapel.",
    ]
    together = store.search_batch(queries, 3, "vector")
    assert [hit.chunk_id for hit in together[1]] == [hit.chunk_id for hit in hits]
    assert together[0][0].episode == "Kiln"


def test_every_window_has_the_vectors_of_its_sentences_also_by_the_steps_one_by_one(tmp_path, new_embedder):
    chunks = windows_of(TIDE)
    together = MemoryStore.open(tmp_path / "together", embedder=new_embedder())
    together.build(chunks)
    embedder = new_embedder()
    assert stored_sentences(together) == {
        each.chunk_id: packed(embedder.embed(each.embedded_sentences)) for each in chunks
    }
    write_chunks(chunks, tmp_path / "chunks.jsonl")
    write_rows(embed_chunks(read_chunks(tmp_path / "chunks.jsonl"), new_embedder()), tmp_path / "rows.parquet")
    apart = MemoryStore.open(tmp_path / "apart", embedder=new_embedder())
    apart.ingest(read_rows(tmp_path / "rows.parquet"))
    assert stored_sentences(apart) == stored_sentences(together) and apart.chunks() == together.chunks() == chunks
    assert not apart.build(chunks).changes
    apart.build(chunk_transcript(TIDE, 18))
    assert stored_sentences(apart) == {}, "chunks by turns have none"


@pytest.mark.parametrize("first_is_window", [True, False])
def test_a_window_and_a_turn_with_the_same_words_do_not_share_the_vectors_of_sentences(
    tmp_path, new_embedder, first_is_window
):
    turn = chunk_transcript(episode("turn", "The gull took it."), 18)
    window = windows_of(episode("window", "The gull took it."))
    store = MemoryStore.open(tmp_path, embedder=new_embedder())
    store.build(windows_of(TIDE))
    for chunks in (window, turn) if first_is_window else (turn, window):
        store.add(chunks)
    sentences = stored_sentences(store)
    assert sentences["turn_0"] == b"" and sentences["window_0"] == packed(new_embedder().embed(["The gull took it."]))


def test_a_large_memory_that_is_changed_in_place_keeps_its_columns(tmp_path, new_embedder, monkeypatch):
    monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", 7)
    show = [window for n in range(8) for window in windows_of(episode(f"boat{n}", filler(f"plank of boat {n}", 30)))]
    store = MemoryStore.open(tmp_path, embedder=new_embedder())
    store.ingest(embed_chunks(show, new_embedder()))
    loom = windows_of(episode("loom", filler("thread", 9)))
    other = new_embedder()
    changed = MemoryStore.open(tmp_path, embedder=other)
    changed.add(loom)
    stored = stored_sentences(changed)
    assert all("thread" in text for text in other.embedded)
    assert stored[loom[0].chunk_id] == packed(other.embed(loom[0].embedded_sentences))
    assert changed.search("The thread number 3 was painted green before winter came back.", 1)[0].episode == "Loom"
    assert len(changed.chunks()) == len(show) + len(loom)
