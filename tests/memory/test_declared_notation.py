"""`notation.yaml`: how turns start in transcripts of a notation that is not recognized. More forms are in `golden/declared`."""

import time
from pathlib import Path

import pytest
from documents import docx, paragraph, run
from typer.testing import CliRunner

from midthought.cli.memory import app
from midthought.errors import TranscriptError
from midthought.memory.transcripts import read_transcript, read_transcripts

PLAIN = "Title: The tide\n\n12.5 ~ a1 ~ Good morning.\nWelcome to all.\n15 ~ b2 ~ Thank you ~ all.\n17 ~ a1 ~\nThe sea rises.\n"


def turns(path: Path) -> list[tuple[str, str | None, str]]:
    return [(turn.speaker, turn.time, turn.text) for turn in read_transcript(path).turns]


def declare(folder: Path, text: str) -> None:
    (folder / "notation.yaml").write_text(text)


def test_turns_start_where_a_line_has_the_declared_form(tmp_path: Path) -> None:
    (tmp_path / "tide.txt").write_text(PLAIN)
    with pytest.raises(TranscriptError, match="no speaker turn found"):
        read_transcript(tmp_path / "tide.txt")
    declare(tmp_path, '"*.txt": "{time} ~ {speaker} ~ {text}"')
    assert turns(tmp_path / "tide.txt") == [
        ("a1", "00:00:12", "Good morning. Welcome to all."),
        ("b2", "00:00:15", "Thank you ~ all."),
        ("a1", "00:00:17", "The sea rises."),
    ]
    transcript = read_transcript(tmp_path / "tide.txt")
    assert transcript.episode == "The tide" and not transcript.is_doubtful


def test_lines_of_word(tmp_path: Path) -> None:
    declare(tmp_path, '"*": "{speaker} ({time})"')
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
        ('"*": "{speaker} == {text}"', "no line has the notation ['{speaker} == {text}']; its first lines are: Ann: x"),
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
