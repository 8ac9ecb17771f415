"""A resumed run has the same task: prompts, tools, call format, rows, rewards and environment, or says which of them differ."""

import functools
import json
import re
from datetime import date
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from interrupted_runs import DEMONSTRATIONS
from small_environments import QUESTIONS, AsyncColours, Colours, Raising, settings

from midthought import Trainer, tool
from midthought.env.rewards import combine_rewards, named_rewards, weighted
from midthought.errors import SettingsError
from midthought.recipes.feedback import recipe
from midthought.report.console import Console
from midthought.report.run_folder import RunFolder
from midthought.tools.call_formats import ActionParser
from midthought.trainer.arguments import make_prompts
from midthought.trainer.prompt_record import PromptRecord, learned_from
from midthought.trainer.tasks import make_tasks
from midthought.types import ParsedAction


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


START: dict[str, Any] = {"dataset": QUESTIONS, "rewards": ["correct", (short, 0.5)], "tools": [look, ping]}
START |= {"system_prompt": "Be brief.", "call_format": "hermes"}


def rows(**columns: Any) -> dict[str, Any]:
    return {"dataset": [row | columns for row in QUESTIONS]}


NOW = r"rewards: \{'correct': 1.0, 'short': 0.5\} before, "
CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "fewer rows": ({"dataset": QUESTIONS[:2]}, r"dataset: '3 rows, .*' before, '2 rows, .*' now"),
    "another answer": (rows(answer="blue"), "dataset: '3 rows.*' before, '3 rows.*' now"),
    "another right answer": (rows(aliases=["scarlet"]), "dataset: "),
    "other rules for answers": (rows(data_source="math"), "dataset: "),
    "a label of another type": (rows(labels={"dataset": date(2026, 1, 2)}), "dataset: "),
    "a system message": (rows(system="Be kind."), "dataset: "),
    "another weight": ({"rewards": ["correct", (short, 0.25)]}, NOW + r"\{'correct': 1.0, 'short': 0.25\} now"),
    "a reward function": ({"rewards": (), "reward_fn": long}, NOW + r"\{'long': 1.0\} now"),
    "weights of a combined reward function": (
        {"rewards": (), "reward_fn": combine_rewards([weighted(short, 0.25)])},
        NOW + r"\{'short': 0.25\} now",
    ),
    "another system prompt": ({"system_prompt": "Be long."}, "system_prompt: 'Be brief.' before, 'Be long.' now"),
    "another call format": ({"call_format": "react"}, "call_format: 'hermes' before, 'react' now"),
    "a format of the user": ({"call_format": Loud()}, "call_format: 'hermes' before, '' now"),
    "a hidden description": ({"describe_tools": False}, "describes_tools: True before, False now"),
    "another schema": ({"tools": [look_again, ping]}, "tools.look: .*Looks.*before, .*Looks twice.* now"),
    "a tool less": ({"tools": [look]}, "tools.ping: .*Pings.* before, None now"),
}
SAME: dict[str, dict[str, Any]] = {
    "nothing": {},
    "other columns": rows(note="x"),
    "another order of tools and rewards": {"tools": [ping, look], "rewards": [(short, 0.5), "correct"]},
    "other code": {"rewards": ["correct", ("short", 0.5, lambda trajectory: 0.0)]},
}


def record(**options: Any) -> PromptRecord:
    """The record of a trainer with these arguments."""
    given = {"describe_tools": True, "reward_fn": None, **START, **options}
    shown = {name: given[name] for name in ("system_prompt", "describe_tools")}
    prompts, rewards = make_prompts(given["tools"], given["call_format"], **shown), named_rewards(given["rewards"])
    tasks = make_tasks(settings(), None, given["dataset"], None, given["reward_fn"], rewards)
    return PromptRecord.of(prompts, learned_from(tasks, None, given["reward_fn"], rewards))


def test_another_task_is_a_change_with_both_values_and_the_same_task_is_none(tmp_path):
    with RunFolder(tmp_path / "run").create() as folder:
        record().write(folder)
    for name, (options, message) in CHANGED.items():
        changes = record(**options).changes(folder.path)
        assert any(re.match(message, str(change)) for change in changes), (name, changes)
        assert not any(change.is_harmless for change in changes), name
        assert "learned_from" not in {change.name for change in changes}, "each of its values is a change of its own"
    for name, options in SAME.items():
        assert record(**options).changes(folder.path) == [], name


def started(talker: dict[str, Any], run: Path, *, save: bool = False, **options: Any) -> list[dict[str, Any]]:
    """Makes a trainer, saves a checkpoint if asked, and returns the run's settings history."""
    with Trainer(settings(), **talker, run_path=run, progress=False, **options) as trainer:
        if save:
            trainer.save_checkpoint()
    return list(yaml.safe_load_all((run / "settings_history.yaml").read_text("utf-8")))


def test_another_task_is_refused_until_it_is_allowed_and_is_then_the_runs_own(talker, tmp_path):
    started(talker, tmp_path, save=True, **START)
    other = START | {"system_prompt": "Be long.", "tools": [look]}
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(SettingsError, match=r"(?s)change what it learns:.*\n  system_prompt: .*allow_changes=True"):
        started(talker, tmp_path, resume=True, **other)
    assert before == {path: path.read_bytes() for path in before}
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


def test_supervised_steps_that_were_interrupted_are_not_continued_with_another_task(runs, tmp_path):
    with runs.trainer(tmp_path / "run", resume=False) as trainer:
        trainer.sft(DEMONSTRATIONS, num_steps=1)
    with pytest.raises(SettingsError, match=r"system_prompt: '' before, 'New.' now"):
        runs.trainer(tmp_path / "run", system_prompt="New.")
    runs.trainer(tmp_path / "run").cleanup()


def test_a_start_that_left_nothing_to_resume_does_not_count(talker, tmp_path):
    started(talker, tmp_path, environment=Colours)
    other = {"dataset": QUESTIONS, "rewards": ["correct"], "learning_rate": 0.5}
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
