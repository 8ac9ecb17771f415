"""Adding to and deleting from a memory: other processes go on searching, a killed process damages nothing."""

import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import lancedb
import pytest
from command_process import FORKS, run_and_kill
from representatives import representatives
from word_embedder import WordEmbedder

from midthought.errors import MemoryStoreError
from midthought.memory.chunks import Chunk
from midthought.memory.store import MemoryStore

NUM_KILLS = 3
SECRET = "Xylotheque keepers whisper about quarzbruch lanterns every leap winter."


def episode(stem: str, num_chunks: int) -> list[Chunk]:
    return [
        Chunk(
            f"{stem}_{n}", f"Title {stem}", stem, f"Voice of {stem}", f"Line {n} of the episode {stem}.", "00:00:00", n
        )
        for n in range(num_chunks)
    ]


def secret_episode() -> list[Chunk]:
    return [replace(one, transcript=SECRET) if one.number == 3 else one for one in episode("zephyrine", 12)]


@pytest.fixture(params=representatives([False, True], False), ids=["small", "large"])
def memory(tmp_path, monkeypatch, request):
    """A memory of 60 chunks in five episodes, one of them added later; large memories have more indices."""
    if request.param:
        monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", 20)
    store = MemoryStore.open(tmp_path / "memory", embedder=WordEmbedder())
    store.build([chunk for stem in ("a", "b", "zephyrin", "zephyrin_e") for chunk in episode(stem, 12)])
    store.add(secret_episode())
    return store


def test_a_deleted_transcript_is_not_found_and_all_others_are(memory, call):
    kept = [chunk for chunk in memory.chunks() if chunk.stem != "zephyrine"]
    assert memory.search(SECRET, 1)[0].chunk_id == "zephyrine_3"
    code, said, _ = call("memory", "delete", "zephyrine", "--path", memory.uri)
    assert code == 0 and "12 chunks deleted" in said
    memory.refresh()
    assert memory.chunks() == kept
    for mode in ("full_text", "vector", "hybrid"):
        assert all(hit.chunk_id.startswith(("a_", "b_", "zephyrin_")) for hit in memory.search(SECRET, 60, mode))
    assert memory.add(secret_episode()).num_added == 12
    assert memory.search(SECRET, 1)[0].chunk_id == "zephyrine_3"


def test_a_name_that_is_not_there_changes_nothing(memory):
    versions = lancedb.connect(memory.uri).open_table("transcripts").list_versions()
    with pytest.raises(MemoryStoreError, match=r"no transcript is named 'zephirine'.* Did you mean 'zephyrin"):
        memory.delete(["a", "zephirine"])
    assert lancedb.connect(memory.uri).open_table("transcripts").list_versions() == versions and len(memory) == 60
    assert memory.delete(["a", "b"]) == 24 and len(memory) == 36
    assert memory.delete(["zephyrin", "zephyrin_e", "zephyrine"]) == 36
    assert memory.search("line", mode="full_text") == [] and memory.add(episode("a", 3)).num_added == 3


def test_a_second_writer_waits_until_the_first_has_finished(memory, caplog):
    inside, proceed = threading.Event(), threading.Event()

    class Waiting(WordEmbedder):
        def embed(self, texts):
            inside.set()
            assert proceed.wait(60)
            return super().embed(texts)

    slow = MemoryStore.open(memory.uri, embedder=Waiting())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slow.add, episode("y", 2))
        assert inside.wait(60)
        second = pool.submit(MemoryStore.open(memory.uri, embedder=WordEmbedder()).add, episode("z", 3))
        while "another process is writing this memory; waiting" not in caplog.text:
            assert not second.done()
            time.sleep(0.01)
        proceed.set()
        assert (first.result().num_added, second.result().num_added) == (2, 3)
    assert len(MemoryStore.open(memory.uri)) == 65 and not list(Path(memory.uri).glob("*.lock"))


# -- other processes -------------------------------------------------------------------------------------------


def keep_searching(uri: str, started, stop, found) -> None:
    """Searches the newest version of the memory until `stop`; reports the errors and the number of chunks at the end."""
    store, errors, num_searches = MemoryStore.open(uri, embedder=WordEmbedder()), [], 0
    started.set()
    while not stop.is_set():
        try:
            hits = store.search("Line 1 of the episode a.", 1, ("hybrid", "vector", "full_text")[num_searches % 3])
            if not hits or hits[0].chunk_id != "a_1":
                errors.append(f"found {hits}")
            store.refresh()
        except Exception as error:
            errors.append(repr(error))
        num_searches += 1
    found.put((errors, num_searches, len(store)))


def test_another_process_searches_without_errors_while_episodes_are_added_and_deleted(memory):
    started, stop, found = FORKS.Event(), FORKS.Event(), FORKS.Queue()
    process = FORKS.Process(target=keep_searching, args=(memory.uri, started, stop, found))
    process.start()
    assert started.wait(60)
    for number in range(4):
        memory.add(episode(f"new{number}", 5))
        assert memory.search(f"Line 4 of the episode new{number}.", 1, "full_text")[0].chunk_id == f"new{number}_4"
    memory.delete(["new0", "new1"])
    time.sleep(0.2)
    stop.set()
    errors, num_searches, num_chunks = found.get(timeout=60)
    process.join()
    assert errors == [] and num_searches > 5 and num_chunks == 70


def change(uri: str, min_rows: int, what: str, started) -> None:
    from midthought.memory import indices

    indices.MIN_ROWS_FOR_VECTOR_INDEX = min_rows
    store = MemoryStore.open(uri, embedder=WordEmbedder())
    started.set()
    if what == "add":
        store.add([*episode("new", 40), *episode("b", 3)])
    else:
        store.delete(["zephyrine"])


@pytest.mark.parametrize(  # memories of 20 rows are large
    ("what", "min_rows"), representatives(product(["add", "delete"], [20, 1_000]), ("add", 1_000), ("delete", 20))
)
def test_a_process_killed_while_it_adds_or_deletes_leaves_the_memory_as_before_or_after(
    tmp_path, monkeypatch, min_rows, what
):
    monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", min_rows)
    rng, uri = random.Random(3), str(tmp_path / "memory")
    first = [chunk for stem in ("a", "b") for chunk in episode(stem, 12)] + secret_episode()
    after = [*first[:12], *episode("b", 3), *episode("new", 40), *secret_episode()] if what == "add" else first[:24]
    seconds = 0.5
    for number in range(NUM_KILLS + 1):
        store = MemoryStore.open(uri, embedder=WordEmbedder())
        store.build(first)
        kill_after = rng.uniform(0, seconds) if number else None
        _, passed = run_and_kill(change, uri, min_rows, what, kill_after=kill_after)
        seconds = seconds if number else passed
        again = MemoryStore.open(uri, embedder=WordEmbedder())
        chunks = again.chunks()
        assert chunks in (first, after), f"{len(chunks)} chunks"
        for mode in ("hybrid", "vector", "full_text"):
            assert again.search("Line 1 of the episode a.", 1, mode)[0].chunk_id == "a_1"
            is_there = "zephyrine_3" in [hit.chunk_id for hit in again.search(SECRET, 1, mode)]
            assert is_there == (chunks == first or what == "add")
        if what == "delete":
            with contextlib.suppress(MemoryStoreError):  # if the killed process had finished
                again.delete(["zephyrine"])
            assert again.chunks() == after
