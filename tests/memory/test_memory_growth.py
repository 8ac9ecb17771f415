"""Building, adding to and deleting from a memory: other processes go on searching, a killed process damages nothing, and a build
that is started again gives the same table as an uninterrupted one."""

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
from episodes import episode
from representatives import representatives
from word_embedder import WordEmbedder

from midthought.errors import MemoryStoreError
from midthought.memory.chunks import Chunk
from midthought.memory.store import MemoryStore

NUM_KILLS = 3
SECRET = "Xylotheque keepers whisper about quarzbruch lanterns every leap winter."


def told(stem: str, num_chunks: int) -> list[Chunk]:
    return episode(stem, (f"Line {n} of the episode {stem}." for n in range(num_chunks)))


SECRET_EPISODE = told("zephyrine", 12)
SECRET_EPISODE[3] = replace(SECRET_EPISODE[3], transcript=SECRET)


@pytest.fixture(params=representatives([False, True], False), ids=["small", "large"])
def memory(tmp_path, monkeypatch, request):
    """A memory of 60 chunks in five episodes, one of them added later; large memories have more indices."""
    if request.param:
        monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", 20)
    store = MemoryStore.open(tmp_path / "memory", embedder=WordEmbedder())
    store.build([chunk for stem in ("a", "b", "zephyrin", "zephyrin_e") for chunk in told(stem, 12)])
    store.add(SECRET_EPISODE)
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
    assert memory.add(SECRET_EPISODE).num_added == 12
    assert memory.search(SECRET, 1)[0].chunk_id == "zephyrine_3"


def test_a_name_that_is_not_there_changes_nothing(memory):
    versions = lancedb.connect(memory.uri).open_table("transcripts").list_versions()
    with pytest.raises(MemoryStoreError, match=r"no transcript is named 'zephirine'.* Did you mean 'zephyrin"):
        memory.delete(["a", "zephirine"])
    assert lancedb.connect(memory.uri).open_table("transcripts").list_versions() == versions and len(memory) == 60
    assert memory.delete(["a", "b"]) == 24 and len(memory) == 36
    assert memory.delete(["zephyrin", "zephyrin_e", "zephyrine"]) == 36
    assert memory.search("line", mode="full_text") == [] and memory.add(told("a", 3)).num_added == 3


def test_a_second_writer_waits_until_the_first_has_finished(memory, caplog):
    inside, proceed = threading.Event(), threading.Event()

    class Waiting(WordEmbedder):
        def embed(self, texts):
            inside.set()
            assert proceed.wait(60)
            return super().embed(texts)

    slow = MemoryStore.open(memory.uri, embedder=Waiting())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slow.add, told("y", 2))
        assert inside.wait(60)
        second = pool.submit(MemoryStore.open(memory.uri, embedder=WordEmbedder()).add, told("z", 3))
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
        memory.add(told(f"new{number}", 5))
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
        store.add([*told("new", 40), *told("b", 3)])
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
    first = [chunk for stem in ("a", "b") for chunk in told(stem, 12)] + SECRET_EPISODE
    after = [*first[:12], *told("b", 3), *told("new", 40), *SECRET_EPISODE] if what == "add" else first[:24]
    kill_after = None
    for _ in range(NUM_KILLS + 1):
        MemoryStore.open(uri, embedder=WordEmbedder()).build(first)
        _, passed = run_and_kill(change, uri, min_rows, what, kill_after=kill_after)
        if kill_after is None:
            seconds = passed
        kill_after = rng.uniform(0, seconds)
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


# -- builds ----------------------------------------------------------------------------------------------------------


class SlowEmbedder(WordEmbedder):
    """Writes down what it is asked to embed, before it does; a part takes 10 ms."""

    texts_per_call = 16

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log

    def embed(self, texts):
        with self._log.open("a") as file:
            file.write("".join(f"{text}\n" for text in texts))
        time.sleep(0.01)
        return super().embed(texts)


def build(folder: Path, seed: int, started) -> None:
    folder.mkdir(exist_ok=True)
    store = MemoryStore.open(folder / "memory", embedder=SlowEmbedder(folder / "log"))
    started.set()
    # each text twice; the seeds share half of them
    store.build(episode("e", (f"Words of {number // 2 + seed * 100}." for number in range(400))))


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
