"""`python -m benchmarks real`: its problems, demonstrations and game, and a short run of every task with a small model."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from small_runs import SHORT_TRANSCRIPTS, small_embedding_model

from benchmarks.real import podcast
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
    LARGEST,
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
from midthought.models.pretrained import save_model
from midthought.models.small_model import make_policy, make_tokenizer


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
    assert world.step("a word")[0] == "Answer with one number."
    low, high, played = 1, LARGEST, [("", 0.0, False, {"success": False})]
    while not played[-1][2]:
        guess = (low + high) // 2
        played.append(world.step(str(guess)))
        low, high = (guess + 1, high) if played[-1][0] == "Higher." else (low, guess - 1)
    assert [reward for _, reward, *_ in played] == [
        *[0.0] * (len(played) - 1),
        pytest.approx(1.0 - 0.1 * (len(played) - 1)),
    ]
    assert played[-1][0] == RIGHT and played[-1][3] == {"success": True}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_short_run_measures_every_stage_and_arm(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    out = tmp_path / "out"
    out.mkdir()
    options = short(tmp_path, out, batch_size=32)  # so many episodes that rewards of reversed texts differ in a group
    train(task, options)
    for arm in task.arms:
        train_arm(task, options, arm)
    figures = json.loads((out / FIGURES).read_text())
    assert {PRETRAINED, AFTER_SFT, AFTER_RL} <= figures.keys()
    difference = figures[AFTER_RL].get(DIFFERENCE)  # the others than reverse_text may have no update
    assert name != "reverse_text" if difference is None else difference < 1e-4
    rows = table(task, out).splitlines()
    assert len(rows) == 2 + 3 + len(task.arms) + 2 + (difference is not None)
    assert (out / "run" / "report.html").is_file()


def short(folder: Path, out: Path, **settings: Any) -> Options:
    """Of a small model that this makes in the folder."""
    texts = [str(row) for row in games(0)[:20]] + [row["question"] for row in multiplication(0, 8)["dataset"][:200]]
    tokenizer = make_tokenizer(texts, 600)
    model = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=1024, seed=0)
    save_model(model, tokenizer, folder / "model")
    given = {"device": "cpu", "progress": False, **settings}
    return Options(model=str(folder / "model"), seed=0, out=out, settings=given, is_short=True)


@pytest.mark.slow
def test_a_short_run_of_the_podcast_goes_on_after_a_closed_gate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = short(tmp_path, tmp_path / "out")
    assert podcast.run(options, [SHORT_TRANSCRIPTS, small_embedding_model()]) == 0
    printed = capfd.readouterr().out
    assert "required ≥ 0.85: not passed" in printed
    assert "called 0." in printed
    _, _, *rows = podcast.table(options.out).splitlines()
    assert [row.split("|")[1].strip() for row in rows] == [AFTER_SFT, AFTER_RL]
    assert not any(cell.strip() == "" for row in rows for cell in row.split("|")[1:-1])
    assert (options.out / podcast.RL / "report.html").is_file()


@pytest.mark.parametrize(
    ("device", "steps", "share", "commands", "code"),
    [("cuda", 300, 0.84, ["train", "evaluate"], 1), ("cpu", 100, 0.85, ["train", "evaluate", "train"], 0)],
)
def test_the_podcast_stops_at_its_gate_and_trains_less_on_a_cpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    steps: int,
    share: float,
    commands: list[str],
    code: int,
) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(podcast, "call_midthought", lambda *words: ran.append(words) or 0)
    factors = {f"after.factors.{name}": None for name in podcast.FACTORS}
    monkeypatch.setattr(podcast, "summary_of", lambda path: {"after.oracle.exact_match": share, **factors})
    assert podcast.run(Options(model="m", seed=0, out=tmp_path, settings={"device": device})) == code
    assert [words[0] for words in ran] == commands and f"warmup.num_steps={steps}" in ran[0]
