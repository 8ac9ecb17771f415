"""The benchmark of credit per call: its rewards, its first policies, and the numbers in its table."""

import json
import random

import pytest
import torch

from benchmarks import credit
from midthought.learning.small_model import make_tokenizer
from midthought.tokenization import Renderer


@pytest.mark.parametrize("name", ["one_good", "independent-4"])
def test_demonstrations_hold_the_calls_of_their_kind_and_are_paid_per_call(name):
    game = credit.GAMES[name]
    renderer = Renderer(make_tokenizer(credit.corpus(), 320, joins_words=True))
    shares = []
    for seed in range(8):
        prompt = " ".join(credit.LETTERS[: game.num_calls])
        trajectory = credit.demonstration(game, renderer, prompt, random.Random(seed))
        paid = credit.per_call(trajectory).calls
        results = [float(event.call.result == "good") for event in trajectory.tool_events]
        assert list(paid) == results and len(paid) == game.num_calls
        assert len({index for _, index in trajectory.call_ends}) == game.num_calls
        shares.append(sum(paid))
    assert set(shares) == {1.0} if game.one_good else len(set(shares)) > 1


def test_the_first_policy_of_one_good_call_gets_the_second_right_only_after_a_bad_one():
    logits = credit.first_logits(credit.GAMES["one_good"])
    of_good = torch.stack([logits[row, :, good].softmax(0) for row, good in enumerate(credit.GOOD.values())])
    shares = torch.stack([logits[row].softmax(-1)[:, good] for row, good in enumerate(credit.GOOD.values())])
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.018, 0.982]).expand(8, 3), atol=1e-3, rtol=0)
    assert of_good.shape == (8, 3)


def test_the_table_takes_each_estimators_best_learning_rate_and_marks_runs_that_did_not_reach_the_target(tmp_path):
    game = credit.GAMES["one_good"]
    measured = {("grpo", 0.1): 64, ("grpo", 0.2): None, ("grpo_calls", 0.1): 96, ("grpo_calls", 0.2): 32}
    for (name, rate), episodes in measured.items():
        row = {"episodes": episodes, "shares": [0.5] * ((episodes or 320) // credit.BATCH_SIZE)}
        credit.place(tmp_path, game, name, rate, 0).write_text(json.dumps(row))
    table = credit.table(tmp_path, [game], ["grpo", "grpo_calls", "grpo_calls, gamma 0"], [0.1, 0.2], [0])
    assert table.splitlines()[2:] == [
        "| one_good | `grpo` | 0.1 | 64 | 64 | 1.00 |",
        "| one_good | `grpo_calls` | 0.2 | 32 | 32 | 0.50 |",
    ]


def test_credit_per_call_needs_at_most_half_the_episodes_of_credit_per_episode():
    game = credit.GAMES["one_good"]
    by_call = credit.run_logits(game, "grpo_calls", 0.8, 0, 1600)
    by_episode = credit.run_logits(game, "grpo", 0.8, 2, 1600)
    assert by_call["episodes"] <= 960 and by_episode["episodes"] is None
