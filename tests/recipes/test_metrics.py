"""Metrics of episodes, with numbers worked by hand."""

import math

import pytest

from midthought.data.abstention import NO_ANSWER
from midthought.recipes.evaluation import (
    balanced_accuracy,
    call_rate,
    constant_guess,
    exact_match,
    factors,
    unfinished,
    with_interval,
)
from midthought.types import StopReason, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory


def episode(*queries, right=False, found=(), outcome=ToolOutcome.OK, answer="Ada", quote="the tide"):
    """One call per query; each result held the chunks `found`. Its reward says whether it was right."""
    task = Task(task_id="t", prompt="?", answer=answer, labels={"quote": quote}, evidence=("tide_1",))
    trajectory = Trajectory(task, [1])
    for query in queries:
        call = ToolCall(tool_name="look", parameters={"query": query})
        trajectory.add_results([ToolEvent(call=call, outcome=outcome, metadata={"chunk_ids": list(found)})], [2])
    trajectory.group = int(right)
    return trajectory


def is_right(trajectory):
    return bool(trajectory.group)


def test_shares_and_means_by_hand():
    done = [episode("a", "b", right=True), episode(), episode("a"), episode(right=True), episode(answer=NO_ANSWER)]
    assert exact_match(done, is_right) == 0.4 and call_rate(done) == 0.4
    assert constant_guess([each.task for each in done]) == 0.8
    assert balanced_accuracy(done, is_right) == {"balanced_accuracy": (2 / 4 + 0) / 2}
    assert balanced_accuracy(done[:4], is_right) == {}
    for each, reason in zip(done, [*(StopReason.ANSWERED,) * 2, StopReason.LENGTH, StopReason.FAILED], strict=False):
        each.stop_reason = reason
    assert unfinished(done) == 3 / 5


@pytest.mark.parametrize(
    ("share", "trials", "low", "high"),
    [
        (0.5, 100, 0.4038, 0.5962),  # Brown, Cai & DasGupta (2001): the centre stays, z²/n = 0.0384
        (0.0, 10, 0.0, 0.2775),  # z² / (n + z²) = 3.8416 / 13.8416
        (1.0, 10, 0.7225, 1.0),
        (0.8, 440, 0.7601, 0.8347),
    ],
)
def test_wilsons_interval_by_hand(share, trials, low, high):
    found = with_interval("share", share, trials)
    assert found == pytest.approx({"share": share, "share.low": low, "share.high": high}, abs=1e-4)


def test_factors_by_hand_and_their_product_is_the_exact_match_of_the_whole_chain():
    done = [
        episode("the tide", right=True, found=["tide_1"]),
        episode("the tide", right=False, found=["x_1", "tide_1"]),
        episode("the tide", found=["x_1"]),
        episode("tide", "the tide", right=True, found=["tide_1"]),
        episode(right=True),
    ]
    found = factors(done, is_right)
    assert found == pytest.approx({"called": 4 / 5, "exact_query": 3 / 4, "retrieved": 2 / 3, "read": 1 / 2})
    assert math.prod(found.values()) == pytest.approx(1 / 5)


def test_a_factor_without_any_case_is_not_a_number():
    found = factors([episode()], is_right)
    assert found["called"] == 0.0 and all(math.isnan(found[name]) for name in ("exact_query", "retrieved", "read"))


def test_evidence_in_a_failed_call_was_not_retrieved():
    assert factors([episode("the tide", found=["tide_1"], outcome=ToolOutcome.TIMED_OUT)], is_right)["retrieved"] == 0
