"""A build that is killed at any moment and restarted gives the same table as an uninterrupted one."""

import random
import time
import zlib
from pathlib import Path

import lancedb
import numpy as np
import pytest
from command_process import run_and_kill
from representatives import representatives

from midthought.memory.chunks import Chunk
from midthought.memory.store import MemoryStore

NUM_CHUNKS, NUM_KILLS = 400, 3


class SlowEmbedder:
    """Writes down what it is asked to embed, before it does; a part takes 10 ms."""

    name, dimension, texts_per_call = "slow", 16, 16

    def __init__(self, log: Path) -> None:
        self._log = log

    def embed(self, texts):
        with self._log.open("a") as file:
            file.write("".join(f"{text}\n" for text in texts))
        time.sleep(0.01)
        seeds = [zlib.crc32(text.encode()) for text in texts]
        vectors = np.stack([np.random.default_rng(seed).normal(size=self.dimension) for seed in seeds])
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def chunks_of(seed: int) -> list[Chunk]:
    """Each text twice; the seeds share half of them."""
    return [
        Chunk(f"e_{number}", "E", "e", "Ann", f"Words of {number // 2 + seed * NUM_CHUNKS // 4}.", "00:00:00", number)
        for number in range(NUM_CHUNKS)
    ]


def build(folder: Path, seed: int, started) -> None:
    folder.mkdir(exist_ok=True)
    store = MemoryStore.open(folder / "memory", embedder=SlowEmbedder(folder / "log"))
    started.set()
    store.build(chunks_of(seed))


def rows_at(folder: Path):
    table = lancedb.connect(folder / "memory").open_table("transcripts")
    (index,) = table.list_indices()
    assert (index.columns, index.num_unindexed_rows) == (["transcript"], 0)
    return table.to_arrow()


@pytest.mark.parametrize("over_another", representatives([False, True], False))
def test_a_build_that_was_killed_at_random_moments_ends_in_the_same_table(tmp_path, over_another):
    random_moment, whole = random.Random(7), tmp_path / "whole"
    if over_another:
        run_and_kill(build, whole, 0)
    _, seconds = run_and_kill(build, whole, 1)
    num_killed = 0
    for number in range(NUM_KILLS):
        folder = tmp_path / str(number)
        if over_another:
            run_and_kill(build, folder, 0)
            (folder / "log").unlink()
        was_killed, _ = run_and_kill(build, folder, 1, kill_after=random_moment.uniform(0, seconds))
        num_killed += was_killed
        assert not run_and_kill(build, folder, 1)[0]
        assert rows_at(folder).equals(rows_at(whole))
        assert not (folder / "memory" / "embeddings").exists()
        embedded = (folder / "log").read_text().splitlines()
        assert len(embedded) - len(set(embedded)) <= SlowEmbedder.texts_per_call
        hit = MemoryStore.open(folder / "memory").search("words of 150", 1, "full_text")[0]
        assert hit.transcript == "Words of 150."
    assert num_killed >= NUM_KILLS // 2
