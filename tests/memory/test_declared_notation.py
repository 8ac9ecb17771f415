"""`notation.yaml`: how turns start in transcripts of a notation that is not recognized."""

import time
from pathlib import Path

import pytest
from documents import docx, paragraph, run
from typer.testing import CliRunner

from midthought.cli.memory import app
from midthought.errors import TranscriptError
from midthought.memory.transcripts import read_transcript, read_transcripts

PLAIN = "Title: The tide\n\n12.5 ~ a1 ~ Good morning.\nWelcome to all.\n15 ~ b2 ~ Thank you ~ all.\n17 ~ a1 ~\nThe sea rises.\n"
TURNS = [
    ("a1", "00:00:12", "Good morning. Welcome to all."),
    ("b2", "00:00:15", "Thank you ~ all."),
    ("a1", "00:00:17", "The sea rises."),
]


def turns(path: Path) -> list[tuple[str, str | None, str]]:
    return [(turn.speaker, turn.time, turn.text) for turn in read_transcript(path).turns]


def declare(folder: Path, text: str) -> None:
    (folder / "notation.yaml").write_text(text)


def test_turns_start_where_a_line_has_the_declared_form(tmp_path: Path) -> None:
    (tmp_path / "tide.txt").write_text(PLAIN)
    with pytest.raises(TranscriptError, match="no speaker turn found"):
        read_transcript(tmp_path / "tide.txt")
    declare(tmp_path, '"*.txt": "{time} ~ {speaker} ~ {text}"')
    assert turns(tmp_path / "tide.txt") == TURNS
    transcript = read_transcript(tmp_path / "tide.txt")
    assert transcript.episode == "The tide" and not transcript.is_doubtful


