"""Bad input and full disks: one clear message, bounded memory, nothing half built."""

import contextlib
import os
import resource
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from episodes import episode
from hypothesis import given, settings
from hypothesis import strategies as st
from representatives import representatives

from midthought.errors import MidthoughtError, StorageError, TranscriptError
from midthought.memory.build import build_memory, chunk_all
from midthought.memory.inspection import notices
from midthought.memory.questions import read_questions
from midthought.memory.store import MemoryStore
from midthought.memory.transcripts import read_transcript, read_transcripts

MODES = ("full_text", "vector", "hybrid")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "episodes"
    folder.mkdir()
    return folder


def sparse(path: Path) -> Path:
    """A file of 2 GiB that takes no space on the disk."""
    with path.open("wb") as file:
        file.truncate(2**31)
    return path


def test_a_file_of_two_gigabytes_is_refused_unread_and_the_others_are_built(folder, tmp_path, embedder):
    for name in ("long.txt", "long.json", "long.pdf", "long"):
        sparse(folder / name)
    with pytest.raises(TranscriptError, match=r"long: larger than 256 MiB; split it by episode \(and 3 more files"):
        build_memory(folder, tmp_path / "memory", embedder=embedder)
    assert not (tmp_path / "memory").exists()
    (folder / "tide.txt").write_text("Ann (00:01): A clock.\n")
    tracemalloc.start()
    try:
        assert build_memory(folder, tmp_path / "memory", embedder=embedder).num_added == 1
        sparse(folder / "speakers.yaml")
        with pytest.raises(TranscriptError, match=r"speakers\.yaml: .* more than 262,144 bytes; .*write lines such as"):
            read_transcript(folder / "tide.txt")
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_binary_files_are_named_one_by_one_and_nothing_is_built(folder, tmp_path, embedder):
    binary = {"picture.txt": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "packed.json": b"\x1f\x8b\x08\0", "zeros.vtt": bytes(4)}
    for name, head in binary.items():
        (folder / name).write_bytes(head * 1000)
    with pytest.raises(TranscriptError, match=r"and 2 more files that cannot be read"):
        build_memory(folder, tmp_path / "memory", embedder=embedder)
    assert not (tmp_path / "memory").exists() and embedder.embedded == []
    (folder / "tide.txt").write_text("Ann (00:01): A clock.\n")
    found = read_transcripts(folder)
    assert sorted(path.name for path, _ in found.failures) == sorted(binary)
    assert all("\n" not in reason and ";" in reason for _, reason in found.failures)
    assert [each.stem for each in found.transcripts] == ["tide"]
    for number in range(30):
        (folder / f"{number:02}.json").write_text("{")
    lines = notices(read_transcripts(folder))
    assert len([line for line in lines if line.startswith("not read: ")]) == 20, "the first are named, the rest counted"
    assert "13 more files cannot be read (--json lists all)" in lines


names = st.lists(
    st.tuples(st.sampled_from(["", "a/", "a-b/", "a/b/"]), st.sampled_from(["x", "a-x", "x_1", "a-b-x"]),
              st.sampled_from([".txt", ".md", "", ".txt.md"])).map("".join),
    min_size=1, max_size=12, unique=True,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(names)
def test_whatever_the_files_are_named_every_chunk_has_an_id_of_its_own(tmp_path_factory, paths):
    folder = tmp_path_factory.mktemp("named")
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"Ann (00:01): The words of {path}.\nBob (00:02): Yes.\n")
    found = read_transcripts(folder).transcripts
    chunk_ids = [chunk.chunk_id for chunk in chunk_all(found)]
    assert len(chunk_ids) == len(set(chunk_ids)) == 2 * len(found)


# -- full disks ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def numbers(num_texts: int) -> list[str]:
    """Texts that do not repeat each other."""
    return [f"{number} {number**7 + 11:o} {number**9 + 5:x}" for number in range(num_texts)]


