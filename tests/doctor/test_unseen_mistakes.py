"""A second table of mistakes that the doctor finds, and of correct runs that look like one of them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from doctor_runs import (
    COLOURS,
    GREEN,
    QUESTIONS,
    ROWS,
    Arguments,
    Boxes,
    answer_of,
    examined,
    rewarded,
    run,
    with_tokenizer,
)

from midthought import Tool, ToolDefinition, ToolParameter, Trainer, Trajectory, tool


def asked(form: str) -> list[dict[str, str]]:
    """Returns the rows with other prompts."""
    return [{**row, "question": form.format(**row)} for row in ROWS]


def is_right(trajectory: Trajectory) -> bool:
    return answer_of(trajectory) == trajectory.task.answer


def noisy(size: float, answer: Callable[[Trajectory], float] = lambda trajectory: 0.0) -> Callable[[Trajectory], float]:
    draw = random.Random(0)
    return lambda trajectory: answer(trajectory) + size * draw.random()


def template(change: Callable[[str], str]) -> Callable[[Any], None]:
    def apply(tokenizer: Any) -> None:
        tokenizer.chat_template = change(tokenizer.chat_template)

    return apply


def without_answer_start(text: str) -> str:
    return text.split("{% if add_generation_prompt")[0]


def with_head_only(arguments: Arguments) -> Arguments:
    """Freezes the model and adds a trainable part that the forward pass does not use."""
    arguments["model"] = copy.deepcopy(arguments["model"]).requires_grad_(False)
    arguments["model"].score = torch.nn.Linear(64, 1)
    return arguments


class Renamed(Tool):
    """Its description names another parameter than its function."""

    definition = ToolDefinition("look", "Looks a word up.", [ToolParameter("word", "string", "the word")])

    def execute(self, query: str) -> str:
        return query


MISTAKES: dict[str, tuple[Callable[[Arguments], Arguments], str, str]] = {
    "every gold answer is the same": (lambda taught: run(taught, dataset=GREEN), "gold_answers", "'green'"),
    "columns that are swapped": (
        lambda taught: run(taught, dataset=[{"question": row["answer"], "answer": row["question"]} for row in ROWS]),
        "gold_answers",
        "end with a question mark",
    ),
    "one prompt, repeated": (
        lambda taught: run(taught, dataset=[ROWS[0]] * 12),
        "repeated_prompts",
        "12 tasks have 1 different prompt",
    ),
    "a prompt with several gold answers": (
        lambda taught: run(taught, dataset=[{"question": QUESTIONS[0], "answer": colour} for colour in COLOURS] * 2),
        "repeated_prompts",
        "several gold answers",
    ),
    "validation on training data": (
        lambda taught: run(taught, validation=ROWS[:3]),
        "validation",
        "3 of 3 held-out prompts",
    ),
    "a learning rate that was mistyped": (
        lambda taught: run(taught, learning_rate=1e-12),
        "movement",
        "training.learning_rate=1e-12",
    ),
    "clipping meant as none": (
        lambda taught: run(taught, max_grad_norm=1e-9),
        "movement",
        "training.max_grad_norm=1e-09",
    ),
    "a warm-up that is longer than the run": (
        lambda taught: run(taught, warmup_steps=20_000, num_train_iters=12),
        "movement",
        "training.warmup_steps=20000",
    ),
    "AdamW's epsilon": (lambda taught: run(taught, adam_epsilon=100.0), "movement", "training.adam_epsilon=100"),
    "a frozen model with a new head": (lambda taught: with_head_only(run(taught)), "movement", "65 of the"),
    "a KL penalty of 20": (lambda taught: run(taught, kl_coef=20.0), "movement", "training.kl_coef=20"),
    "a hint in the prompt": (
        lambda taught: run(taught, dataset=asked("(The correct colour is {answer}.) {question} Use one word.")),
        "answer_in_prompt",
        "12 of 12",
    ),
    "an example that is the question itself": (
        lambda taught: run(taught, dataset=asked("Q: {question}\nA: {answer}\n\nQ: {question}")),
        "answer_in_prompt",
        "12 of 12",
    ),
    "a template that does not start an answer": (
        lambda taught: with_tokenizer(taught, template(without_answer_start)),
        "chat_template",
        "does not start an answer",
    ),
    "a tool whose function has another parameter": (
        lambda taught: run(taught, tools=[Renamed()]),
        "calls",
        "its execute has others",
    ),
    "a random reward": (lambda taught: rewarded(taught, noisy(1.0)), "gold_answer", "same episode"),
    "a reward for length": (
        lambda taught: rewarded(taught, lambda t: t.num_sampled / 10 + is_right(t)),
        "shortcuts",
        "longer thought",
    ),
    "a reward that pays calls more than answers": (
        lambda taught: rewarded(taught, lambda t: is_right(t) + 2.0 * t.num_calls),
        "shortcuts",
        "a wrong answer after a call",
    ),
    "a reward that compares all tasks with one answer": (
        lambda taught: rewarded(taught, lambda t: float(answer_of(t) == "red")),
        "gold_answer",
        "does not read the task's answer",
    ),
}
"""By description: the trainer's arguments, the check that finds the mistake, a part of the finding."""


