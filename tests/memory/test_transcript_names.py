"""A transcript keeps the name that the memory has for it, however the files that are read together change."""

import random
import shutil
from dataclasses import replace

import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")

from word_embedder import WordEmbedder

from midthought.memory.build import chunk_all
from midthought.memory.names import same_words
from midthought.memory.store import MemoryStore
from midthought.memory.transcripts import read_transcripts

SAID = {
    "a": "The tide clock has a single copper hand and no numerals at all. Bob winds it every third day of the week.",
    "b": "Herring scales were packed around the wheel of the mill. Nobody ever found out who had brought them there.",
    "c": "Eleven oxen pulled at the stone until the rope broke twice. After that they left it where the ferry landed.",
}


def write(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Ann (00:00:01): {SAID[path.parent.name]}\n")


@pytest.fixture
def run(tmp_path, monkeypatch, command):
    monkeypatch.setattr("midthought.memory.embedding.load_embedder", lambda name: WordEmbedder())

    def memory(step: str, files: str, *more: str):
        code, said = command("memory", step, tmp_path / files, "--path", tmp_path / "memory", *more)
        assert code == 0, said.err
        lines = [line for line in said.err.splitlines(keepends=True) if not line.startswith("doubtful: ")]
        return said._replace(err="".join(lines))

    return memory


def stems(tmp_path) -> list[str]:
    return sorted(MemoryStore.open(tmp_path / "memory").stems())


def test_a_second_file_of_the_same_name_does_not_rename_the_first(tmp_path, run):
    write(tmp_path / "same", "a/ep.md")
    run("build", "same")
    assert stems(tmp_path) == ["ep"]
    write(tmp_path / "same", "b/ep.md")
    assert "1 added, 1 kept, 0 removed" in run("build", "same").out and stems(tmp_path) == ["b-ep", "ep"]
    assert "0 added, 2 kept" in run("build", "same").out
    assert "0 added, 1 known" in run("add", "same/b/ep.md").out and stems(tmp_path) == ["b-ep", "ep"]


def test_a_single_file_updates_the_transcript_that_has_its_folder_in_the_name(tmp_path, run):
    write(tmp_path / "same", "a/ep.md", "b/ep.md")
    run("build", "same")
    corrected = tmp_path / "same" / "b" / "ep.md"
    corrected.write_text(corrected.read_text().replace("Herring", "Mackerel"))
    said = run("add", "same/b/ep.md")
    assert "1 added, 0 known, 1 removed" in said.out and said.err == "" and stems(tmp_path) == ["a-ep", "b-ep"]
    shutil.rmtree(tmp_path / "same" / "a")
    assert "1 added" not in run("build", "same", "--replace").out and stems(tmp_path) == ["b-ep"]


def test_the_same_words_under_another_name_are_reported_with_both_names(tmp_path, run):
    write(tmp_path / "same", "a/ep.md", "b/other.md")
    run("build", "same")
    write(tmp_path / "new", "a/tide.md", "c/stone.md")
    said = run("add", "new").err
    assert "a/tide.md (named 'tide'): nearly the same words as 'ep' in the memory" in said and "stone" not in said


def test_a_renamed_file_is_reported_only_if_its_old_name_stays(tmp_path, run, command):
    write(tmp_path / "same", "a/ep.md", "b/other.md")
    run("build", "same")
    (tmp_path / "same" / "a" / "ep.md").rename(tmp_path / "same" / "a" / "tide.md")
    code, said = command("memory", "build", tmp_path / "same", "--path", tmp_path / "memory")
    assert code == 2 and "1 other transcripts (ep) would be removed" in said.err
    renamed = "a/tide.md (named 'tide'): nearly the same words as 'ep' in the memory, which is not in TRANSCRIPTS"
    assert f"{renamed}; if the file was renamed, --replace removes 'ep'" in said.err and "searches" not in said.err
    said = run("build", "same", "--replace")
    assert "1 added, 1 kept, 1 removed" in said.out and said.err == "" and stems(tmp_path) == ["other", "tide"]


def test_a_new_transcript_is_compared_with_few_stored_ones(tmp_path, monkeypatch):
    """Which share some words with it, as all do: reading one takes as long as a search."""
    store = MemoryStore.open(tmp_path / "memory", embedder=WordEmbedder())
    rng, words = random.Random(1), " ".join(SAID.values()).split()
    for n in range(60):
        text = " ".join(rng.choices(words, k=40)).replace(".", "").lower()
        (tmp_path / f"t{n}.txt").write_text(f"Ann (00:00:01): Welcome to the show. {text}.\n")
    read = read_transcripts(tmp_path).transcripts
    store.build(chunk_all(read[:30]))
    compared = []
    words_of = store.words_of
    monkeypatch.setattr(store, "words_of", lambda stems: compared.append(stems) or words_of(stems))
    copy = replace(read[0], stem="copy")
    assert [(new.stem, name) for new, name in same_words([*read[30:], copy], store)] == [("copy", read[0].stem)]
    assert len(compared) < 10


def test_given_transcripts_do_not_hide_a_stored_copy(tmp_path):
    """A passage that all have is as long in those that are given, too."""
    store = MemoryStore.open(tmp_path / "memory", embedder=WordEmbedder())
    said = " ".join(SAID.values())
    for name in ("a", "b", "c", "d", "old"):
        (tmp_path / f"{name}.txt").write_text(f"Ann (00:00:01): {said}{' And so on it went.' * (name == 'old')}\n")
    *given, old = read_transcripts(tmp_path).transcripts
    store.build(chunk_all([*given, old]))
    new = replace(old, stem="new")
    assert list(same_words([*given, new], store)) == [(new, "old")]
