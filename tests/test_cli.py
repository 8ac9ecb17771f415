"""The command line: a user's mistake is one line that names it and its remedy, exit code 2, and nothing on the disk."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import SHORT_TRANSCRIPTS

from midthought import cli
from midthought.report.console import tell

ANN_AND_BOB = """# The Tide Clock

**Ann:** The clock in our kitchen ran eleven minutes fast and nobody dared to correct it at all.

**Bob:** \\[00:01:37\\] I wind the thing every third day since my brother fell off the ladder years ago.

**Ann:** Somebody had used a mitten to quieten the beat during a funeral, or so I was told.
"""
CARA = """1
00:00:01,000 --> 00:00:05,000
Cara: The bread rises faster up here because the air is thin and rather lazy today.

2
00:00:06,000 --> 00:00:09,000
Cara: We bake it twice and carry it down to the valley on the backs of mules.
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "talk.md").write_bytes("**Ann:** café".encode() + b" \xff")
    (tmp_path / "no_model").mkdir()
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


TRAIN = ("train", "podcast", "--run", "run")


@pytest.mark.parametrize(
    ("words", "named", "remedy"),
    [
        ((*TRAIN, "memory.transcripts=nowhere"), "nowhere", "give the path of your transcripts"),
        ((*TRAIN, "memory.transcripts=empty"), "empty", "add files with the suffixes .md"),
        ((*TRAIN, "memory.transcripts=bad"), "bad/talk.md", "save the file as UTF-8"),
        ((*TRAIN, "training.sed=1"), "'sed' in training", "Did you mean 'seed'?"),
        ((*TRAIN, "training.seed=many"), "training.seed='many'", "valid integer"),
        (("train", "podcats", "--run", "run"), "'podcats'", "Did you mean 'podcast'?"),
        ((*TRAIN, SHORT_TRANSCRIPTS, "model.local_path=/nowhere/model"), "/nowhere/model", "config.json"),
        ((*TRAIN, SHORT_TRANSCRIPTS, "model.local_path=no_model"), "no_model", "save_pretrained"),
        ((*TRAIN, "--from", "no_model"), "no_model", "give a run folder, a checkpoint, or a folder"),
        ((*TRAIN, "--stage", "rl"), "--stage rl", "give --from"),
        ((*TRAIN, "--stage", "lr"), "'lr'", "Known: all, evaluate, rl, sft."),
        ((*TRAIN, "--resume"), "run holds no run", "--run"),
        ((*TRAIN, "--resume", "--dry-run"), "--dry-run with --resume", "leave out one"),
        ((*TRAIN, "--allow-changes"), "--allow-changes", "add --resume"),
        ((*TRAIN, "--config", "mine.yaml"), "mine.yaml", "--config"),
        (("report", "nowhere"), "nowhere", "give the folder that `midthought train` wrote"),
        (("memory", "build", "nowhere"), "nowhere", "give the path of your transcripts"),
        (("memory", "build", "bad"), "bad/talk.md", "save the file as UTF-8"),
        (("memory", "chunk", "empty", "chunks.jsonl"), "empty", "add files with the suffixes"),
        (("memory", "embed", "chunks.jsonl", "rows.parquet"), "chunks.jsonl", "midthought memory chunk"),
        (("memory", "ingest", "rows.parquet"), "rows.parquet", "midthought memory embed"),
        (("memory", "questions", "chunks.jsonl", "q.jsonl"), "chunks.jsonl", "midthought memory chunk"),
        (("memory", "search", "tide"), "memory", "midthought memory build"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy_and_leaves_nothing_behind(here, call, words, named, remedy):
    before = files(here)
    code, _, error = call(*words)
    assert code == 2
    assert error.startswith("midthought: ") and error.count("\n") == 1 and error.endswith("\n")
    assert named in error and remedy in error
    assert files(here) == before


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("feedback", "problems", "multiplication", "mine", "--limit", "2"), "use .parquet (verl's rows) or .jsonl"),
        (("feedback", "problems", "multiplication", "mine.jsonl", "--limit", "2"), "give another path"),
        (("feedback", "problems", "multiplication", "mine.parquet", "--limit", "2"), "give another path"),
        (("feedback", "convert", "mine", "mine.parquet"), "give another path"),
        (("memory", "questions", "mine", "new.jsonl", "--parquet", "new.jsonl"), "give another path"),
        (("watch", "empty"), "give the folder that `midthought train` writes"),
    ],
)
def test_a_file_or_folder_of_the_user_stays_as_it_is(here, call, words, remedy):
    for name in ("mine", "mine.jsonl", "mine.parquet"):
        (here / name).write_text('{"salary": 1}\n')
    code, _, error = call(*words)
    assert code == 2 and remedy in error
    assert {(here / name).read_text() for name in ("mine", "mine.jsonl", "mine.parquet")} == {'{"salary": 1}\n'}
    assert not (here / "new.jsonl").exists()


