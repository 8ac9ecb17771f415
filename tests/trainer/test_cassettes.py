"""A trainer that records its calls, one that replays them, and one that was stopped while it recorded."""

from __future__ import annotations

import copy
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from small_environments import QUESTIONS, make_caller, settings, weights

from midthought import SettingsError, Trainer, Trajectory, tool
from midthought.engines.local.engine import LocalEngine
from midthought.errors import CassetteError, OutputPathError
from midthought.tokenization import Renderer

numbers = itertools.count()


@tool
def twice(word: str) -> str:
    """Says it twice.

    Args:
        word: what to say
    """
    return f"{word} {next(numbers)}"


async def unsure(trajectory: Trajectory) -> float:
    """A judge of one's own, which says something else each time."""
    return random.random()


@pytest.fixture(scope="module")
def caller(renderer: Renderer) -> Any:
    return make_caller(renderer, "in_thought")


@pytest.fixture
def make_trainer(caller: Any, tokenizer: Any) -> Any:
    def make(num_iters: int = 2, *, deterministic: bool = True, **options: Any) -> Trainer:
        config = settings("grpo", num_train_iters=num_iters, validate_every=2)
        return Trainer(
            config.merged({"inference": {"deterministic": deterministic}}),
            reward_fn=unsure,
            dataset=QUESTIONS,
            validation=QUESTIONS[:2],
            tools=[twice],
            call_format="in_thought",
            model=copy.deepcopy(caller),
            tokenizer=tokenizer,
            progress=False,
            checkpoint={"save_interval": 1},
            **options,
        )

    return make


def fitted(trainer: Trainer) -> tuple[torch.Tensor, list[dict[str, float]]]:
    with trainer:
        rows = trainer.fit()
        return weights(trainer), [{key: row[key] for key in row if not key.startswith("time/")} for row in rows]


def contents(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The calls of every part, without durations, in the order of episodes."""
    found = {}
    for path in sorted(folder.rglob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        found[path.name] = sorted(json.dumps({**row, "seconds": 0}) for row in rows)
    return found


def test_a_replay_ends_with_the_same_weights_and_metrics(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"cassette": {"record": str(tmp_path / "calls")}}
    first = fitted(make_trainer(deterministic=False, **record))
    assert any(row["tool/twice/calls"] > 0 for row in first[1])
    names = ["evaluation-000002-1.jsonl", "train-000000.jsonl", "train-000001.jsonl"]
    assert sorted(contents(tmp_path / "calls")) == names
    with pytest.raises(OutputPathError, match="holds a recorded run"):
        make_trainer(**record)

    monkeypatch.setattr(LocalEngine, "sample", None)
    before = next(numbers)
    again = fitted(make_trainer(deterministic=False, replay=str(tmp_path / "calls")))
    assert torch.equal(again[0], first[0]) and again[1] == first[1]
    assert next(numbers) == before + 1

    with pytest.raises(CassetteError, match="no part 'train-000002'"):
        fitted(make_trainer(3, replay=str(tmp_path / "calls")))
    with pytest.raises(SettingsError, match=r"cassette\.replay with inference\.partial_rollouts=true is not supported"):
        make_trainer(replay="calls", partial_rollouts=True)


def test_a_recorded_run_that_was_stopped_and_resumed_has_each_call_once(make_trainer: Any, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def run(num_iters: int, *, resume: bool = False) -> Any:
        return fitted(make_trainer(num_iters, record=str(calls), run_path=tmp_path / "run", resume=resume))

    run(2)
    (calls / "train-000002.jsonl").write_text('{"episode": 0, "half a li', encoding="utf-8")  # of a killed process
    resumed = run(3, resume=True)
    found = contents(calls)
    assert sorted(found) == ["evaluation-000002-1.jsonl", *(f"train-00000{n}.jsonl" for n in range(3))]
    assert not any("half" in row for rows in found.values() for row in rows)
    again = fitted(make_trainer(3, replay=str(calls)))
    assert torch.equal(again[0], resumed[0]) and again[1] == resumed[1]
