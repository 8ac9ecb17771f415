"""An episode that is played again from any beginning of its record becomes the episode that it was."""

import asyncio
import copy
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from playing import parts_of

from midthought.engines.scripted import ScriptedEngine
from midthought.errors import RecordError
from midthought.rollout.episode import run_episode
from midthought.rollout.resuming import Replay
from midthought.rollout.trajectory_json import trajectory_from_json, trajectory_to_json
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.json_calls import HermesFormat
from midthought.tools.function_tool import tool
from midthought.types import SpanKind, StopReason, Task, Trajectory

SILENT = SimpleNamespace(feed=lambda token_id: False)
CALL_FORMATS = {"in_thought": InThoughtFormat(), "hermes": HermesFormat()}


class Reciter(ScriptedEngine):
    """Samples what an episode has, from whatever place on, as a later version."""

    def __init__(self, whole: Trajectory, renderer: Renderer) -> None:
        super().__init__(lambda episode, token_ids: whole.token_ids[len(token_ids) :][:1], renderer)
        self.whole, self.num_sampled = whole, 0

    async def sample(self, episode, token_ids, sampling, *, stopper=None):
        assert self.whole.token_ids[: len(token_ids)] == token_ids
        completion = await super().sample(episode, token_ids, sampling, stopper=stopper)
        self.num_sampled += len(completion.token_ids)
        return replace(completion, policy_version=9)


def parts(engine, renderer, call_format, asked, record=None):
    @tool
    def look(word: str) -> str:
        """Looks it up.

        Args:
            word: what to look for
        """
        asked.append(word)
        return f"The {word} was there. " * 6

    limits = {"max_tokens": 600, "max_segment_length": 23, "max_result_tokens": 40}
    return replace(parts_of(engine, renderer, call_format=call_format, tools=[look], **limits), record=record)


def begin(renderer):
    task = Task(task_id="t", prompt="Where?", answer="x")
    return Trajectory(task, renderer.prompt([{"role": "user", "content": task.prompt}]), seed=3, group=5)


@pytest.fixture(params=CALL_FORMATS)
def played(request, renderer):
    """An episode with two calls, its call format and the words that the tool was asked."""
    call_format = CALL_FORMATS[request.param]
    call = {word: call_format.render_call("look", {"word": word}) for word in ("tide", "clock é}")}
    if call_format.stops_at_call:
        script = [f"<think>Hm {{ {call['tide']}So so {call['clock é}']}yes</think>there<|im_end|>"]
    else:
        turns = iter([f"<think>Hm</think>{call['tide']}<|im_end|>", f"{call['clock é}']}<|im_end|>", "there<|im_end|>"])
        script = lambda episode, token_ids: next(turns)  # noqa: E731
    asked: list[str] = []
    whole = begin(renderer)
    asyncio.run(run_episode(parts(ScriptedEngine(script, renderer), renderer, call_format, asked), whole, 0))
    assert (whole.stop_reason, asked) == (StopReason.ANSWERED, ["tide", "clock é}"])
    return whole, call_format


def beginning(whole: Trajectory, end: int) -> Trajectory:
    """The record as it was when `end` tokens stood in it; None where a result would be cut."""
    record = copy.deepcopy(whole)
    (segment,) = record.segments
    kept = [span for span in segment.spans if span.start < end]
    if kept[-1].kind is not SpanKind.SAMPLED and kept[-1].end != end:
        return None
    row = trajectory_to_json(record)
    spans = [[span.kind, span.start, min(span.end, end)] for span in kept]
    num_own = sum(segment.loss_mask[:end])
    cut = {"token_ids": segment.token_ids[:end], "spans": spans, "policy_versions": [n // 10 for n in range(num_own)]}
    row["segments"] = [{**cut, "sampled_logprobs": row["segments"][0]["sampled_logprobs"][:num_own]}]
    num_results = sum(kind in (SpanKind.RESULT, SpanKind.REPLY) for kind, _, _ in spans)
    row |= {"tool_events": row["tool_events"][:num_results], "stop_reason": None, "reward": None}
    row |= {"turns": row["turns"][:0], "turn_ends": []}
    return trajectory_from_json(json.loads(json.dumps(row)))


def by_value(trajectory):
    (segment,) = trajectory.segments
    events = [(event.call, event.outcome, event.metadata) for event in trajectory.tool_events]
    logprobs = [None if math.isnan(value) else value for value in segment.sampled_logprobs]
    fields = (segment.token_ids, segment.spans, logprobs, trajectory.turns, trajectory.turn_ends, trajectory.reward)
    return (*fields, trajectory.stop_reason, events)


def test_wherever_a_record_ends_the_episode_goes_on_as_if_it_had_not(played, renderer):
    whole, call_format = played
    first = whole.spans[0].end
    num_played = 0
    for end in range(first, len(whole.token_ids) + 1):
        record = beginning(whole, end)
        if record is None:
            continue
        asked: list[str] = []
        engine = Reciter(whole, renderer)
        again = begin(renderer)
        asyncio.run(run_episode(parts(engine, renderer, call_format, asked, record), again, 0))
        again.check()
        assert again.error is None
        assert by_value(again) == by_value(whole)
        assert len(asked) == 2 - len(record.tool_events)
        assert engine.num_sampled == sum(whole.loss_mask[end:])
        versions = [version for version in again.segments[0].policy_versions if version >= 0]
        num_own = sum(whole.loss_mask[:end])
        assert versions == [n // 10 for n in range(num_own)] + [9] * engine.num_sampled
        num_played += 1
    assert num_played > 40


def test_where_it_becomes_another_episode_it_fails_and_says_so(played, renderer):
    whole, call_format = played
    record = beginning(whole, len(whole.token_ids) - 1)
    event = record.tool_events[0]
    event.call.result = "Something else."
    again = begin(renderer)
    engine = Reciter(whole, renderer)
    asyncio.run(run_episode(parts(engine, renderer, call_format, [], record), again, 0))
    assert again.stop_reason is StopReason.FAILED
    assert again.error.startswith(f"{RecordError.__name__}: ") and "resume with the settings, tools" in again.error


def test_a_prefix_of_the_record_s_length_with_another_token_is_refused(played, renderer):
    whole, _ = played
    record = beginning(whole, len(whole.token_ids) - 1)
    for start in (record.spans[0].end, len(record.token_ids), len(record.token_ids) + 1):
        asked = whole.token_ids[:start]
        found = Replay(record).completion(asked, 1, SILENT, renderer.eos_token_ids)
        assert (found is None) == (start >= len(record.token_ids))
        for place in (0, min(start, len(record.token_ids)) - 1):
            other = [token_id + (number == place) for number, token_id in enumerate(asked)]
            with pytest.raises(RecordError, match=f"the same up to token {start} when"):
                Replay(record).completion(other, 1, SILENT, renderer.eos_token_ids)
