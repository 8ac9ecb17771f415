"""A worked example of every estimator: two tasks, two episodes each, with 2, 3, 2 and 3 policy tokens.

The rewards at the last policy token are 1 and 0 (first task), 0.5 and 0 (second task). The last policy token of the first and of
the second episode, and the last two of the fourth, are their second turn. The first and the third episode make a call after their
first token, the fourth after its second token. The first episode has a tool result between its tokens, which does not count.
"""

import pytest
import torch

from midthought.algo.advantages import AdvantageEstimator, compute_advantage

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


ADVANTAGES = {
    # lambda 0.5, gamma 1, not whitened
    "gae": [[0.4, 0.4], [-0.05, -0.1, -0.2], [0, 0], [0, 0, 0]],
    # scores 1, 0: mean 0.5, std 0.707; scores 0.5, 0: mean 0.25, std 0.354
    "grpo": [[0.707, 0.707], [-0.707, -0.707, -0.707], [0.707, 0.707], [-0.707, -0.707, -0.707]],
    "dr_grpo": [[0.5, 0.5], [-0.5, -0.5, -0.5], [0.25, 0.25], [-0.25, -0.25, -0.25]],
    # 1 - 0, 0 - 1; 0.5 - 0, 0 - 0.5
    "rloo": [[1, 1], [-1, -1, -1], [0.5, 0.5], [-0.5, -0.5, -0.5]],
    # returns 1, 0, 0.5, 0 at 2, 3, 2, 3 tokens: mean 0.3, std 0.422
    "reinforce_plus_plus": [[1.66, 1.66], [-0.712, -0.712, -0.712], [0.474, 0.474], [-0.712, -0.712, -0.712]],
    # 0.5, -0.5, 0.25, -0.25 at these tokens: mean -0.075, std 0.409
    "reinforce_plus_plus_baseline": [
        [1.406, 1.406],
        [-1.039, -1.039, -1.039],
        [0.794, 0.794],
        [-0.428, -0.428, -0.428],
    ],
    # turn 1: 1, 0 and 0.5, 0; turn 2: 1, 0, and in the second group only the last episode, so 0
    "grpo_turns": [[0.707, 0.707], [-0.707, -0.707, -0.707], [0.707, 0.707], [-0.707, 0, 0]],
    # step 1: 1, 0 and 0.5, 0; step 2: in the first group only the first episode, so 0; 0.5, 0
    "grpo_calls": [[0.707, 0], [-0.707, -0.707, -0.707], [0.707, 0.707], [-0.707, -0.707, -0.707]],
    # rewards are not used
    "zero": [[0, 0], [0, 0, 0], [0, 0], [0, 0, 0]],
    # the highest score of its group
    "keep_best": [[1, 1], [0, 0, 0], [1, 1], [0, 0, 0]],
}


@pytest.mark.parametrize("name", ADVANTAGES)
def test_the_advantages_are_those_worked_by_hand(name):
    groups = torch.tensor([0, 0, 1, 1])
    advantages, _ = compute_advantage(name, REWARDS, MASK, index=groups, **OPTIONS.get(name, {}))
    found = [line[mask].tolist() for line, mask in zip(advantages, MASK, strict=True)]
    assert found == [pytest.approx(line, abs=5e-4) for line in ADVANTAGES[name]]


def test_every_estimator_has_an_example():
    assert {*ADVANTAGES} >= {*AdvantageEstimator}
