"""A small world for the feedback recipe: problems that are made and judged without a server, and converted conversations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import write_bundle

from midthought.feedback.convert import convert

MADE = (
    "problems.dataset=arithmetic",
    "problems.split=null",
    "problems.test_dataset=null",
    "problems.test_split=null",
    "problems.num_train=64",
    "problems.num_validation=6",
    "problems.num_test=1",
    "feedback.critic=hints",
)
SFT_MODULE = "verl.trainer.sft_trainer"


def write(monkeypatch: pytest.MonkeyPatch, folder: Path, profile: str, *words: str) -> Path:
    """The recipe's bundle for RL over made problems."""
    return write_bundle(monkeypatch, "feedback", folder / "bundle", "--config", profile, *MADE, *words)


def write_sft(monkeypatch: pytest.MonkeyPatch, folder: Path, profile: str, *words: str) -> Path:
    """The recipe's bundle for the warm-up."""
    options = ("--stage", "sft", "--config", profile, f"sft.source={write_conversations(folder)}")
    return write_bundle(monkeypatch, "feedback", folder / "sft-bundle", *options, *words)


def write_conversations(folder: Path, num_problems: int = 36) -> Path:
    """A third right at once, a third after one feedback, a third after two."""
    rows = [
        {
            "unique_id": str(problem),
            "original_question": f"What is {problem} + {problem}?",
            "iteration": iteration,
            "is_correct": iteration == problem % 3,
            "full_response": [f"It is \\boxed{{{iteration}}}."],
            "feedback": "" if iteration == problem % 3 else [f"Too small by {problem % 3 - iteration}.", None],
        }
        for problem in range(num_problems)
        for iteration in range(problem % 3 + 1)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    convert(folder / "log.jsonl", folder / "sft.parquet", strict=True)
    return folder / "sft.parquet"
