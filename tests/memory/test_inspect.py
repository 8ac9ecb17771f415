"""`midthought memory inspect` and `speakers.yaml`."""

import json

import pytest
from typer.testing import CliRunner

from midthought.cli.memory import app
from midthought.errors import MemoryStoreError, TranscriptError
from midthought.memory.build import build_memory, chunk_all
from midthought.memory.inspection import summary_rows
from midthought.memory.store import MemoryStore
from midthought.memory.transcripts import read_transcript, read_transcripts

TURNS = (
    "Title: The Bell\nDate: 2021\n\n"
    "SPEAKER_00 (00:00:00)\nOne two.\n\nSPEAKER_01 (00:01:00)\nThree.\n\nSPEAKER_00 (00:01:30)\nFour.\n"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_text(TURNS)
    (tmp_path / "b" / "c.txt").write_text(TURNS.replace("One", "Five six").replace("Four", "And seven"))
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "days.txt").write_text("".join(f"Ann: We rang the bell {n} times.\n" for n in range(1, 12)))
    return tmp_path


def test_labels_stay_labels_until_a_file_names_them(folder):
    assert read_transcript(folder / "a.txt").speakers == ("SPEAKER_00", "SPEAKER_01")
    (folder / "speakers.yaml").write_text("SPEAKER_00: Ann Lee\nc:\n  SPEAKER_01: Bob\n")
    (folder / "b" / "speakers.yaml").write_text("SPEAKER_00: Carl\n")
    read = {each.stem: each for each in read_transcripts(folder).transcripts}
    assert read["a"].speakers == ("Ann Lee", "SPEAKER_01") and read["c"].speakers == ("Carl", "Bob")
    assert folder / "speakers.yaml" not in read_transcripts(folder).left_out


@pytest.mark.parametrize("written", ["- Ann\n", "SPEAKER_00: [Ann]\n", "a:\n  SPEAKER_00: ~\n", "SPEAKER_00: ''\n"])
def test_a_malformed_file_of_names_is_refused(folder, written):
    (folder / "speakers.yaml").write_text(written)
    with pytest.raises(TranscriptError, match=r"speakers\.yaml.*write lines such as 'SPEAKER_00: Ann Lee'"):
        read_transcript(folder / "a.txt")


def test_inspect_shows_how_each_file_was_understood(folder):
    lines = CliRunner().invoke(app, ["inspect", str(folder)]).output
    assert lines.index("days.txt") < lines.index("a.txt")  # files that fail a check are first
    for words in (
        "a.txt: text (utf-8), style 'Name (time): text'\n",
        "days.txt: text (utf-8), style 'Name: text', DOUBTFUL",
        "doubt: 'Ann' is the only speaker in 11 turns; if others speak, declare in notation.yaml",
        "header: Title: The Bell",
        "speaker: SPEAKER_00 (a label; name it in speakers.yaml): 2 turns, 3 words",
        "> 00:01:00 SPEAKER_01: Three.",
        "bad.json: not read:",
        "3 files read, 1 of them doubtful; 1 not read",
    ):
        assert words in lines


def test_inspect_prints_json_and_a_build_lists_doubtful_files(folder):
    found = json.loads(CliRunner().invoke(app, ["inspect", str(folder), "--json"]).output)
    file = next(each for each in found["files"] if each["path"] == "a.txt")
    assert file["header"] == [["Title", "The Bell"], ["Date", "2021"]] and file["style"] == "Name (time): text"
    assert [(each["name"], each["turns"]) for each in file["speakers"]] == [("SPEAKER_00", 2), ("SPEAKER_01", 1)]
    assert found["num_doubtful"] == 1 and found["failed"][0]["path"] == "bad.json"
    words = ["chunk", str(folder), str(folder / "out.jsonl")]
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["num_doubtful"] == 1
    shown = CliRunner().invoke(app, words).output
    assert "doubtful: days.txt: 'Ann' is the only speaker in 11 turns" in shown


