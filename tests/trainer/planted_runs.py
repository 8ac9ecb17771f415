"""Trains a small model with a planted failure, and compares what the guards report with its cause."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

from small_environments import QUESTIONS, settings

from midthought import RayPPOTrainer, TrainingStoppedError
from midthought.guards.command import judge

INFERENCE = {"temperature": 1.0, "tool_timeout_seconds": 10.0, "max_tool_calls_per_cot": 5, "max_turns": 5}
SHORT = {"timeout": "tool_timeout_seconds", "max_calls": "max_tool_calls_per_cot"}
GIVEN = ("reward_fn", "tools", "environment", "dataset", "validation", "call_format")


def train_planted(
    options: dict[str, Any], talker: dict[str, Any], callers: dict[str, Any], run: Path, num_iters: int
) -> None:
    """Trains with these arguments of the trainer, settings of training, and settings of `INFERENCE`. `model`: a caller's name;
    `change`: changes the model."""
    options = {SHORT.get(name, name): value for name, value in options.items()}
    if "model" in options:
        talker["model"] = copy.deepcopy(callers[options.pop("model")])
    options.pop("change", lambda model: None)(talker["model"])
    given = {name: options.pop(name) for name in GIVEN if name in options}
    if "tools" in given:
        given.setdefault("call_format", "in_thought")
    if "environment" not in given:
        given.setdefault("dataset", QUESTIONS)
    inference = {name: options.pop(name, usual) for name, usual in INFERENCE.items()}
    is_evaluated_first = options.pop("is_evaluated_first", False)
    options.setdefault("num_train_iters", options.pop("num_iters", num_iters))
    config = settings(options.pop("adv_estimator", "gae"), max_tokens=options.pop("max_tokens", 40), **options)
    for name, value in inference.items():
        setattr(config.inference, name, value)
    with (
        RayPPOTrainer(config, **given, **talker, run_path=run) as trainer,
        contextlib.suppress(TrainingStoppedError),
    ):
        if is_evaluated_first:
            trainer.evaluate()
        trainer.fit()


def assert_reported(run: Path, guards: str, cause: str, num_iters: int) -> None:
    """The first report of one of these guards came in time, during the run, with this first cause."""
    found = judge(run)
    ours = [finding for finding in found if finding.guard in guards.split()]
    assert ours, [finding.guard for finding in found]
    assert ours[0].step - ours[0].start_step < num_iters
    assert cause in ours[0].causes[0]
    assert ours[0].guard in (run / "guards.jsonl").read_text()


def assert_reported_first(run: Path, guard: str, cause: str, num_iters: int) -> None:
    """`assert_reported`, and no other guard reported anything before."""
    assert_reported(run, guard, cause, num_iters)
    assert judge(run)[0].guard == guard, [str(finding) for finding in judge(run)]
