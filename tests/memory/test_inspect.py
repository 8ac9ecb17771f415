"""`midthought memory inspect` and `speakers.yaml`."""

import json

import pytest
from typer.testing import CliRunner

from midthought.cli.memory import app
from midthought.errors import TranscriptError
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


def test_inspect_prints_json(folder):
    found = json.loads(CliRunner().invoke(app, ["inspect", str(folder), "--json"]).output)
    file = next(each for each in found["files"] if each["path"] == "a.txt")
    assert file["header"] == [["Title", "The Bell"], ["Date", "2021"]] and file["style"] == "Name (time): text"
    assert [(each["name"], each["turns"]) for each in file["speakers"]] == [("SPEAKER_00", 2), ("SPEAKER_01", 1)]
    assert found["num_doubtful"] == 1 and found["failed"][0]["path"] == "bad.json"


def test_a_build_lists_doubtful_files(folder):
    result = CliRunner().invoke(app, ["chunk", str(folder), str(folder / "out.jsonl"), "--json"])
    assert json.loads(result.stdout)["num_doubtful"] == 1
    shown = CliRunner().invoke(app, ["chunk", str(folder), str(folder / "out.jsonl")])
    assert "doubtful: days.txt: 'Ann' is the only speaker in 11 turns" in shown.output


def test_times_outside_of_speech_are_shown_as_they_are(tmp_path):
    text = (
        "Recorded at [10:30] in Rome\n\nAnn (0:10): The tide rises.\n\nBob (0:20): It falls.\n\nAnn (0:30): It rises.\n"
    )
    (tmp_path / "a.txt").write_text(text)
    read = read_transcript(tmp_path / "a.txt")
    assert "\ue100" not in f"{read.episode} {read.header} {read.skipped}" and "10:30" in f"{read.header} {read.skipped}"


def test_inspect_shows_every_file_if_none_can_be_read(tmp_path):
    for name, content in (("a.txt", b""), ("b.md", b"\xef\xbb\xbf \n"), ("c.json", b"{"), ("d.srt", b"# Heading\n")):
        (tmp_path / name).write_bytes(content)
    result = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert result.exit_code == 2
    for words in ("a.txt: not read", "b.md: not read", "c.json: not read", "d.srt: not read", "0 files read"):
        assert words in result.output
    assert "say in notation.yaml how turns start" in result.output
    found = CliRunner().invoke(app, ["inspect", str(tmp_path), "--json"])
    assert found.exit_code == 2 and len(json.loads(found.output)["failed"]) == 4
    single = CliRunner().invoke(app, ["inspect", str(tmp_path / "d.srt")])
    assert single.exit_code == 2 and "notation.yaml" in single.output and "d.srt: not read" in single.output
