"""The token side, the record that rewards read, and tasks from rows."""

import json
import math

import pytest
from worlds import task

from midthought.cluster.verl.record import RECORD, compute_score, record_of, response_of, task_of
from midthought.errors import DataError, RecordError, RewardError
from midthought.types import Completion, Finish, Reward, StopReason, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory


def trajectory(metadata: object = None, reward: Reward | None = None) -> Trajectory:
    """Prompt 1 2; sampled 5 6 (the second without a log-probability); result 7; sampled 3."""
    made = Trajectory(task(), [1, 2])
    made.add_sampled(Completion(token_ids=(5, 6), sampled_logprobs=(-0.5, math.nan), finish=Finish.CALL, num_cut=2))
    call = ToolCall(tool_name="look", parameters={"word": "ü\ud800"}, success=False, result="no")
    metadata_of = {} if metadata is None else {"said": metadata}
    made.add_results([ToolEvent(call=call, outcome=ToolOutcome.RAISED, metadata=metadata_of)], [7])
    made.add_sampled(Completion(token_ids=(3,), sampled_logprobs=(-0.25,), finish=Finish.END))
    made.stop_reason = StopReason.ANSWERED
    made.reward = reward
    return made


def test_the_mask_is_the_policys_own_tokens_that_have_a_log_probability() -> None:
    response = response_of(trajectory(), with_logprobs=True)
    assert (response.prompt_ids, response.response_ids) == ([1, 2], [5, 6, 7, 3])
    assert response.response_mask == [1, 0, 0, 1]
    assert response.response_logprobs == [-0.5, 0.0, 0.0, -0.25]


def test_where_none_are_asked_for_the_mask_stays_whole() -> None:
    response = response_of(trajectory(), with_logprobs=False)
    assert (response.response_mask, response.response_logprobs) == ([1, 1, 0, 1], None)


def test_several_segments_are_refused() -> None:
    made = Trajectory(task(), [1])
    made.begin_segment([2])
    with pytest.raises(RecordError, match="2 segments; verl supports one"):
        response_of(made, with_logprobs=True)


def test_the_score_is_the_recorded_reward_with_its_parts_and_never_the_text() -> None:
    written = record_of(trajectory(reward=Reward(parts={"correct": 1.0, "calls": -0.25}, turns=(0.5,), calls=(0.25,))))
    scored = compute_score("x", "#look_result: I found it all", "Ada", {RECORD: written, "num_turns": 4})
    assert scored == {
        "score": 1.5,
        "reward_correct": 1.0,
        "reward_calls": -0.25,
        "num_calls": 1.0,
        "num_failed_calls": 1.0,
        "answered": 1.0,
    }


@pytest.mark.parametrize(
    ("extra_info", "words"),
    [
        (None, "was not run by our agent loop; set actor_rollout_ref.rollout.agent.default_agent_loop=midthought"),
        ({RECORD: record_of(trajectory())}, "no environment scored the episode; set `supply`"),
        ({RECORD: record_of(trajectory(reward=Reward(parts={"a": math.nan})))}, "a part of the reward is not finite"),
    ],
)
def test_an_episode_without_a_reward_is_an_error_and_not_a_zero(extra_info: dict | None, words: str) -> None:
    with pytest.raises(RewardError, match=words):
        compute_score("x", "Ada", "Ada", extra_info)


def test_the_record_holds_what_tools_say_in_strange_values_and_lone_surrogates() -> None:
    row = json.loads(record_of(trajectory(metadata=object())))
    assert "object object" in row["tool_events"][0]
    assert "\\ud800" in row["tool_events"][0]


def test_a_task_comes_back_whole_from_its_row() -> None:
    ours = Task(
        task_id="t",
        prompt="W?",
        answer="A",
        aliases=("B",),
        labels={"n": 1},
        before=({"role": "system", "content": "s"},),
    )
    assert task_of({"extra_info": {"task": json.dumps(ours.to_dict())}}) == ours


def test_a_row_of_somebody_elses_data_is_a_task_too() -> None:
    row = {
        "raw_prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "W?"}],
        "reward_model": {"style": "rule", "ground_truth": "A"},
        "extra_info": {"index": 4},
    }
    assert task_of(row) == Task(task_id="4", prompt="W?", answer="A")
    assert task_of(row | {"reward_model": {"ground_truth": ["A", 1]}, "extra_info": None}).answer == '["A", 1]'


@pytest.mark.parametrize("written", ["{", "[]", '{"strange": 1}'])
def test_a_row_whose_task_cannot_be_read_is_named(written: str) -> None:
    with pytest.raises(DataError, match=r"extra_info\.task of row 7"):
        task_of({"extra_info": {"index": 7, "task": written}})