@pytest.mark.parametrize("description", MISTAKES)
def test_the_doctor_finds(description, taught):
    make, check, part = MISTAKES[description]
    found = examined(lambda: Trainer(**make(taught)), samples=False).findings
    named = [finding for finding in found if finding.guard == check]
    assert any(part in " ".join((finding.observation, *finding.causes)) for finding in named), [str(f) for f in found]
    assert all(finding.action for finding in found)


def test_a_sampled_call_shows_that_a_tool_always_fails(taught, caller):
    @tool
    def lookup(word: str) -> str:
        """Looks a word up.

        Args:
            word: the word
        """
        raise ConnectionError("no service")

    found = examined(lambda: Trainer(**run(caller, tools=[lookup], max_tokens=64, temperature=0.3))).findings
    (finding,) = [finding for finding in found if finding.guard == "tools"]
    assert "'lookup' fail" in finding.observation and "no service" in finding.observation and finding.action


def test_a_tool_that_forgets_to_return_its_result_is_named(taught, caller):
    @tool
    def lookup(word: str) -> None:
        """Looks a word up.

        Args:
            word: the word
        """

    found = examined(lambda: Trainer(**run(caller, tools=[lookup], max_tokens=64, temperature=0.3))).findings
    (finding,) = [finding for finding in found if finding.guard == "tools"]
    assert "return nothing" in finding.observation and "lacks a return" in finding.causes[0]


class Endless(Boxes):
    """Forgets to say that it is over."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "And the next one?", float(action == "red"), False, {}


def test_an_environment_that_does_not_end_its_episodes_is_named(taught):
    limits = {"rewards": [], "dataset": None, "max_tokens": 400}
    report = examined(lambda: Trainer(**run(taught, environment=Endless, **limits)))
    (finding,) = [each for each in report.findings if each.guard == "episodes"]
    assert "end at inference.max_turns=5" in finding.observation and "does not end" in finding.causes[0]
    report = examined(lambda: Trainer(**run(taught, environment=Endless, max_steps=2, **limits)))
    (finding,) = [each for each in report.findings if each.guard == "episodes"]
    assert "environment.max_steps=2" in finding.observation and "does not end" in finding.causes[0]
    report = examined(lambda: Trainer(**run(taught, environment=Boxes, **limits)))
    assert not [each for each in report.findings if each.guard == "episodes"], report.to_lines()


LIKE_MISTAKES: dict[str, Callable[[Arguments], Arguments]] = {
    "a cost of length": lambda taught: rewarded(taught, lambda t: is_right(t) - t.num_sampled / 1000),
    "a small bonus for a call": lambda taught: rewarded(taught, lambda t: is_right(t) + 0.2 * min(t.num_calls, 1)),
    "a judge that varies a little": lambda taught: rewarded(taught, noisy(0.05, is_right)),
    "options in the prompt": lambda taught: run(taught, dataset=asked("{question}\nA: red\nB: blue\nC: green")),
    "fixed examples in the prompt": lambda taught: run(
        taught, dataset=asked("Q: Which colour has snow?\nA: red\n\nQ: {question}\nA:")
    ),
    "a few repeated prompts and held-out ones": lambda taught: run(
        taught,
        dataset=[*ROWS, ROWS[0]],
        validation=[{"question": f"Which colour has cup {n}?", "answer": "red"} for n in range(20)] + ROWS[:1],
    ),
    "a tool with a variable number of parameters": lambda taught: run(taught, tools=[Flexible()]),
}


class Flexible(Tool):
    definition = Renamed.definition

    def execute(self, **parameters: Any) -> str:
        return str(parameters)


@pytest.mark.parametrize("description", LIKE_MISTAKES)
def test_the_doctor_is_silent_on(description, taught):
    report = examined(lambda: Trainer(**LIKE_MISTAKES[description](taught)), samples=False)
    assert report.is_healthy, report.to_lines()
