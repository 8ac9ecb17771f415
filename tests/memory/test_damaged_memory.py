"""A memory whose files are damaged: errors of LanceDB and Arrow are one sentence; the disk's too."""

from __future__ import annotations

import shutil

import pytest
from damage import damage

pytest.importorskip("lancedb", reason="the memory extra is not installed")

from midthought.errors import MemoryStoreError, StorageError
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