def test_times_outside_of_speech_are_shown_as_they_are(tmp_path):
    turns = "".join(f"Ann (0:{n}0): The tide rises.\n\nBob (0:{n}5): It falls.\n\n" for n in range(1, 4))
    (tmp_path / "a.txt").write_text(f"Recorded at [10:30] in Rome\n\n{turns}")
    read = read_transcript(tmp_path / "a.txt")
    shown = f"{read.episode} {read.header} {read.skipped}"
    assert "\ue100" not in shown and "10:30" in shown


def test_inspect_shows_every_file_if_none_can_be_read(tmp_path):
    for name, content in (("a.txt", b""), ("b.md", b"\xef\xbb\xbf \n"), ("c.json", b"{"), ("d.srt", b"# Heading\n")):
        (tmp_path / name).write_bytes(content)
    names = [f"{name}: not read" for name in ("a.txt", "b.md", "c.json", "d.srt")]
    for path, told in ((tmp_path, [*names, "0 files read"]), (tmp_path / "d.srt", names[3:])):
        result = CliRunner().invoke(app, ["inspect", str(path)])
        assert result.exit_code == 2 and "say in notation.yaml how turns start" in result.output
        assert all(words in result.output for words in told), result.output
    found = CliRunner().invoke(app, ["inspect", str(tmp_path), "--json"])
    assert found.exit_code == 2 and len(json.loads(found.output)["failed"]) == 4


# -- build -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def episodes(tmp_path):
    folder = tmp_path / "episodes"
    folder.mkdir()
    (folder / "tide.md").write_text(
        "# The Tide Clock\n\n**Ann:** \\[00:07\\] One copper hand.\n\n**Bob:** No numerals.\n"
    )
    (folder / "bell.txt").write_text("Ann (00:01): A bell of bronze.\n")
    return folder


def counts(report):
    return report.num_added, report.num_kept, report.num_removed


def test_a_folder_becomes_a_memory(tmp_path, episodes, embedder):
    assert counts(build_memory(episodes, tmp_path / "memory", embedder=embedder)) == (3, 0, 0)
    (hit,) = MemoryStore.open(tmp_path / "memory").search("copper hand", k=1, mode="full_text")
    assert (hit.chunk_id, hit.speaker, hit.episode, hit.time) == ("tide_0", "Ann", "The Tide Clock", "00:00:07")


def test_what_is_gone_leaves_the_memory_only_on_request_and_files_are_added_and_changed_without_a_word(
    tmp_path, episodes, embedder
):
    build_memory(episodes, tmp_path / "memory", embedder=embedder)
    (episodes / "bell.txt").rename(episodes / "mill.txt")
    (episodes / "mill.txt").write_text("Cid (00:01): A mill without a wheel.\n")
    embedder.embedded.clear()
    with pytest.raises(MemoryStoreError, match=r"1 chunks of 1 other transcripts \(bell\) would be removed.*--replace"):
        build_memory(episodes, tmp_path / "memory", embedder=embedder)
    assert embedder.embedded == [] and len(MemoryStore.open(tmp_path / "memory")) == 3
    assert counts(build_memory(episodes, tmp_path / "memory", embedder=embedder, replace=True)) == (1, 2, 1)
    (episodes / "quay.txt").write_text("Eve (00:01): A quay of stone.\n")
    (episodes / "tide.md").write_text("# The Tide Clock\n\n**Ann:** One copper hand.\n")
    assert counts(build_memory(episodes, tmp_path / "memory", embedder=embedder)) == (2, 1, 2)


def test_a_file_that_cannot_be_read_is_named_and_the_others_go_on(tmp_path, episodes, embedder, caplog):
    (episodes / "zero.json").write_text("{")
    assert build_memory(episodes, tmp_path / "memory", embedder=embedder).num_added == 3
    assert "zero.json: it is not valid JSON" in caplog.text
    folder = read_transcripts(episodes)
    assert summary_rows(folder, chunk_all(folder.transcripts))[-1] == ("all", 2, 2, 2, 3, 9, 3)
