"""A record goes through JSON and comes back whole: no field is left out, no number changed."""

import json
import math
from datetime import date

import numpy as np
import pytest

from midthought.errors import RecordError
from midthought.report.recorded_episodes import trajectory_row
from midthought.rollout.trajectory_json import trajectory_from_json, trajectory_to_json
from midthought.types import (
    Completion,
    Finish,
    ParsedAction,
    Reward,
    StopReason,
    Task,
    ToolCall,
    ToolEvent,
    ToolOutcome,
    Trajectory,
    Turn,
)


def full() -> Trajectory:
    more = {
        "aliases": ("A.",),
        "labels": {"k": 1},
        "evidence": ("e",),
        "before": ({"role": "system", "content": "Hm."},),
    }
    task = Task(task_id="t", prompt="Wér?", answer="Ada", **more)
    trajectory = Trajectory(task, [1, 2], seed=2**62 + 1, group=7)
    logprobs, options = (-0.1, -1 / 3, math.nan), {"finish": Finish.CALL, "policy_version": 3, "num_cut": 2}
    trajectory.add_sampled(Completion(token_ids=(5, 6, 7), sampled_logprobs=logprobs, **options))
    call = ToolCall(tool_name="look", parameters={"word": "é", "deep": {"list": [1, None]}}, success=True, result="R")
    event = ToolEvent(call=call, outcome=ToolOutcome.OK, seconds=0.25, metadata={"ids": ["a"]})
    trajectory.add_results([event], [8, 9])
    trajectory.add_sampled(Completion(token_ids=(3,), sampled_logprobs=(-2e-17,), finish=Finish.END, policy_version=4))
    action = ParsedAction(tool_name="look", parameters={"word": "é"}, raw_text="#call", success=True)
    said = {"model_output": "hm", "begins_in_thought": True, "parsed_action": action, "tool_call": call}
    trajectory.end_turn(Turn(turn_number=0, **said))
    trajectory.begin_segment([1, 4])
    cool = Completion(token_ids=(6,), sampled_logprobs=(-0.5,), finish=Finish.END, policy_version=4)
    trajectory.add_sampled(cool, temperature=0.7)
    trajectory.add_reply([11])
    ended = {"observation": "o", "reward": 0.5, "done": True, "info": {"success": True}}
    trajectory.end_turn(Turn(turn_number=1, model_output="é\n", **ended))
    trajectory.stop_reason = StopReason.ANSWERED
    trajectory.error = "none, really"
    trajectory.reward = Reward(parts={"correct": 1.0, "odd": math.nan}, turns=(0.5, 0.1), calls=(-0.25,))
    trajectory.values = [0.25, math.nan]
    trajectory.tool_seconds, trajectory.engine_seconds = 1.5, 2.5
    return trajectory


def by_value(value):
    """Everything that a record holds, NaN as a word."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, list | tuple):
        return [type(value), *map(by_value, value)]
    if isinstance(value, dict):
        return {name: by_value(item) for name, item in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return type(value), {name: by_value(getattr(value, name)) for name in value.__dataclass_fields__}
    return type(value), value


def test_every_field_of_a_record_comes_back():
    before = full()
    after = trajectory_from_json(json.loads(json.dumps(trajectory_to_json(before), allow_nan=False)))
    assert by_value(vars(after)) == by_value(vars(before))
    untouched = vars(Trajectory(Task(task_id="t", prompt="", answer=""), [1]))
    left_empty = [name for name, value in vars(before).items() if value == untouched.get(name)]
    assert left_empty == []


def test_what_an_environment_says_beside_its_words_is_written_as_text_where_json_has_no_word_for_it():
    before = full()
    odd = {"success": np.bool_(True), "state": complex(1, 2), 3: (1, date(2026, 1, 2)), "kinds": {"a", 1}}
    odd["module"] = math  # cannot be copied
    before.turns[1].info = before.task.labels["odd"] = before.tool_events[0].metadata["odd"] = odd
    after = trajectory_from_json(json.loads(json.dumps(trajectory_to_json(before))))
    plain = {"success": True, "state": "(1+2j)", "3": [1, "2026-01-02"], "kinds": ["a", 1], "module": str(math)}
    assert after.turns[1].info == after.task.labels["odd"] == after.tool_events[0].metadata["odd"] == plain
    row = trajectory_row(before, str, step=1, arm="train")  # of the run folder
    assert json.loads(json.dumps(row["labels"]))["odd"] == row["events"][0]["metadata"]["odd"] == plain


def test_a_turn_that_was_recorded_without_the_tags_of_thoughts_has_the_usual_ones():
    row = trajectory_to_json(full())
    del row["turns"][0]["think_tags"]
    assert trajectory_from_json(row).turns[0].think_tags == ("<think>", "</think>")


def test_a_row_that_was_tampered_with_is_no_record():
    row = trajectory_to_json(full())
    row["segments"][0]["token_ids"].append(4)
    with pytest.raises(RecordError, match="differ in length"):
        trajectory_from_json(row)
