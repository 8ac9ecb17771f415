"""A resumed run has the same task: prompts, tools, call format, rows, rewards and environment, or says which of them differ."""

from __future__ import annotations

import functools
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_environments import QUESTIONS, AsyncColours, Colours, Raising, settings

from midthought import Trainer, tool
from midthought.env.rewards import combine_rewards, weighted
from midthought.errors import SettingsError
from midthought.recipes.feedback import recipe
from midthought.report.console import Console
from midthought.tools.parsers import ActionParser
from midthought.types import ParsedAction

ROWS = QUESTIONS
SYSTEM = {"role": "system", "content": "Be kind."}


@tool
def look(query: str) -> str:
    """Looks."""
    return query


@tool(name="look")
def look_again(query: str) -> str:
    """Looks twice."""
    return query


@tool
def ping() -> str:
    """Pings."""
    return "pong"


def short(trajectory: Any) -> float:
    return 1.0


def long(trajectory: Any) -> float:
    return 0.0


class Loud(ActionParser):
    def parse(self, text: str) -> ParsedAction | None:
        return None

    def instructions(self, definitions: Any) -> str:
        return "Shout."


START: dict[str, Any] = {
    "dataset": ROWS,
    "rewards": ["correct", (short, 0.5)],
    "tools": [look, ping],
    "system_prompt": "Be brief.",
    "call_format": "hermes",
}
CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "fewer rows": ({"dataset": ROWS[:2]}, r"dataset: '3 rows, .*' before, '2 rows, .*' now"),
    "another answer": (
        {"dataset": [ROWS[0] | {"answer": "blue"}, *ROWS[1:]]},
        "dataset: '3 rows.*' before, '3 rows.*' now",
    ),
    "a system message": ({"dataset": [row | {"system": "Be kind."} for row in ROWS]}, "dataset: "),
    "another weight": (
        {"rewards": ["correct", (short, 0.25)]},
        r"rewards: \{'correct': 1.0, 'short': 0.5\} before, \{'correct': 1.0, 'short': 0.25\} now",
    ),
    "a reward function": ({"rewards": (), "reward_fn": long}, r"rewards: .* before, \{'long': 1.0\} now"),
    "weights of a combined reward function": (
        {"rewards": (), "reward_fn": combine_rewards([weighted(short, 0.25)])},
        r"rewards: .* before, \{'short': 0.25\} now",
    ),
    "another system prompt": ({"system_prompt": "Be long."}, "system_prompt: 'Be brief.' before, 'Be long.' now"),
    "another call format": ({"call_format": "react"}, "call_format: 'hermes' before, 'react' now"),
    "a format of the user": ({"call_format": Loud()}, "call_format: 'hermes' before, '' now"),
    "a hidden description": ({"describe_tools": False}, "describes_tools: True before, False now"),
    "another schema": ({"tools": [look_again, ping]}, "tools.look: .*Looks.*before, .*Looks twice.* now"),
    "a setting": ({"clip_ratio": 0.1}, "training.clip_ratio: 0.2 before, 0.1 now"),
    "a tool less": ({"tools": [look]}, "tools.ping: .*Pings.* before, None now"),
}
SAME: dict[str, dict[str, Any]] = {
    "nothing": {},
    "an iterator": {"dataset": iter},
    "other columns": {"dataset": [row | {"note": "x"} for row in ROWS]},
    "validation": {"validation": ROWS[:1]},
    "another order of tools and rewards": {"tools": [ping, look], "rewards": [(short, 0.5), "correct"]},
    "other code": {"rewards": ["correct", ("short", 0.5, lambda trajectory: 0.0)]},
}


def started(talker: dict[str, Any], run: Path, *, save: bool = False, **options: Any) -> list[dict[str, Any]]:
    """Makes a trainer, saves a checkpoint if asked, and returns the run's settings history."""
    with Trainer(settings(), **talker, run_path=run, progress=False, **options) as trainer:
        if save:
            trainer.save_checkpoint()
    return list(yaml.safe_load_all((run / "settings_history.yaml").read_text("utf-8")))


