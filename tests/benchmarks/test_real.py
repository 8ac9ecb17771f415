"""`python -m benchmarks real`: its problems, demonstrations and game, and a short run of every task with a small model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.real.measure import (
    AFTER_RL,
    AFTER_SFT,
    DIFFERENCE,
    FIGURES,
    PRETRAINED,
    Options,
    table,
    train,
    train_arm,
)
from benchmarks.real.tasks import (
    MAX_GUESSES,
    RIGHT,
    TASKS,
    GuessTheNumber,
    calls_and_guesses,
    games,
    multiplication,
    reply_to,
    reversal,
    start_of_game,
)
from midthought import Task
from midthought.learning.small_model import make_policy, make_tokenizer
from midthought.pretrained import save_model


def test_problems_are_products_and_no_held_out_one_is_trained_on() -> None:
    arguments = multiplication(3, 64)
    for row in [*arguments["dataset"], *arguments["validation"]]:
        a, b = map(int, re.findall(r"\d+", row["question"]))
        assert row["answer"] == str(a * b)
    assert not {row["question"] for row in arguments["dataset"]} & {row["question"] for row in arguments["validation"]}
    reversed_rows = reversal(0, 8)["dataset"]
    assert all(row["question"].endswith(row["answer"][::-1]) for row in reversed_rows)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_demonstrations_call_in_their_share_and_all_guesses_are_wrong(share: float) -> None:
    shown = calls_and_guesses(0, share)
    tasks = [Task(task_id=str(n), prompt=f"What is {n} times 12?", answer=str(12 * n)) for n in range(12, 412)]
    demonstrations = [shown(task) for task in tasks]
    calling = [each for each in demonstrations if len(each) == 3]
    assert abs(len(calling) / 400 - share) < 0.1
    for task, messages in zip(tasks, demonstrations, strict=True):
        assert (task.answer in messages[-1]["content"]) == (len(messages) == 3)


def test_games_are_played_by_the_rules_of_the_environment() -> None:
    for row in games(0)[:50]:
        opening, *rest = row["messages"]
        assert opening["content"] == start_of_game()
        guesses = [int(each["content"]) for each in rest if each["role"] == "assistant"]
        replies = [each["content"] for each in rest if each["role"] == "user"]
        assert 1 <= len(guesses) <= MAX_GUESSES
        number = guesses[-1]
        assert [reply_to(str(guess), number) for guess in guesses[:-1]] == replies or len(guesses) == MAX_GUESSES
    world = GuessTheNumber()
    world.reset(seed=5)
    replies = [world.step("a word"), *(world.step(str(world._number)) for _ in range(1))]
    assert [reply for reply, *_ in replies] == ["Answer with one number.", RIGHT]
    assert replies[-1][1:] == (pytest.approx(0.9), True, {"success": True})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_short_run_measures_every_stage_and_arm(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    texts = [str(row) for row in games(0)[:20]] + [row["question"] for row in multiplication(0, 8)["dataset"][:200]]
    tokenizer = make_tokenizer(texts, 600)
    model = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=1024, seed=0)
    save_model(model, tokenizer, tmp_path / "model")
    out = tmp_path / "out"
    out.mkdir()
    settings = {"device": "cpu", "progress": False}
    options = Options(model=str(tmp_path / "model"), seed=0, out=out, settings=settings, is_short=True)
    train(task, options)
    for arm in task.arms:
        train_arm(task, options, arm)
    figures = json.loads((out / FIGURES).read_text())
    assert {PRETRAINED, AFTER_SFT, AFTER_RL} <= figures.keys()
    assert figures[AFTER_RL][DIFFERENCE] < 1e-4
    rows = table(task, out).splitlines()
    assert len(rows) == 2 + 3 + len(task.arms)
    assert (out / "run" / "report.html").is_file()
