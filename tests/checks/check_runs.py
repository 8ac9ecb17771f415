"""A small model that answers every question with `red` or `blue`, and what the tests of the checks train it on."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from midthought import BaseEnvironment, Trainer, Trajectory, tool
from midthought.checks.examination import Report, examine, refusal
from midthought.env.rewards import last_answer
from midthought.errors import MidthoughtError
from midthought.models.small_model import make_tokenizer

Arguments = dict[str, Any]
COLOURS = ("red", "blue", "green")
QUESTIONS = [f"Which colour has box number {n}?" for n in range(12)]
ROWS = [{"question": question, "answer": COLOURS[n % 3]} for n, question in enumerate(QUESTIONS)]
GREEN = [{"question": question, "answer": "green"} for question in QUESTIONS]
SMALL = {"batch_size": 4, "mini_batch_size": 4, "group_size": 4, "max_tokens": 24, "progress": False}


@tool
def lookup(word: str) -> str:
    """Looks a word up.

    Args:
        word: the word
    """
    return f"nothing about {word}"


class Boxes(BaseEnvironment):
    """Two turns."""

    def reset(self, seed: int = 0) -> str:
        self.num_turns = 0
        return QUESTIONS[seed % 12]

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.num_turns += 1
        return "And the next one?", float(action == "red"), self.num_turns == 2, {}


def teach() -> dict[str, Any]:
    """Returns the arguments `model` and `tokenizer` of a trainer."""
    texts = ["I know.", *COLOURS, *QUESTIONS, "And the next one?"] * 20
    said = [{"role": "assistant", "reasoning_content": "I know.", "content": colour} for colour in COLOURS[:2]]
    demonstrations = [[{"role": "user", "content": question}, each] for question in QUESTIONS for each in said]
    tokenizer = make_tokenizer(texts, 400)
    sizes = {"hidden_size": 64, "num_layers": 1, "progress": False}
    with Trainer(dataset=ROWS, tokenizer=tokenizer, rewards=["correct"], tools=[lookup], **sizes) as trainer:
        model = trainer.model
        trainer.sft(demonstrations, num_steps=60, batch_tokens=256, learning_rate=1e-2)
    return {"model": model, "tokenizer": tokenizer}


def teach_calls(taught: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Returns the same for a model that calls `lookup` before it answers, with these arguments of the trainer."""
    call = {"type": "function", "id": "1", "function": {"name": "lookup", "arguments": {"word": "box"}}}
    calls = {"role": "assistant", "reasoning_content": "I know.", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": "nothing about box"}
    said = {"role": "assistant", "content": "red"}
    demonstrations = [[{"role": "user", "content": question}, calls, result, said] for question in QUESTIONS]
    with Trainer(**run({**taught, "model": copy.deepcopy(taught["model"])}, **changes)) as trainer:
        trainer.sft(demonstrations, num_steps=60, batch_tokens=1024, learning_rate=1e-2)
        return {**taught, "model": trainer.model}


def run(taught: Arguments, **changes: Any) -> Arguments:
    return {"dataset": ROWS, "rewards": ["correct"], "tools": [lookup], "algorithm": "grpo"} | SMALL | taught | changes


def rewarded(taught: Arguments, function: Callable[[Trajectory], float], **changes: Any) -> Arguments:
    return {**run(taught, **changes), "rewards": [], "reward_fn": function}


def with_tokenizer(taught: Arguments, change: Callable[[Any], Any], **changes: Any) -> Arguments:
    tokenizer = copy.deepcopy(taught["tokenizer"])
    return run({**taught, "tokenizer": change(tokenizer) or tokenizer}, **changes)


def answer_of(trajectory: Trajectory) -> str:
    return last_answer(trajectory) or ""


def examined(make: Callable[[], Trainer], *, samples: bool = True) -> Report:
    """Returns the report of a trainer, or of the error with which it is refused."""
    report = Report()
    try:
        with make() as trainer:
            if samples:
                return trainer.check()
            return examine(dataclasses.replace(trainer.setup, why_not_sampled="another check finds it"))
    except MidthoughtError as error:
        report.findings.append(refusal(error))
    return report
