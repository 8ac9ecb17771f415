"""The records. The ledger's promise: which method appended a token decides the mask, and nothing else can."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.errors import RecordError
from midthought.types import (
    Completion,
    Finish,
    Reward,
    Span,
    SpanKind,
    StopReason,
    Task,
    ToolCall,
    ToolEvent,
    ToolOutcome,
    Trajectory,
)

TASK = Task(task_id="t1", prompt="Who?", answer="Ada")
EVENT = ToolEvent(call=ToolCall(tool_name="look", success=True, result="Ada"), outcome=ToolOutcome.OK)


def completion(token_ids, version=0, num_cut=0, temperature=None):
    logprobs = tuple(-0.1 * (number + 1) for number in range(len(token_ids)))
    options = {"policy_version": version, "num_cut": num_cut, "temperature": temperature}
    return Completion(token_ids=tuple(token_ids), sampled_logprobs=logprobs, finish=Finish.CALL, **options)


def example():
    """Prompt 1 2, sampled 5 6, result 7 8 9, sampled 3; then a second segment: prompt 1, reply 4, sampled 6."""
    trajectory = Trajectory(TASK, [1, 2])
    trajectory.add_sampled(completion([5, 6], version=1))
    trajectory.add_results([EVENT], [7, 8, 9])
    trajectory.add_sampled(completion([3], version=2, num_cut=4))
    trajectory.begin_segment([1])
    trajectory.add_reply([4])
    trajectory.add_sampled(completion([6], version=2))
    return trajectory


def add(trajectory, operation, token_ids):
    match operation:
        case "sampled":
            trajectory.add_sampled(completion(token_ids))
        case "demonstrated":
            trajectory.add_demonstrated(token_ids)
        case "results":
            trajectory.add_results([EVENT], token_ids)
        case "reply":
            trajectory.add_reply(token_ids)
        case "segment":
            trajectory.begin_segment(token_ids)


WAYS = ("sampled", "demonstrated", "results", "reply", "segment")
IDS = st.lists(st.integers(0, 99), max_size=5)
OPERATIONS = st.lists(st.tuples(st.sampled_from(WAYS), IDS), max_size=12)


@given(IDS.filter(bool), OPERATIONS)
def test_whatever_is_added_in_whatever_order_the_ledger_holds_and_only_the_policys_tokens_are_trained_on(
    prompt, operations
):
    trajectory = Trajectory(TASK, prompt)
    expected = [[(token_id, False) for token_id in prompt]]
    for operation, token_ids in operations:
        if operation == "segment" and not token_ids:
            continue
        add(trajectory, operation, token_ids)
        if operation == "segment":
            expected.append([])
        expected[-1] += [(token_id, operation in ("sampled", "demonstrated")) for token_id in token_ids]
        trajectory.check()

    found = [list(zip(segment.token_ids, segment.loss_mask, strict=True)) for segment in trajectory.segments]
    assert found == expected
    assert trajectory.num_sampled == sum(own for segment in expected for _, own in segment)
    assert trajectory.num_calls == sum(operation == "results" for operation, _ in operations)
    runs = [token_id for run in trajectory.sampled_runs() for token_id in run]
    assert runs == [token_id for segment in expected for token_id, own in segment if own]


def test_the_ledger_by_hand():
    trajectory = example()
    first, second = trajectory.segments
    assert first.token_ids == [1, 2, 5, 6, 7, 8, 9, 3]
    assert first.loss_mask == [False, False, True, True, False, False, False, True]
    assert first.spans == [
        Span(SpanKind.PROMPT, 0, 2),
        Span(SpanKind.SAMPLED, 2, 4),
        Span(SpanKind.RESULT, 4, 7),
        Span(SpanKind.SAMPLED, 7, 8),
    ]
    assert first.sampled_logprobs[2:4] == [-0.1, -0.2] and math.isnan(first.sampled_logprobs[4])
    assert second.token_ids == trajectory.token_ids == [1, 4, 6]
    assert trajectory.loss_mask == [False, False, True]
    assert trajectory.sampled_runs() == [[5, 6], [3], [6]]
    assert (trajectory.num_sampled, trajectory.num_response, trajectory.num_calls) == (4, 8, 1)
    assert trajectory.num_cut == 4
    trajectory.add_sampled(completion([7]))  # samples in a row are one run, results in a row are two
    trajectory.add_results([EVENT], [4])
    trajectory.add_results([EVENT], [5])
    assert trajectory.sampled_runs()[-1] == [6, 7]
    assert [(span.start, span.end) for span in trajectory.spans[-2:]] == [(4, 5), (5, 6)]
    second = example().segments[1]
    assert first.policy_versions == [-1, -1, 1, 1, -1, -1, -1, 2] and second.policy_versions == [-1, -1, 2]


def test_a_trajectory_is_shown_in_one_short_line():
    trajectory = Trajectory(TASK, [1] * 1000)
    trajectory.add_sampled(completion([2] * 300))
    trajectory.begin_segment([1])
    assert repr(trajectory) == "<Trajectory: task 't1', reward None, 2 segments, 300 policy tokens>"
    trajectory.reward = Reward(parts={"right": 1.0}, turns=(0.5,))
    assert str([trajectory]) == "[<Trajectory: task 't1', reward 1.5, 2 segments, 300 policy tokens>]"
    assert repr(Trajectory()) == "<Trajectory: task 'by hand', reward None, 0 segments, 0 policy tokens>"


def test_nothing_can_be_added_once_the_episode_has_ended():
    for reason in StopReason:
        trajectory = example()
        trajectory.stop_reason = reason
        for way in WAYS:
            with pytest.raises(RecordError, match=r"'t1'.*ended"):
                add(trajectory, way, [1])
        assert len(trajectory.segments) == 2 and trajectory.token_ids == [1, 4, 6] and trajectory.num_calls == 1
        assert reason.is_truncated == (reason is not StopReason.ANSWERED)


def test_what_cannot_be_added_is_refused_whole():
    trajectory = Trajectory(TASK, [1])
    with pytest.raises(RecordError, match="'t1': 2 sampled tokens but 1 log-probabilities"):
        trajectory.add_sampled(Completion(token_ids=(2, 3), sampled_logprobs=(-0.1,), finish=Finish.END))
    for temperature in (-1.0, math.inf, math.nan):
        with pytest.raises(RecordError, match="finite one above 0"):
            trajectory.add_sampled(completion([5]), temperature=temperature)
    with pytest.raises(RecordError, match="without any tool event"):
        trajectory.add_results([], [2])
    with pytest.raises(RecordError, match="at least one prompt token"):
        Trajectory(TASK, [])
    assert trajectory.token_ids == [1]
    trajectory.add_results([EVENT], [])  # a result that found no room is an event without tokens
    trajectory.check()
    assert trajectory.num_calls == 1 and trajectory.token_ids == [1]


def test_check_finds_what_was_tampered_with_and_says_where():
    example().check()
    for change, message in (
        (lambda segment: segment.token_ids.append(4), "differ in length"),
        (lambda segment: segment.loss_mask.pop(), "differ in length"),
        (lambda segment: segment.sampled_logprobs.pop(), "differ in length"),
        (lambda segment: segment.policy_versions.pop(), "differ in length"),
        (lambda segment: segment.policy_versions.__setitem__(5, 1), "context tokens carry a policy version"),
        (lambda segment: segment.loss_mask.__setitem__(5, True), "mask contradicts"),
        (lambda segment: segment.loss_mask.__setitem__(2, False), "mask contradicts"),
        (lambda segment: segment.sampled_logprobs.__setitem__(5, -0.5), "context tokens carry log-probabilities"),
        (lambda segment: segment.spans.pop(), "spans end at 7, tokens at 8"),
        (lambda segment: segment.spans.pop(1), "do not tile"),
        (lambda segment: segment.spans.insert(1, Span(SpanKind.REPLY, 2, 2)), "do not tile"),
        (lambda segment: segment.spans.__setitem__(0, Span(SpanKind.REPLY, 0, 2)), "begin with a prompt"),
    ):
        trajectory = example()
        change(trajectory.segments[0])
        with pytest.raises(RecordError, match=f"'t1', segment 0.*{message}"):
            trajectory.check()


def test_the_reward_is_the_exact_sum_of_its_parts():
    assert Reward(parts={"correct": 1.0, "calls": -0.15, "thought": 0.1}).total == pytest.approx(0.95)
    assert Reward(parts={f"{number}": 0.1 for number in range(10)}).total == 1.0
    assert Reward(parts={}).total == 0.0
    assert Reward(parts={"right": 1.0}, turns=(0.5,), calls=(0.25,)).total == 1.75


def test_every_sampled_span_has_the_temperature_that_it_was_sampled_at():
    trajectory = Trajectory(TASK, [1])
    trajectory.add_sampled(completion([5]), temperature=0.7)
    trajectory.add_sampled(completion([6]), temperature=0.7)
    trajectory.add_sampled(completion([7], temperature=1.3), temperature=0.7)
    trajectory.add_sampled(completion([8]), temperature=0.0)  # greedy tokens are recorded at temperature 1
    trajectory.check()
    spans = [(span.start, span.end, span.temperature) for span in trajectory.spans]
    assert spans == [(0, 1, 1.0), (1, 3, 0.7), (3, 4, 1.3), (4, 5, 1.0)]
    assert trajectory.sampled_runs() == [[5, 6, 7, 8]]