@pytest.fixture(scope="module")
def run(_talker, tokenizer, tmp_path_factory) -> Path:
    """Of a run that was killed before its first checkpoint: `test_an_environment_is_compared_by_its_class`."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    started({"model": _talker, "tokenizer": tokenizer}, folder, save=True, **START)
    return folder


@pytest.mark.parametrize("name", CHANGED)
def test_another_task_is_refused_with_both_values_and_nothing_is_written(name, run, talker):
    changes, message = CHANGED[name]
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(SettingsError, match=rf"(?s)change what it learns:.*\n  {message}.*allow_changes=True"):
        started(talker, run, resume=True, **START | changes)
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("name", SAME)
def test_the_same_task_is_resumed(name, run, talker):
    given = START | SAME[name]
    given["dataset"] = iter(ROWS) if given["dataset"] is iter else given["dataset"]
    assert len(started(talker, run, resume=True, **given)) == 1


def test_an_allowed_change_is_recorded_and_is_then_the_runs_own(talker, tmp_path):
    started(talker, tmp_path, save=True, **START)
    other = START | {"system_prompt": "Be long.", "tools": [look]}
    history = started(talker, tmp_path, resume=True, allow_changes=True, **other)
    assert history[-1]["changes"]["system_prompt"] == {"before": "Be brief.", "now": "Be long."}
    assert history[-1]["changes"]["tools.ping"]["now"] is None
    assert json.loads((tmp_path / "conversation.json").read_text("utf-8"))["system_prompt"] == "Be long."
    assert len(started(talker, tmp_path, resume=True, **other)) == 2
    with pytest.raises(SettingsError, match=r"system_prompt: 'Be long.' before, 'Be brief.' now"):
        started(talker, tmp_path, resume=True, **START)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"environment": Colours}, {"environment": Raising}),
        ({"environment": Colours()}, {"environment": functools.partial(AsyncColours)}),
        (START, {"environment": Colours}),
    ],
)
def test_an_environment_is_compared_by_its_class(before, now, talker, tmp_path):
    started(talker, tmp_path, **before)
    with pytest.raises(SettingsError, match=r"environment: .* before, '(Raising|AsyncColours|Colours)' now"):
        started(talker, tmp_path, resume=True, **now)
    same = {"environment": functools.partial(Colours)} if "environment" in before else before
    assert len(started(talker, tmp_path, resume=True, **same)) == 1


def test_supervised_steps_that_were_interrupted_are_not_continued_with_another_task(runs, tmp_path, monkeypatch):
    with runs.trainer(tmp_path / "run", resume=False) as trainer:
        trainer.sft([[{"role": "user", "content": "a"}, {"role": "assistant", "content": "red"}]], num_steps=1)
    with pytest.raises(SettingsError, match=r"system_prompt: '' before, 'New.' now"):
        runs.trainer(tmp_path / "run", system_prompt="New.")
    runs.trainer(tmp_path / "run").cleanup()


def test_a_start_that_left_nothing_to_resume_does_not_count(talker, tmp_path):
    started(talker, tmp_path, environment=Colours)
    other = {"dataset": ROWS, "rewards": ["correct"], "learning_rate": 0.5}
    before = started(talker, tmp_path, **other)
    assert started(talker, tmp_path, resume=True, **other) == before, "nothing was changed"


@pytest.mark.parametrize("resume", ["runs/a", "latest", "False", "", 1, 0, None, Path("runs/a")])
def test_resume_is_true_or_false(resume, talker, tmp_path):
    message = r"resume=.*: give True or False; run_path=FOLDER with resume=True"
    for options in ({}, {"run_path": tmp_path / "run"}):
        with pytest.raises(SettingsError, match=message):
            Trainer(settings(), **talker, environment=Colours, resume=resume, **options)
    with pytest.raises(SettingsError, match=message):
        recipe.run(tmp_path / "run", Console(plain=True, out=StringIO()), words=[], resume=resume)
    assert not (tmp_path / "run").exists()