def test_a_full_disk_leaves_the_memory_as_it_was_and_a_new_one_unbuilt(small_disk, chunks, embedder):
    store, new = (MemoryStore.open(small_disk / name, embedder=embedder) for name in ("memory", "new"))
    store.build(chunks)
    for act in (store.add, new.build):
        with pytest.raises(StorageError, match=r"no space is left on the device; free some space there"):
            act(episode("x", numbers(5_000)))
    again = MemoryStore.open(small_disk / "memory", embedder=embedder)
    assert again.chunks() == chunks and not new.is_built
    assert [again.search("herring scales", 1, mode)[0].chunk_id for mode in MODES] == ["tide_3"] * 3
    assert again.add(episode("x", numbers(20))).num_added == 20 and again.delete(["tide"]) == 6


def test_a_memory_on_a_read_only_disk_is_searched_and_found_complete_but_not_changed(small_disk, chunks, embedder):
    store = MemoryStore.open(small_disk / "memory", embedder=embedder)
    store.build(chunks)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert not store.build(chunks).changes and store.search("herring", 1)[0].chunk_id == "tide_3"
    for act in (lambda: store.add(episode("x", numbers(3))), lambda: store.delete(["tide"])):
        with pytest.raises(StorageError, match="the file system is read-only"):
            act()
    assert store.chunks() == chunks


@contextlib.contextmanager
def files_of_at_most(max_bytes: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("is_large", representatives([False, True], True))
def test_a_write_that_fails_anywhere_leaves_the_memory_as_it_was(tmp_path, embedder, monkeypatch, is_large):
    """The limit on the size of files stops the build at another file each time."""
    monkeypatch.setattr("midthought.memory.indices.MIN_ROWS_FOR_VECTOR_INDEX", 300 if is_large else 10_000)
    first, added = episode("x", numbers(400)), episode("y", (f"y {text}" for text in numbers(50)))

    def opened(name: str) -> MemoryStore:
        return MemoryStore.open(tmp_path / name, embedder=embedder, embedding_cache=tmp_path / "cache")

    opened("memory").build(first)
    opened("other").build([*first, *added])  # nothing is left to embed
    num_failed = 0
    for max_bytes in (0, 700, 2_000, 5_000, 20_000, 60_000):
        store = opened("memory")
        try:
            with files_of_at_most(max_bytes):
                is_added = store.add(added).changes
        except MidthoughtError as error:
            is_added, num_failed = False, num_failed + 1
            assert isinstance(error, StorageError) and "larger than allowed" in str(error), error
        reader = opened("memory")
        assert len(reader) == (450 if is_added else 400), max_bytes
        assert [reader.search(first[7].transcript, 1, mode)[0].chunk_id for mode in MODES] == ["x_7"] * 3
        reader.build(first)
    assert num_failed >= 3


def test_a_cache_on_a_full_disk_is_named(tmp_path, chunks, embedder):
    store = MemoryStore.open(tmp_path / "memory", embedder=embedder, embedding_cache=tmp_path / "cache")
    full = pytest.raises(StorageError, match=r"cache.*: the file would be larger than allowed here")
    with files_of_at_most(100), full:
        store.build(chunks)
    assert not store.is_built and not (tmp_path / "memory").exists()


def test_a_transcript_that_is_a_broken_link_or_a_pipe_is_named_and_not_left_out(folder):
    (folder / "good.md").write_text("**Ann:** The clock ran eleven minutes fast and nobody dared to correct it.\n" * 3)
    (folder / "gone.md").symlink_to(folder / "nowhere")
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "device.md").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.md")
    found = read_transcripts(folder)
    assert [transcript.stem for transcript in found.transcripts] == ["good"]
    assert [path.name for path, _ in found.failures] == ["device.md", "gone.md", "loop.md", "pipe.md"]
    assert all("a link to nothing, or no regular file" in words for _, words in found.failures)
    assert "gone.md" in "\n".join(notices(found))


def test_questions_in_a_pipe_or_an_endless_file_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with (tmp_path / "questions.jsonl").open("wb") as file:
        file.truncate(2**35)
    for name, words in (("pipe.jsonl", "a named pipe"), ("questions.jsonl", "34,359,738,368 bytes")):
        with pytest.raises(TranscriptError, match=f"{name} cannot be read: .*{words}"):
            read_questions(tmp_path / name)