def test_several_forms_and_text_without_a_speaker(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-- Ann --\nThe tide\nrises.\n[0:20] It falls.\nQ/Bob When?\n")
    declare(tmp_path, 'a: ["-- {speaker} --", "[{time}] {text}", "{skip}/{speaker} {text}"]')
    assert turns(tmp_path / "a.txt") == [("Ann", None, "The tide rises. It falls."), ("Bob", None, "When?")]
    assert read_transcript(tmp_path / "a.txt").turns[0].marks == ((3, "00:00:20"),)
    (tmp_path / "b.txt").write_text("Note: this is\nall: speech\n")
    (tmp_path / "c.txt").write_text("0:10 Ann\nThe tide rises.\n")
    declare(tmp_path, 'b: "{text}"\nc: "{time} {speaker}"')
    assert turns(tmp_path / "c.txt") == [("Ann", "00:00:10", "The tide rises.")]
    assert turns(tmp_path / "b.txt") == [("Unknown Speaker", None, "Note: this is all: speech")]
    (tmp_path / "d.txt").write_text("10 - May - Ann - calm: Hello: you.\n10 - May - Bob - loud: Hello.\n")
    declare(tmp_path, '"*": "{skip} - {skip} - {speaker} - {skip}: {text}"')
    assert turns(tmp_path / "d.txt") == [("Ann", None, "Hello: you."), ("Bob", None, "Hello.")]


def test_files_are_named_as_they_are_written_also_if_yaml_reads_a_number_or_a_date(tmp_path: Path) -> None:
    for name in ("110", "007", "2024-01-05"):
        (tmp_path / f"{name}.txt").write_text("a1 ~ The tide rises.\n")
    declare(tmp_path, '110: "{speaker} ~ {text}"\n007: "{speaker} ~ {text}"\n2024-01-05: "{speaker} ~ {text}"')
    (tmp_path / "speakers.yaml").write_text("110: {a1: No}\n007: {a1: James}\n2024-01-05: {a1: 1984}\n")
    found = {each.stem: each.speakers for each in read_transcripts(tmp_path).transcripts}
    assert found == {"110": ("No",), "007": ("James",), "2024-01-05": ("1984",)}


def test_the_nearest_file_and_its_last_pattern_count(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    for name in ("old.txt", "new/a.txt", "new/b.txt"):
        (tmp_path / name).write_text("Ann > Bob = The tide rises.\n")
    declare(tmp_path, '"*": "{speaker} > {text}"')
    declare(tmp_path / "new", '"*.txt": "{skip}= {text}"\nb: "{skip} > {speaker} = {text}"')
    found = read_transcripts(tmp_path).transcripts
    assert {each.path.stem: each.turns[0].speaker for each in found} == {
        "old": "Ann",
        "a": "Unknown Speaker",
        "b": "Bob",
    }


def test_lines_of_markdown_and_word(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# The tide\n\n**Ann**, *0:10*, says\n\nThe *tide* rises.\n")
    (tmp_path / "b.md").write_text("**Ann** / The tide rises.\n\n**Bob** / It falls.\n")
    declare(tmp_path, 'a: "**{speaker}**, *{time}*, says"\nb: "{speaker} / {text}"\nc: "{speaker} ({time})"')
    assert turns(tmp_path / "a.md") == [("Ann", "00:00:10", "The tide rises.")]
    assert turns(tmp_path / "b.md") == [("Ann", None, "The tide rises."), ("Bob", None, "It falls.")]
    (tmp_path / "c.docx").write_bytes(docx(paragraph(run("Ann (0:10)")) + paragraph(run("The tide rises."))))
    assert turns(tmp_path / "c.docx") == [("Ann", "00:00:10", "The tide rises.")]


def test_inspect_says_how_to_declare_one(tmp_path: Path) -> None:
    (tmp_path / "tide.txt").write_text(PLAIN)
    (tmp_path / "other.txt").write_text("Ann: The tide rises.\nBob: It falls.\n")
    before = CliRunner().invoke(app, ["inspect", str(tmp_path)]).output
    assert "say in notation.yaml how turns start" in " ".join(before.split())
    declare(tmp_path, 'tide: "{time} ~ {speaker} ~ {text}"')
    after = CliRunner().invoke(app, ["inspect", str(tmp_path)]).output
    assert "> 00:00:15 b2: Thank you ~ all." in after and "notation.yaml" not in after


def test_errors_name_the_value_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ann: x\nBob: y\n")
    for written, problem in (
        ('"*": {a: b}', "'*' has no notation but {'a': 'b'}"),
        ('~: "{text}"', "None is no name of a file"),
        ('"*": []', "'*' has no notation but []"),
        ('"*": "{name}: {text}"', "'{name}: {text}' has the unknown place {name}"),
        ('"*": "Ann"', "'Ann' has none of {speaker}, {time} and {text}"),
        ('"*": "{speaker}{time} x"', "two places without a sign or a blank between them"),
        ('"*": "{text} - {text}"', "has {text} twice"),
        ('"*": "{speaker} {text}"', "has no sign"),
        ('"*": "{speaker}', "notation.yaml"),
        ('- "{speaker}: {text}"', 'notation.yaml: contains a list; write lines such as \'"*.txt": "{sp'),
        (
            '"*": "{speaker} == {text}"',
            "a.txt: no line has the notation ['{speaker} == {text}']; its first lines are: Ann: x",
        ),
    ):
        declare(tmp_path, written)
        with pytest.raises(TranscriptError) as error:
            read_transcript(tmp_path / "a.txt")
        said = str(error.value)
        assert problem in said and ("write" in said or "correct notation.yaml" in said), written
    (tmp_path / "a.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nThe tide rises.\n")
    declare(tmp_path, '"*": "{speaker}: {text}"')
    with pytest.raises(TranscriptError, match=r"the format SRT has no lines .*declare it for the other files only"):
        read_transcript(tmp_path / "a.srt")


def test_long_lines_lines_that_nearly_have_the_notation_and_many_notations_cost_little(tmp_path: Path) -> None:
    began = time.process_time()
    (tmp_path / "a.txt").write_text("Ann - x\n" + "a " * 500_000 + "\n")
    declare(tmp_path, '"*": "{skip} {skip} {speaker} {skip} - {text}"\na: "{speaker} - {text}"')
    assert turns(tmp_path / "a.txt")[0][0] == "Ann"
    (tmp_path / "a.txt").write_text("\n".join(["- a" * 170] * 400))
    for template in ("{skip} {speaker} {skip}: {text}", "{skip}-{skip}-{speaker}-{skip}: {text}"):
        declare(tmp_path, f'"*": "{template}"')
        with pytest.raises(TranscriptError, match="no line has the notation"):
            read_transcript(tmp_path / "a.txt")
    (tmp_path / "a.txt").unlink()
    names = [f"interview-{number}" for number in range(1500)]
    for name in names[::100]:
        (tmp_path / f"{name}.txt").write_text(f"Ann / {name} / The tide rises.\nBob / {name} / It falls.\n")
    declare(tmp_path, "".join(f'{name}: "{{speaker}} / {name} / {{text}}"\n' for name in names))
    transcripts = read_transcripts(tmp_path).transcripts
    assert time.process_time() - began < 20  # a second; a cost that grows with the square takes hours
    assert [[turn.text for turn in each.turns] for each in transcripts] == [["The tide rises.", "It falls."]] * 15
