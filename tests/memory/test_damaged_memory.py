"""A memory whose files are damaged: errors of LanceDB and Arrow are one sentence; the disk's too."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from damage import damage

pytest.importorskip("lancedb", reason="the memory extra is not installed")

import lancedb
import pyarrow as pa

from midthought.errors import MemoryStoreError, StorageError
from midthought.memory.build import embed_chunks
from midthought.memory.chunks import Chunk
from midthought.memory.rows import SENTENCES
from midthought.memory.store import MemoryStore


def test_a_damaged_memory_raises_one_sentence_with_its_path(store, embedder, chunks, tmp_path):
    other = MemoryStore.open(tmp_path / "other", embedder=embedder)
    other.build(chunks[:3])
    num_refused = 0
    for seed in range(24):
        folder = tmp_path / f"memory{seed}"
        shutil.copytree(store.uri, folder)
        done = damage(folder, tmp_path / "other", seed, kinds=("flip", "truncate", "empty", "missing", "swap"))
        try:
            damaged = MemoryStore.open(folder, embedder=embedder)
            for mode in ("full_text", "vector", "hybrid"):
                damaged.search("a boy's mitten", mode=mode)
            assert len(damaged.chunks()) == len(damaged)
            damaged.build(chunks)
        except (MemoryStoreError, StorageError) as error:
            num_refused += 1
            assert str(folder) in str(error) and "\n" not in str(error), (done, error)
    assert num_refused >= 8


def test_an_error_of_the_embedder_stays_what_it_is(tmp_path, embedder, chunks):
    def fail(texts):
        raise ValueError("no such word")

    embedder.embed = fail
    with pytest.raises(ValueError, match=r"^no such word$"):
        MemoryStore.open(tmp_path / "memory", embedder=embedder).build(chunks)


@pytest.mark.parametrize(
    "pattern", ["data/*.lance", "_versions/*.manifest", "_versions/*.json", "_indices/*/*_invert.lance"]
)
def test_a_pipe_in_a_memory_is_named_and_not_waited_for(pattern, store, embedder, chunks):
    file = sorted((Path(store.uri) / "transcripts.lance").glob(pattern))[0]
    file.unlink()
    os.mkfifo(file)
    for use in (
        lambda memory: memory.search("mitten"),
        lambda memory: memory.add(chunks[:1]),
        lambda memory: memory.delete(["a"]),
    ):
        with pytest.raises(StorageError, match=rf"{file} is a named pipe, not a file; move it away"):
            use(MemoryStore.open(store.uri, embedder=embedder))


def test_a_note_of_versions_that_has_no_end_is_not_read_into_memory(store, embedder, chunks):
    """LanceDB ends the process when it cannot allocate so many bytes."""
    note = Path(store.uri) / "transcripts.lance/_versions/latest_version_hint.json"
    os.truncate(note, 2**35)
    with pytest.raises(StorageError, match=f"{note} has 34,359,738,368 bytes"):
        MemoryStore.open(store.uri, embedder=embedder).add(chunks[:1])


def test_an_older_version_is_not_served_because_the_newest_ones_file_is_gone(store, embedder, chunks):
    newer = [dataclasses.replace(chunk, stem="b", chunk_id=f"b_{chunk.number}") for chunk in chunks]
    store.add(newer)
    num_chunks = len(store)
    versions = sorted(
        (Path(store.uri) / "transcripts.lance/_versions").glob("*.manifest")
    )  # the newest one is the first
    while len(MemoryStore.open(store.uri, embedder=embedder)) == num_chunks:
        versions.pop(0).unlink()
        with pytest.raises(
            MemoryStoreError, match=r"is missing. Restore it from a copy, or, to go on with version"
        ) as error:
            len(MemoryStore.open(store.uri, embedder=embedder))
        note = Path(str(error.value).rpartition("delete ")[2])
        note.rename(note.with_suffix(".bak"))
    assert len(MemoryStore.open(store.uri, embedder=embedder)) < num_chunks


def test_an_error_of_lancedb_names_no_place_in_its_sources(store, embedder):
    for file in (Path(store.uri) / "transcripts.lance/data").iterdir():
        file.write_bytes(b"")
    with pytest.raises(MemoryStoreError) as error:
        MemoryStore.open(store.uri, embedder=embedder).search("mitten")
    assert ".rs:" not in str(error.value)


WINDOWS = [
    Chunk(
        f"w_{n}", "Tide", "w", "Ann", f"The clock number {n} is late.", "00:00:01", n, ((0, "Ann"),), f"Tide: clock {n}"
    )
    for n in range(3)
]


def changed(rows: pa.Table, name: str, values: list[Any] | None) -> pa.Table:
    """The rows with other values in a column, or without it."""
    number = rows.column_names.index(name)
    return rows.remove_column(number) if values is None else rows.set_column(number, name, pa.array(values))


ODD_COLUMNS = [
    *((name, [7, 7, 7]) for name in ("id", "episode", "speaker", "transcript", "time", "embedding_model", "turns", "embedded")),
    *((name, [None, "a", "a"]) for name in ("id", "episode", "speaker", "transcript", "time", "embedding_model")),
    *((name, [["a"]] * 3) for name in ("chunk_id", "embedding_dimension", "vector", SENTENCES)),
    ("speakers", [1, 2, 3]),
    *(("turns", [text] * 3) for text in ("{", "[" * 100_000, '{"a": 1}', "5", '[["a", "b"]]', "[[1, 2]]", None)),
    ("turns", None),
    ("embedded", None),
    ("vector", None),
    ("embedding_dimension", [7] * 3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values"), ODD_COLUMNS)
def test_a_table_of_others_with_odd_columns_is_one_sentence_with_its_path(name, values, embedder, tmp_path):
    rows = changed(embed_chunks(WINDOWS, embedder), name, values)
    lancedb.connect(tmp_path).create_table("transcripts", rows)
    for use in (
        lambda memory: memory.search("clock", 2, "vector", speakers=["Ann"]),
        lambda memory: memory.chunks(),
        lambda memory: memory.add([dataclasses.replace(WINDOWS[0], stem="b", chunk_id="b_0")]),
        lambda memory: memory.delete(["w"]),
    ):
        with pytest.raises(MemoryStoreError) as error:
            use(MemoryStore.open(tmp_path, embedder=embedder))
        assert str(tmp_path) in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 500
