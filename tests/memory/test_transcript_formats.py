"""Formats of the user: one decorated function."""

import pytest

from midthought.errors import SettingsError, TranscriptError
from midthought.memory.transcripts import Reading, read_transcript, read_transcripts, transcript_format
from midthought.memory.transcripts.reading import FORMATS
from midthought.memory.turns import Segment

LYRICS = "[ti:The Tide Clock]\n[00:12.00]Ann: The clock ran fast.\n[00:15.00]Bob: I wind it.\n"


@pytest.fixture(autouse=True)
def registered_formats_are_forgotten(monkeypatch):
    before = dict(FORMATS)
    yield
    FORMATS.clear()
    FORMATS.update(before)


def read_lyrics(text: str) -> Reading:
    title, *lines = text.splitlines()
    spoken = [line.partition("]")[2].partition(": ") for line in lines]
    return Reading(title[4:-1], [Segment(name, words) for name, _, words in spoken])


def write(folder, name: str, text: str):
    (folder / name).write_text(text, "utf-8")
    return folder / name


def test_a_registered_format_reads_the_files_with_its_suffix(tmp_path):
    path = write(tmp_path, "tide.SONG", LYRICS)
    assert read_transcripts(write(tmp_path, "b.txt", "Ann: Yes.\nAnn: No.").parent).left_out == (path,)
    transcript_format("lyrics", suffixes=(".song",), remedy="write '[00:12.00]Ann: words'")(read_lyrics)
    transcript = read_transcript(path)
    assert (transcript.format, transcript.episode) == ("lyrics", "The Tide Clock")
    assert [(turn.speaker, turn.text) for turn in transcript.turns] == [
        ("Ann", "The clock ran fast."),
        ("Bob", "I wind it."),
    ]
    assert read_transcripts(tmp_path).left_out == ()
    assert read_transcript(write(tmp_path, "a.md", LYRICS)).format == "Markdown"


def test_a_format_that_recognizes_its_content_is_asked_before_the_librarys_formats(tmp_path):
    path = write(tmp_path, "tide.md", LYRICS + "**Ann:** Yes.\n")
    assert read_transcript(path).format == "Markdown"
    transcript_format("lyrics", remedy="…", shown_by=lambda text, suffix: text.startswith("[ti:"))(read_lyrics)
    assert read_transcript(path).format == "lyrics"
    assert read_transcript(write(tmp_path, "b.md", "**Ann:** Yes.\n")).format == "Markdown"


def test_errors_of_registered_formats_name_the_file_the_format_and_the_remedy(tmp_path):
    @transcript_format("empty", suffixes=(".song",), remedy="write '[00:12.00]Ann: words'")
    def read_nothing(text: str) -> Reading:
        raise ValueError("it has no line of words")

    with pytest.raises(TranscriptError, match=r"a\.song: it has no line of words; write '\[00:12\.00\]Ann: words'"):
        read_transcript(write(tmp_path, "a.song", LYRICS))

    @transcript_format("empty", suffixes=(".song",), remedy="…")
    def read_wrongly(text: str) -> Reading:  # a second registration replaces the first
        return {}[text]

    with pytest.raises(KeyError) as caught:
        read_transcripts(tmp_path)
    assert f"{tmp_path}/a.song: error in the reader of the format 'empty'" in caught.value.__notes__[0]
    transcript_format("other", suffixes=(".song",), remedy="…")(read_lyrics)
    assert read_transcript(tmp_path / "a.song").format == "other", "the last one has the suffix"
    for name, suffixes, message in (
        ("Markdown", (), "transcript format 'Markdown' is built in; register yours under another name"),
        (
            "lyrics",
            ("song",),
            r"transcript format 'lyrics': write the suffix 'song' in lower case with a dot, as '\.song'",
        ),
        ("lyrics", (".SONG",), r"write the suffix '\.SONG' in lower case with a dot, as '\.song'"),
    ):
        with pytest.raises(SettingsError, match=message):
            transcript_format(name, suffixes=suffixes, remedy="…")(read_lyrics)
        assert "lyrics" not in FORMATS
