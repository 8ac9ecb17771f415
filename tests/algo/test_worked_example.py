"""The worked example of docs/algorithms.md: its numbers are what the estimators give."""

from pathlib import Path

import pytest
import torch

from midthought.algo.advantages import AdvantageEstimator, compute_advantage

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
MASK = torch.tensor([[1, 0, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]]).bool()
REWARDS = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.0]])
OPTIONS = {
    "gae": {
        "values": torch.tensor([[0.4, 0.0, 0.6], [0.2, 0.2, 0.2], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]),
        "whiten": False,
        "lam": 0.5,
    },
    "grpo_calls": {"calls": torch.tensor([[0, -1, 1], [0, 0, 0], [0, 1, -1], [0, 0, 1]])},
    "grpo_turns": {"turns": torch.tensor([[0, -1, 1], [0, 0, 1], [0, 0, -1], [0, 1, 1]])},
}


def rows() -> dict[str, list[list[float]]]:
    example = PAGE.read_text("utf-8").partition("### A worked example")[2].partition("\n##")[0]
    lines = [line.split(" | ") for line in example.splitlines() if line.startswith("| `")]
    return {line[0].strip("| `"): [[float(number) for number in cell.split()] for cell in line[1:5]] for line in lines}


@pytest.mark.parametrize("name", rows())
def test_the_advantages_on_the_page_are_those_of_the_estimator(name):
    groups = torch.tensor([0, 0, 1, 1])
    advantages, _ = compute_advantage(name, REWARDS, MASK, index=groups, **OPTIONS.get(name, {}))
    found = [line[mask].tolist() for line, mask in zip(advantages, MASK, strict=True)]
    assert found == [pytest.approx(line, abs=5e-4) for line in rows()[name]]


def test_the_page_has_every_estimator():
    assert {*rows()} >= {*AdvantageEstimator}
