"""The doctor plays environments and reads sampled calls: starts, state that episodes share, announced answers, waiting."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import pytest
from doctor_runs import COLOURS, Arguments, Boxes, examined, run

from midthought import Tool, ToolDefinition, ToolParameter, Trainer, tool
from midthought.doctor.examination import Report
from midthought.env.game import SimpleGameEnvironment
from midthought.tools.definition import ToolEpisode

NAMES = ("starts", "isolation", "announced_answer", "waiting")


class SameStart(Boxes):
    """Draws its question with a generator that the seed does not reach."""

    def reset(self, seed: int = 0) -> str:
        self.rng = random.Random(0)
        return super().reset(self.rng.randrange(12))


class OtherStart(Boxes):
    """Draws its question from the global generator."""

    def reset(self, seed: int = 0) -> str:
        return super().reset(random.randrange(12))


class Remembering(Boxes):
    """Keeps what was said in a list of the class."""

    said: list[str] = []  # noqa: RUF012  (the mistake)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.said.append(action)
        _, reward, done, info = super().step(action)
        return f"So far: {', '.join(self.said[-3:])} ({len(self.said)})", reward, done, info


class Solved(Boxes):
    """Is solved for all episodes as soon as one has solved it."""

    is_solved: dict[str, bool] = {}  # noqa: RUF012  (the mistake)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        observation, reward, done, info = super().step(action)
        if self.num_turns == 1:
            observation = "Solved." if self.is_solved else "Not yet."
        self.is_solved["now"] = True
        return observation, reward, done, info


class Announced(Boxes):
    """Debugging output that was left in the prompt."""

    def reset(self, seed: int = 0) -> str:
        self.colour = COLOURS[seed % 3]
        return f"{super().reset(seed)} (answer: {self.colour}). Use one word."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", float(action == self.colour), True, {}


class AnnouncedInASentence(Announced):
    """Some starts say nothing."""

    def reset(self, seed: int = 0) -> str:
        text = super().reset(seed).partition(" (")[0]
        return text if seed % 4 == 0 else f"{text} The answer is {self.colour}. Use one word."


class Slow(Boxes):
    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        time.sleep(0.6)
        return super().step(action)


MISTAKES = {
    "the same start for every seed": (SameStart, "starts", "all 8 starts are the same"),
    "another start for the same seed": (OtherStart, "starts", "the same seed"),
    "a list of the class": (Remembering, "isolation", "from the same start"),
    "a flag of the class": (Solved, "isolation", "from the same start"),
    "the answer in the prompt": (Announced, "announced_answer", "the prompt"),
    "steps that take seconds": (Slow, "waiting", "an iteration of 4 episodes waits at least"),
}


def in_world(taught: Arguments, environment: Any, **changes: Any) -> Report:
    limits = {"dataset": None, "rewards": [], "tools": [], "environment": environment, "max_tokens": 100} | changes
    return examined(lambda: Trainer(**{**run(taught), **limits}))


@pytest.mark.parametrize("description", MISTAKES)
def test_the_doctor_finds(description, taught, monkeypatch):
    monkeypatch.setattr("midthought.doctor.checks.steps.MIN_SECONDS", 0.5)
    environment, check, part = MISTAKES[description]
    if environment is Slow:  # else more episodes of slow steps are repeated
        monkeypatch.setattr("midthought.doctor.checks.steps.MAX_SECONDS", 0.0)
    found = in_world(taught, environment).findings
    named = [each for each in found if each.guard == check]
    assert named and part in named[0].observation, [f"{each.guard}: {each.observation}" for each in found]
    assert named[0].action and not [each for each in found if each.guard in NAMES and each.guard != check]


class OneTask(Boxes):
    """The same task in all episodes, without a seed."""

    def reset(self) -> str:
        return super().reset(0)


class Options(Announced):
    """States what may be answered."""

    def reset(self, seed: int = 0) -> str:
        return f"{super().reset(seed).partition(' (')[0]} Answer: red, blue or green."


class Rolling(Boxes):
    """Draws in its steps, from the seed."""

    def reset(self, seed: int = 0) -> str:
        self.rng = random.Random(seed)
        return super().reset(seed)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        _, reward, done, info = super().step(action)
        return f"You rolled {self.rng.randrange(100)}.", reward, done, info


class Cached(Boxes):
    """Keeps results of the class, which change no episode."""

    found: dict[str, str] = {}  # noqa: RUF012

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.found.setdefault(action, action.upper())
        return super().step(action)


@pytest.mark.parametrize("environment", [Boxes, OneTask, Options, Rolling, Cached, SimpleGameEnvironment])
def test_the_doctor_is_silent_on(environment, taught):
    report = in_world(taught, environment)
    assert not [each for each in report.findings if each.guard in NAMES], report.to_lines()
    assert set(NAMES) <= set(report.passed)


def played(environment: Any, taught: Arguments) -> Report:
    """What the doctor finds if it samples nothing."""
    arguments = {**run(taught), "dataset": None, "rewards": [], "tools": [], "environment": environment}
    return examined(lambda: Trainer(**arguments), samples=False)


def test_an_answer_in_a_sentence_is_shown_with_its_own_start(taught):
    (finding,) = [each for each in played(AnnouncedInASentence, taught).findings if each.guard == "announced_answer"]
    answer = re.search(r"for example '(\w+)'", finding.observation)[1]
    assert f"The answer is {answer}." in finding.observation


def test_without_samples_hints_are_played_for_some_seconds_only_and_the_seconds_of_a_step_are_reported(
    taught, monkeypatch
):
    monkeypatch.setattr("midthought.doctor.checks.steps.MIN_SECONDS", 0.2)
    monkeypatch.setattr("midthought.doctor.checks.steps.MAX_SECONDS", 0.5)

    class SlowHints(AnnouncedInASentence):
        num_steps = 0

        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            SlowHints.num_steps += 1
            time.sleep(0.2)
            return super().step(action)

    report = played(SlowHints, taught)
    assert "announced_answer" not in report.skipped
    assert SlowHints.num_steps <= 12  # without the limit, each of the 8 hints takes 2 to 4 steps
    (finding,) = [each for each in report.findings if each.guard == "waiting"]
    assert re.fullmatch(r"a step of the environment takes 0\.\d+ s", finding.observation) and finding.action


# -- tools -------------------------------------------------------------------------------------------------------


def called(caller: Arguments, lookup: Tool) -> Report:
    return examined(lambda: Trainer(**run(caller, tools=[lookup], max_tokens=64, temperature=0.3)))


def lookup_of(function: Any) -> Tool:
    """Returns a function of one word as the tool that the model calls."""

    def lookup(word: str) -> str:
        """Looks a word up.

        Args:
            word: the word
        """
        return function(word)

    return tool(lookup)


class Notes(Tool):
    """Writes into a list that all episodes share, instead of one that `open` makes."""

    definition = ToolDefinition("lookup", "Looks a word up.", [ToolParameter("word", "string", "the word")])

    def __init__(self) -> None:
        self.notes: list[str] = []

    def execute(self, word: str) -> str:
        self.notes.append(word)
        return f"{len(self.notes)} notes"


class OwnNotes(Notes):
    def open(self, episode: ToolEpisode) -> Tool:
        return Notes()


def noted() -> Tool:
    notes: list[str] = []
    return lookup_of(lambda word: notes.append(word) or f"{len(notes)} notes")


@pytest.mark.parametrize("make", [Notes, noted])
def test_a_tool_whose_state_is_shared_between_episodes_is_named(make, caller):
    (finding,) = [each for each in called(caller, make()).findings if each.guard == "isolation"]
    assert "'lookup'" in finding.observation and "outlives an episode" in finding.causes[0]
    assert "Tool.open" in finding.action


def cached() -> Tool:
    known: dict[str, str] = {}
    return lookup_of(lambda word: known.setdefault(word, f"nothing about {word}"))


def dice() -> Tool:
    draw = random.Random(0)
    return lookup_of(lambda word: str(draw.randrange(6)))


@pytest.mark.parametrize("make", [OwnNotes, cached, dice])
def test_tools_with_own_state_or_a_cache_or_randomness_are_not(make, caller):
    report = called(caller, make())
    assert not [each for each in report.findings if each.guard in NAMES], report.to_lines()


def test_a_slow_tool_is_named_with_the_time_per_iteration(caller, monkeypatch):
    monkeypatch.setattr("midthought.doctor.checks.steps.MIN_SECONDS", 0.5)
    report = called(caller, lookup_of(lambda word: time.sleep(0.6) or "nothing"))
    (finding,) = [each for each in report.findings if each.guard == "waiting"]
    assert "a call of 'lookup' takes 0.6" in finding.observation
    assert "an iteration of 4 episodes waits at least" in finding.observation and finding.action


# -- without samples ---------------------------------------------------------------------------------------------


def test_without_samples_an_environment_is_played_with_fixed_texts(taught):
    arguments = {
        **run(taught),
        "dataset": None,
        "rewards": [],
        "environment": Remembering,
    }  # with a tool, which is not called
    found = examined(lambda: Trainer(**arguments), samples=False).findings
    assert [each.guard for each in found if each.guard in NAMES] == ["isolation"]
