"""`speakers.yaml` and `notation.yaml` that say something of no file are reported."""

import json

import pytest
from typer.testing import CliRunner

from midthought.cli.memory import app
from midthought.memory.transcripts import read_transcripts

TURNS = "SPEAKER_00 (00:00:00): One two.\n\nSPEAKER_01 (00:01:00): Three.\n\nSPEAKER_00 (00:01:30): Four.\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_text(TURNS)
    (tmp_path / "b" / "c.txt").write_text(TURNS.replace("One", "Five six").replace("Four", "And seven"))
    return tmp_path


def unused(folder) -> list[str]:
    return [each.replace(f"{folder}/", "") for each in read_transcripts(folder).unused_settings]


def test_a_file_of_another_name_is_reported(folder):
    right_names = {"notation.yml": "notation.yaml", "b/speakers.yml": "speakers.yaml", "Speakers.YAML": "speakers.yaml"}
    for name, right in right_names.items():
        (folder / name).write_text("SPEAKER_00: Ann Lee\n")
        assert unused(folder) == [f"{name}: it is not used; rename it to {right}"]
        assert read_transcripts(folder).left_out == ()
        (folder / name).unlink()
    (folder / "speakers.yml").write_text("SPEAKER_00: Ann Lee\n")
    for words in (["inspect", folder / "a.txt"], ["inspect", folder], ["chunk", folder, folder / "out.jsonl"]):
        assert "speakers.yml: it is not used" in CliRunner().invoke(app, list(map(str, words))).output
    found = json.loads(CliRunner().invoke(app, ["inspect", str(folder), "--json"]).output)
    assert len(found["unused_settings"]) == 1


def test_a_pattern_that_no_name_matches_is_reported(folder):
    (folder / "notation.yaml").write_text('"*.tx": "{speaker}: {text}"\na: "{speaker} ({time}): {text}"\n')
    assert unused(folder) == ["notation.yaml: no file has a name that matches: '*.tx'; correct or remove"]
    (folder / "notation.yaml").write_text('"*.txt": "{speaker}: {text}"\na: "{speaker} ({time}): {text}"\n')
    assert unused(folder) == []  # the first pattern, too, if a later one counts


def test_labels_that_no_transcript_has_are_reported_by_file(folder):
    (folder / "speakers.yaml").write_text(
        "SPEAKER_00: Ann Lee\nSPEAKER_7: Bob\nc:\n  speaker_01: Cy\nd:\n  SPEAKER_00: Dee\n"
    )
    (folder / "b" / "speakers.yaml").write_text("".join(f"S{n}: Ann {n}\n" for n in range(5)))
    assert unused(folder) == [
        "speakers.yaml: labels that no transcript has: 'SPEAKER_7', 'd: SPEAKER_00'; correct or remove",
        "b/speakers.yaml: labels that no transcript has: 'S0', 'S1', 'S2' and 2 more; correct or remove",
    ]
