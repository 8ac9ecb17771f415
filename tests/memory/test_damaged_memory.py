"""A memory whose files are damaged: errors of LanceDB and Arrow are one sentence; the disk's too."""

import dataclasses
import shutil
from pathlib import Path

import lancedb
import pyarrow as pa
import pytest
from damage import damage
from episodes import episode

from midthought.errors import MemoryStoreError, StorageError
from midthought.memory.build import embed_chunks
from midthought.memory.rows import SENTENCES
from midthought.memory.service.searcher import stored_questions
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
            assert str(folder) in str(error) and "\n" not in str(error) and ".rs:" not in str(error), (done, error)
    assert num_refused >= 8


def test_damaged_questions_of_a_memory_raise_one_sentence_with_its_path(store):
    lancedb.connect(store.uri).create_table("questions", [{"id": "q"}])
    for path in (Path(store.uri) / "questions.lance").rglob("*"):
        if path.is_file():
            path.write_bytes(b"xx")
    with pytest.raises(MemoryStoreError, match=r"LanceDB cannot read or write the memory .* delete it") as error:
        stored_questions(store.uri)
    assert store.uri in str(error.value) and ".rs:" not in str(error.value)


WINDOWS = episode(
    "w", (f"The clock number {n} is late." for n in range(3)), turns=((0, "Ann"),), embedded="Tide: a clock"
)


ODD_COLUMNS = [
    *((name, [7, 7, 7]) for name in ("id", "episode", "embedding_model", "turns", "embedded")),
    *((name, [["a"]] * 3) for name in ("chunk_id", "vector", SENTENCES)),
    ("speakers", [1, 2, 3]),
    *((name, None) for name in ("turns", "embedded", "vector")),
    ("embedding_dimension", [7] * 3),
]


@pytest.mark.parametrize(("name", "values"), ODD_COLUMNS)
def test_a_table_of_others_with_odd_columns_is_one_sentence_with_its_path(name, values, embedder, tmp_path):
    rows = embed_chunks(WINDOWS, embedder)
    number = rows.column_names.index(name)
    rows = rows.remove_column(number) if values is None else rows.set_column(number, name, pa.array(values))
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
