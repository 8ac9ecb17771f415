"""`midthought memory questions`: what is said if there are no questions of a kind, and what the help says."""

import json
import re

import pytest
from typer.testing import CliRunner

from midthought.cli.memory import app
from midthought.memory.rule_questions.generate import ALL_KINDS, NEEDS
from midthought.recipes.podcast.settings import sample_transcripts

TALK = (
    "Ann Lee (00:00:01): The old clockmaker of Harrow Bay wound the copper pendulum every third morning.\n\n"
    "Bob Ray (00:00:09): Harrow Bay has had eleven lighthouse keepers since the great flood of 1953.\n"
)


def ask(*words):
    return CliRunner().invoke(app, ["questions", *map(str, words)])


def test_a_kind_without_a_question_is_named_with_what_it_needs(tmp_path):
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "bay.txt").write_text(TALK)
    result = ask(tmp_path / "talks", tmp_path / "q.jsonl", "--kinds", "compare")
    assert result.exit_code == 0 and "0 questions" in result.stdout
    assert "no question of the kind compare: it needs a name that two named speakers" in result.stderr
    assert "midthought memory chunk DIR chunks.jsonl --chunking turns" in result.stderr


def test_nothing_is_said_if_every_kind_has_questions_or_few_are_wanted(tmp_path):
    result = ask(sample_transcripts(), tmp_path / "q.jsonl", "--num-questions", 300)
    assert result.exit_code == 0 and result.stderr == ""
    assert {json.loads(line)["labels"]["kind"] for line in (tmp_path / "q.jsonl").read_text().splitlines()} == set(
        ALL_KINDS
    )
    assert ask(sample_transcripts(), tmp_path / "q.jsonl", "--num-questions", 2).stderr == ""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("questions", "split into windows"),
        ("questions", "memory chunk"),
        ("questions", "when (a time in the episode, or a year)"),
        ("build", "It stops if the memory has transcripts that are not in TRANSCRIPTS"),
    ],
)
def test_the_help_says_what_is_done(command, words):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}).output
    assert words in " ".join(re.sub(r"[\u2500-\u257f]", " ", shown).split())


def test_each_kind_has_its_needs():
    assert set(NEEDS) == set(ALL_KINDS)