def test_the_installed_command_tells_a_mistake_the_same_way(here):
    done = subprocess.run(
        [sys.executable, "-m", "midthought", *TRAIN, "training.sed=1"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("midthought: unknown key 'sed'") and done.stderr.count("\n") == 1


@pytest.fixture
def transcripts(here) -> Path:
    folder = here / "episodes"
    folder.mkdir()
    (folder / "tide.md").write_text(ANN_AND_BOB, encoding="utf-8")
    (folder / "bread.srt").write_text(CARA, encoding="utf-8")
    return folder


def test_a_memory_is_built_once_and_searched_by_words_and_by_meaning(transcripts, call):
    code, text, _ = call("memory", "build", "episodes", "--path", "mem")
    assert code == 0
    num_chunks = int(text.splitlines()[-1].split()[1])
    assert f"mem: {num_chunks} added, 0 kept, 0 removed" in text and num_chunks == 2  # short enough for one window each
    _, text, _ = call("memory", "build", "episodes", "--path", "mem")
    assert f"mem: 0 added, {num_chunks} kept, 0 removed" in text

    code, text, _ = call("memory", "search", "wind the thing every third day", "--path", "mem", "--k", "1")
    assert code == 0
    assert text.startswith("[1] episode: The Tide Clock; 00:") and " Bob (00:" in text and text.count("\n") == 1
    _, text, _ = call(
        "memory", "search", "loaves baked in the mountains", "--path", "mem", "--k", "1", "--mode", "vector"
    )
    assert text.startswith("[1] speaker: Cara; episode: Bread;")
    call("memory", "build", "episodes/tide.md", "--path", "turns", "--chunking", "turns")  # it is extended with turns
    assert "turns: 2 added, 3 kept, 0 removed; " in call("memory", "add", "episodes", "--path", "turns")[1]


def test_the_steps_one_by_one_make_the_memory_that_building_makes(transcripts, call):
    code, text, _ = call("memory", "chunk", "episodes", "out/chunks.jsonl")
    assert code == 0
    chunks = [json.loads(line) for line in Path("out/chunks.jsonl").read_text("utf-8").splitlines()]
    assert f"out/chunks.jsonl: {len(chunks)} chunks" in text
    assert {speaker for chunk in chunks for _, speaker in chunk["turns"]} == {"Ann", "Bob", "Cara"}
    code, text, _ = call("memory", "embed", "out/chunks.jsonl", "out/rows.parquet")
    assert code == 0 and f"out/rows.parquet: {len(chunks)} chunks" in text
    code, text, _ = call("memory", "ingest", "out/rows.parquet", "--path", "steps")
    assert code == 0 and f"steps: {len(chunks)} added, 0 kept" in text

    call("memory", "build", "episodes", "--path", "whole")
    for mode in ("full_text", "vector", "hybrid"):
        found = [
            call("memory", "search", "quieten the beat", "--path", path, "--mode", mode)[1]
            for path in ("steps", "whole")
        ]
        assert found[0] == found[1] and "mitten" in found[0]


def test_files_that_cannot_be_read_are_told_in_a_summary_and_the_others_go_on(transcripts, call):
    (transcripts / "broken.json").write_text("{", encoding="utf-8")
    code, text, error = call("memory", "chunk", "episodes", "chunks.jsonl")
    assert code == 0 and "chunks.jsonl: " in text and "SRT" in text
    assert "not read: episodes/broken.json: it is not valid JSON" in error
    code, text, _ = call("memory", "chunk", "episodes", "chunks.jsonl", "--json", "--chunking", "turns")
    summary = json.loads(text)
    assert (code, summary["num_read"], summary["num_failed"]) == (0, 2, 1)
    assert [file["format"] for file in summary["files"]] == ["SRT", "Markdown"]
    assert summary["failed"][0]["path"] == "broken.json"
    code, _, error = call("memory", "chunk", "episodes", "strict.jsonl", "--strict")
    assert code == 2 and "broken.json" in error and not Path("strict.jsonl").exists()
    assert call("memory", "chunk", "episodes", "other.jsonl", "--chunking", "pages")[0] == 2


def test_an_episode_that_lies_in_several_formats_is_told_and_taken_once_where_asked(transcripts, call):
    (transcripts / "again.txt").write_text((transcripts / "tide.md").read_text().replace("*", ""))
    _, _, error = call("memory", "build", "episodes")
    assert "the same words are all taken (--each-once: the first): " in error
    assert "again.txt" in error and "tide.md" in error
    _, text, error = call("memory", "build", "episodes", "--each-once", "--replace")
    assert "the same words are taken once, from the first: " in error
    assert ", 0 removed" not in text and "0 added" in text


def test_questions_are_made_from_chunks_and_name_their_proof(transcripts, call):
    call("memory", "chunk", "episodes", "chunks.jsonl")
    chunks = {
        chunk["chunk_id"]: chunk for chunk in map(json.loads, Path("chunks.jsonl").read_text("utf-8").splitlines())
    }
    options = ("--num-questions", "4", "--no-memory-share", "0.5")
    code, text, _ = call("memory", "questions", "chunks.jsonl", "q.jsonl", *options)
    questions = [json.loads(line) for line in Path("q.jsonl").read_text("utf-8").splitlines()]
    assert code == 0 and f"q.jsonl: {len(questions)} questions" in text and len(questions) == 4
    assert sorted(question["labels"]["needs_memory"] for question in questions) == [False, False, True, True]
    for question in questions:
        proof = chunks[question["evidence"][0]]
        assert question["labels"]["quote"] in proof["transcript"]
        speakers = [speaker for _, speaker in proof["turns"]]
        assert question["answer"] in (*speakers, proof["episode"]) or question["answer"] in proof["transcript"]


def test_the_report_of_a_run_is_written_anew(here, call):
    (here / "run").mkdir()
    (here / "run" / "summary.json").write_text('{"before.exact_match": 0.25, "after.exact_match": 0.8125}\n')
    code, text, _ = call("report", "run")
    assert code == 0 and text.strip().endswith("report.html")
    assert "0.812" in (here / "run" / "report.html").read_text("utf-8")


def test_texts_of_others_reach_the_terminal_without_control_characters(here, call, capsys):
    hostile = "a\x1b]0;title\x07\x1b[2Jb\x9b31mc\u202ed\re"
    _, _, error = call("report", f"no{hostile}where")
    tell(hostile)
    assert logging.lastResort is not None
    logging.lastResort.emit(logging.makeLogRecord({"msg": "tool %r: %s", "args": ("look", hostile)}))
    printed = capsys.readouterr()
    for text in (error, printed.out, printed.err):
        assert "a]0;title[2Jb31mcde" in text
        assert not set("\x1b\x07\x9b\u202e\r") & set(text)


def test_every_command_prints_with_tell():
    sources = [*Path(cli.__file__).parent.glob("*.py")]
    assert len(sources) > 5
    printing = [path.name for path in sources if re.search(r"typer\.s?echo|\bprint\(", path.read_text())]
    assert printing == []
