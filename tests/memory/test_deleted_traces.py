"""After a deletion, files with words of the transcript are named, and no question names what only that transcript had."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("lancedb", reason="the memory extra is not installed")

import pyarrow as pa
import pyarrow.parquet as parquet
from word_embedder import WordEmbedder

from midthought.cluster.verl.rows import rows_of, write_parquet
from midthought.memory.chunks import Chunk
from midthought.memory.llm_questions.records import question_rows, store_questions
from midthought.memory.questions import write_questions
from midthought.memory.store import MemoryStore
from midthought.types import Task

SHORE = [
    ("Ann Lee", "The Threshing Stone stands where the old ferry used to land."),
    ("Bob Ray", "Did nobody ever think of moving it further inland, before the storm?"),
    ("Ann Lee", "They tried that twice with eleven oxen, and the rope broke twice."),
]
AD = "This show is brought to you by the makers of good copper kettles."


@pytest.fixture
def memory(tmp_path, monkeypatch, command):
    """Two episodes of several speakers, built with windows as the command does, and a third one added to both."""
    monkeypatch.setattr("midthought.memory.embedding.load_embedder", lambda name: WordEmbedder())
    talks = tmp_path / "talks"
    talks.mkdir()
    turns = [f"{name} (00:00:{n:02d}): {said}" for n, (name, said) in enumerate([*SHORE, ("Dee", AD)])]
    (talks / "shore.txt").write_text("\n\n".join(turns) + "\n")
    (talks / "mill.txt").write_text(
        f"Cy Poe (00:00:01): The wheel turns slowly in winter. {AD}\n\nAnn (00:00:09): Yes.\n"
    )
    assert command("memory", "build", talks, "--path", tmp_path / "memory")[0] == 0
    return tmp_path / "memory"


def captions() -> str:
    """Two words of speech in each cue."""
    words = " ".join(said for _, said in SHORE).split()
    cues = (" ".join(words[start : start + 2]) for start in range(0, len(words), 2))
    return "".join(f"{n}\n00:00:{n:02d},000 --> 00:00:{n + 1:02d},000\n{cue}\n\n" for n, cue in enumerate(cues, 1))


COPIES = {
    "as it was.md": lambda talks: (talks / "shore.txt").read_bytes(),
    "bold.md": lambda talks: "\n\n".join(f"**{name}:** {said}" for name, said in SHORE).encode(),
    "wide.txt": lambda talks: (talks / "shore.txt").read_text().encode("utf-16"),
    "lines.txt": lambda talks: SHORE[2][1].upper().replace(", ", "\n  ").encode(),
    "cues.srt": lambda talks: captions().encode(),
    "escaped.json": lambda talks: json.dumps({"segments": [{"text": word} for word in SHORE[1][1].split()]}).encode(),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_file_with_the_words_is_named_however_they_are_written(memory, command, name):
    (memory / name).write_bytes(COPIES[name](memory.parent / "talks"))
    code, said = command("memory", "delete", "shore", "--path", memory)
    assert code == 0 and f"{name}: it still has words of them" in said.err


def test_a_file_with_words_that_remaining_transcripts_have_is_not_named(memory, command):
    (memory / "ad.txt").write_text(AD)
    (memory / "other.txt").write_text("Notes about something else that nobody in the memory has ever said to anyone.")
    code, said = command("memory", "delete", "shore", "--path", memory)
    assert code == 0 and said.err == ""
    code, said = command("memory", "delete", "mill", "--path", memory)
    assert "ad.txt: it still has words of them" in said.err and "other.txt" not in said.err


def asked(prompt: str, **labels) -> Task:
    kind = {
        "kind": "unanswerable",
        "episode": "mill",
        "title": "Mill",
        "difficulty": "hard",
        "requires_synthesis": True,
    }
    verdict = {"asked_by": "m", "verdict": {"accepted": True}}
    return Task(
        task_id=f"mill:asked:{len(prompt)}",
        prompt=prompt,
        answer="The memory does not say.",
        evidence=("mill_0",),
        labels=kind | verdict | labels,
    )


def test_questions_about_other_episodes_that_name_the_deleted_one_are_deleted(memory, command):
    kept = [
        asked('In "Mill", who says that the ferry used to land?', named="Mill"),
        asked("Ann says that the wheel turns slowly. What does she conclude?", named="Ann"),
    ]
    gone = [
        asked('Somebody said in "Shore" that the wheel turns slowly. Who was it?', named="Shore"),
        asked("Who mentions Threshing first, Cy Poe or Ann?", named=""),
        asked("Bob Ray says that the wheel turns slowly. What does he conclude?", named="Bob Ray"),
        asked("Dee says that the wheel turns slowly. What does she conclude?", named="Dee"),
    ]
    write_questions([*kept, *gone], memory / "questions.jsonl")
    store_questions(question_rows([*kept, *gone], WordEmbedder()), str(memory))
    code, said = command("memory", "delete", "shore", "--path", memory)
    assert code == 0 and f"and {2 * len(gone)} questions deleted" in said.out
    rows = [json.loads(line) for line in (memory / "questions.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == [task.prompt for task in kept]
    for path in (each for each in memory.rglob("*") if each.is_file()):
        assert not any(word in path.read_bytes() for word in (b"Shore", b"Threshing", b"Bob Ray")), path


def test_a_title_that_another_episode_has_is_no_trace(tmp_path):
    store = MemoryStore.open(tmp_path / "memory", embedder=WordEmbedder())
    one = Chunk("a_0", "News", "a", "Ann", "The wheel turns slowly in winter.", "00:00:00", 0)
    store.build([one, replace(one, chunk_id="b_0", stem="b", transcript="The ferry lands at the stone.")])
    write_questions([asked('In "News", who says that?', episode="b", named="News")], tmp_path / "memory" / "q.jsonl")
    row = json.loads((tmp_path / "memory" / "q.jsonl").read_text()) | {"evidence": ["b_0"]}
    (tmp_path / "memory" / "q.jsonl").write_text(json.dumps(row))
    assert store.delete(["a"]).num_questions == 0


def test_words_that_a_longer_chunk_has_as_well_are_no_trace(tmp_path):
    """Of a chunk of five words, the run is as long as it."""
    store = MemoryStore.open(tmp_path / "memory", embedder=WordEmbedder())
    short = Chunk("a_0", "News", "a", "Ann", "Thanks everybody for listening today.", "00:00:00", 0)
    longer = "Well then, thanks everybody for listening today, and remember the kettles."
    store.build([short, Chunk("b_0", "Talk", "b", "Ann", longer, "00:00:00", 0)])
    (tmp_path / "memory" / "notes.txt").write_text("They end with: thanks everybody for listening today.")
    assert store.delete(["a"]).remaining == ()


def test_words_that_two_neighbouring_chunks_have_together_are_no_trace(tmp_path):
    store = MemoryStore.open(tmp_path / "memory", embedder=WordEmbedder())
    ad = AD.split()
    parts = [["a", ad[:9]], ["a", ad[9:]], ["b", ["Hello", *ad[:4]]], ["b", ad[4:7]], ["b", ad[7:]]]
    store.build(
        Chunk(f"{stem}_{n}", stem, stem, "Ann", " ".join(words), "00:00:00", n) for n, (stem, words) in enumerate(parts)
    )
    (tmp_path / "memory" / "ad.txt").write_text(AD)
    assert store.delete(["a"]).remaining == ()


@pytest.mark.parametrize(
    ("question", "is_trace"),
    [
        ("Ann says that the wheel turns slowly; What does she conclude?", False),
        ("Ann says: I'm sure that the wheel turns. Is it, I'm asking, the wheel? Who answers her?", False),
        ("Ann says that the wheel turns slowly - Nobody answers. Who says so?", False),
        ("Who mentions, like Ann, a Kerdrozic?", True),
        ("Who mentions Kerdrozic's wheel?", True),
        ("Who mentions, like Ann, the Stone?", True),
    ],
)
def test_only_names_of_the_deleted_transcript_are_traces(tmp_path, question, is_trace):
    """Not every word with a capital letter is a name: it may begin a sentence."""
    store = MemoryStore.open(tmp_path / "memory", embedder=WordEmbedder())
    texts = {
        "a": "What did Ann do? I'm sure. Nobody knows. Kerdrozic put it on the Stone, and nobody else.",
        "b": "Ann says that the wheel turns slowly in winter, like a stone. It must be so.",
    }
    store.build([Chunk(f"{stem}_0", stem, stem, "Ann", text, "00:00:00", 0) for stem, text in texts.items()])
    write_questions([asked(question, episode="b", named="")], tmp_path / "memory" / "q.jsonl")
    row = json.loads((tmp_path / "memory" / "q.jsonl").read_text()) | {"evidence": ["b_0"]}
    (tmp_path / "memory" / "q.jsonl").write_text(json.dumps(row))
    assert store.delete(["a"]).num_questions == is_trace


TABLES = {
    "texts": lambda said: {"said": said},
    "bytes": lambda said: {"said": [text.encode() for text in said]},
    "messages": lambda said: {"prompt": [[{"role": "user", "content": text}] for text in said]},
    "a map": lambda said: {"by": pa.array([[("Ann", text)] for text in said], pa.map_(pa.string(), pa.string()))},
    "repeated": lambda said: {"said": pa.array([*said] * 3000).dictionary_encode(), "n": [*range(3000 * len(said))]},
    "one long text": lambda said: {"said": ["The wheel turns. " * 600_000 + " ".join(said)]},
}


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("columns", TABLES.values(), ids=TABLES.keys())
def test_a_parquet_file_with_the_words_is_named(memory, command, columns, compression):
    parquet.write_table(
        pa.table(columns([said for _, said in SHORE])), memory / "copy.parquet", compression=compression
    )
    parquet.write_table(pa.table({"said": ["The wheel turns slowly in winter."]}), memory / "other.parquet")
    code, said = command("memory", "delete", "shore", "--path", memory)
    assert code == 0 and "copy.parquet: it still has words of them, or questions about them; delete it" in said.err
    assert "other.parquet" not in said.err


def test_a_parquet_file_with_questions_about_the_transcript_is_named(memory, command):
    of_mill, of_shore = asked("Who says that the wheel turns?"), asked("Who lands?", episode="shore")
    for name, task in (("mill", of_mill), ("shore", replace(of_shore, evidence=("shore_0",)))):
        rows = rows_of(
            [task],
            lambda task: [{"role": "user", "content": task.prompt}],
            data_source="podcast",
            ability="search",
            split="train",
        )
        write_parquet(rows, memory / f"{name}.parquet")
    code, said = command("memory", "delete", "shore", "--path", memory)
    assert code == 0 and "shore.parquet: it still has" in said.err and "mill.parquet" not in said.err


def test_a_damaged_parquet_file_is_named_and_the_others_are_searched(memory, command):
    table = pa.table({"said": [said for _, said in SHORE] * 100})
    parquet.write_table(table, memory / "whole.parquet", compression="zstd")
    content = (memory / "whole.parquet").read_bytes()
    (memory / "cut.parquet").write_bytes(content[:-20])
    (memory / "a.dat").write_bytes(content[:30] + b"\0\xff" * 20 + content[70:])
    (memory / "no.parquet").write_text("no table")
    (memory / "empty.parquet").write_bytes(b"")
    code, said = command("memory", "delete", "shore", "--path", memory)
    assert code == 0 and "whole.parquet: it still has words of them" in said.err and "empty" not in said.err
    for name in ("cut.parquet", "a.dat", "no.parquet"):
        assert f"{name}: not searched for words of them: it cannot be read as Parquet (" in said.err
    assert len(said.err.splitlines()) == 4


@pytest.mark.parametrize("row", [SHORE[2][1], json.dumps({"evidence": ["shore_0"], "prompt": "Who lands?"})])
def test_words_before_the_damage_of_a_parquet_file_are_found(memory, command, row):
    later = [f"{n} winters of the mill" for n in range(10_000)]
    table = pa.table({"said": [row, *later]})
    parquet.write_table(table, memory / "part.parquet", row_group_size=5_001, compression="none")
    start = parquet.read_metadata(memory / "part.parquet").row_group(1).column(0)
    content = bytearray((memory / "part.parquet").read_bytes())
    content[start.dictionary_page_offset : start.dictionary_page_offset + 20_000] = b"\xff" * 20_000
    (memory / "part.parquet").write_bytes(content)
    code, said = command("memory", "delete", "shore", "--path", memory)
    assert code == 0 and "part.parquet: it still has words of them, or questions about them" in said.err
    assert "part.parquet: not searched for words of them: it cannot be read as Parquet (" in said.err


def test_a_small_parquet_file_of_a_repeated_long_text_does_not_fill_the_memory(memory, command):
    """A million rows of 1 MiB in a few kilobytes."""
    long = pa.array(["The wheel turns slowly in winter. " * 30_000])
    said = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000_000, pa.int32()), long)
    parquet.write_table(pa.table({"said": said}), memory / "long.parquet", compression="zstd")
    assert (memory / "long.parquet").stat().st_size < 100_000
    code, said = command("memory", "delete", "shore", "--path", memory)
    assert code == 0 and said.err == ""
