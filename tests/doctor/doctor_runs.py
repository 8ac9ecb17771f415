"""A small model that answers every question with `red` or `blue`, and what the doctor's tests train it on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from midthought import BaseEnvironment, Trainer, tool
from midthought.doctor.examination import Report, examine
from midthought.errors import MidthoughtError
from midthought.learning.small_model import make_tokenizer

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


def examined(make: Callable[[], Trainer], *, samples: bool = True) -> Report:
    """Returns the report of a trainer, or of the error with which it is refused, as `midthought doctor SCRIPT` does."""
    report = Report()
    try:
        with make() as trainer:
            if samples:
                return trainer.check()
            return examine(dataclasses.replace(trainer.setup, why_not_sampled="another check finds it"))
    except MidthoughtError as error:
        report.refuse(error, "setup")
    return report
