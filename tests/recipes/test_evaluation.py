"""Evaluation: what the model reads when the tool is off, shuffled or an oracle, and metrics with numbers worked by hand."""

import asyncio
import math
import re
from dataclasses import replace

import pytest

from midthought.data.final_answers import NO_ANSWER
from midthought.recipes.evaluation import (
    Proofs,
    balanced_accuracy,
    call_rate,
    constant_guess,
    exact_match,
    factors,
    shuffled,
    unfinished,
    with_interval,
)
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, StopReason, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory


class Look(Tool):
    definition = ToolDefinition("look", "Looks.", [ToolParameter("query", "string", "What for.")])

    def execute(self, query: str) -> ToolOutput:
        raise AssertionError("an arm must not ask the tool")


TASKS = [
    Task(
        task_id=f"{speaker}:{number}",
        prompt="Who?",
        answer=speaker,
        aliases=("Annie",) if speaker == "Ann" else (),
        labels={"kind": "speaker" if number % 2 else "episode"},
        evidence=(f"{speaker}_{number}",),
    )
    for speaker in ("Ann", "Bob", "Cara", "Joann")
    for number in range(4)
]


def proof(task: Task) -> str:
    return f"[1] speaker: {task.answer}; words of {task.evidence[0]}"


def ask(task, proofs=None, name="look", **parameters):
    call = ParsedAction(tool_name=name, parameters=parameters, raw_text="", success=True)
    return asyncio.run((proofs or Proofs(ToolRegistry([Look()]), proof)).run([call], task))[0]


def test_the_oracle_gives_the_proof_whatever_was_asked_and_a_call_that_is_not_sound_fails_as_it_does_with_the_tool():
    event = ask(TASKS[5], query="tide")
    assert event.outcome is ToolOutcome.OK
    assert event.call.result == proof(TASKS[5]) and event.metadata == {"chunk_ids": ["Bob_1"]}
    assert ask(TASKS[0]).outcome is ToolOutcome.BAD_ARGUMENTS
    assert ask(TASKS[0], name="find", query="x").outcome is ToolOutcome.UNKNOWN_TOOL


def test_a_shuffled_result_never_holds_the_answer_and_is_another_questions_proof_of_the_same_kind():
    proofs = {proof(task): task for task in TASKS}
    for seed in range(10):
        executor = Proofs(ToolRegistry([Look()]), proof, shuffled(TASKS, proof, seed))
        for task in TASKS:
            event = ask(task, executor, query="tide")
            other = proofs[event.call.result]
            for truth in (task.answer, *task.aliases):
                assert not re.search(rf"\b{truth}\b", event.call.result, re.IGNORECASE)
            assert other.labels["kind"] == task.labels["kind"]
            assert event.metadata == {"chunk_ids": list(other.evidence)}
    assert shuffled(TASKS, proof, 0) == shuffled(TASKS, proof, 0) != shuffled(TASKS, proof, 1)


def test_a_short_answer_counts_as_a_word_and_one_of_another_script_wherever_it_occurs():
    """The labels of a recognizer are single letters, which every result has in its words."""
    labels = [replace(task, answer="AB"[place % 2], aliases=(), labels={}) for place, task in enumerate(TASKS)]
    assert all(
        other.answer != task.answer for task, other in zip(labels, shuffled(labels, proof, 0).values(), strict=True)
    )
    chinese = [replace(TASKS[0], answer="王明", aliases=()), replace(TASKS[1], task_id="b", answer="我是王明的")]
    with pytest.raises(ValueError, match="no other task has another answer"):
        shuffled(chinese, proof, 0)


def test_tasks_of_one_answer_are_shuffled_with_further_tasks_or_not_at_all():
    few, more = TASKS[:4], TASKS[4:]
    with pytest.raises(ValueError, match="no other task has another answer than 'Ann'; give more tasks"):
        shuffled(few, proof, 0)
    for other in shuffled(few, proof, 0, more=more).values():
        assert "Ann;" not in proof(other) and other in more


# -- metrics ----------------------------------------------------------------------------------------------------------


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
    nan = math.nan  # a share of no cases
    expected = {"called": 0.0, "exact_query": nan, "retrieved": nan, "read": nan}
    assert factors([episode()], is_right) == pytest.approx(expected, nan_ok=True)
    failed = episode("the tide", found=["tide_1"], outcome=ToolOutcome.TIMED_OUT)
    assert factors([failed], is_right)["retrieved"] == 0
