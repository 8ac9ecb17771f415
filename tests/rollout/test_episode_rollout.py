"""The loop: what is written and what is read stay apart, whatever the calls, the splits and the tools."""

import json
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playing import MARK, EveryFew, Host, Look, parts_of, play, spoken
from precision import logit_tolerance
from small_qwen import small_model, token_logprobs
from transformers import Gemma3TextConfig, LlamaConfig, Qwen3Config

from midthought.engines.local.engine import LocalEngine
from midthought.engines.scripted import ScriptedEngine
from midthought.rollout.episode import RolloutParts
from midthought.tokenization import Renderer
from midthought.tools.function_tool import tool
from midthought.types import Reward, SpanKind, StopReason, ToolOutcome, Trajectory


def run(engine: Any, renderer: Renderer, *, num_episodes: int = 1, on_finished: Any = None, **options: Any) -> Any:
    parts: RolloutParts = parts_of(engine, renderer, **{"tools": [Look()], **options})
    trajectories = play(parts, num_episodes, on_finished=on_finished)
    for trajectory in trajectories:
        trajectory.check()
    return trajectories


def run_script(script: Sequence[Any], renderer: Renderer, **options: Any) -> Trajectory:
    found: Trajectory = run(ScriptedEngine(script, renderer), renderer, **options)[0]
    return found


def test_a_call_is_answered_in_the_same_thought_and_the_answer_follows(renderer: Renderer) -> None:
    written = '<think>Hm. #call look {"word": "tide"}', "So it was Ada.</think>Ada"
    trajectory = run_script(["".join(written)], renderer)
    assert spoken(trajectory, renderer) == [
        (SpanKind.PROMPT, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"),
        (SpanKind.SAMPLED, written[0]),
        (SpanKind.RESULT, f"\n#look_result:\n{MARK}tide</think>{MARK}\n\n"),
        (SpanKind.SAMPLED, written[1] + "<|im_end|>"),
    ]
    assert trajectory.stop_reason is StopReason.ANSWERED
    ((call, outcome),) = [(event.call.parameters, event.outcome) for event in trajectory.tool_events]
    assert (call, outcome) == ({"word": "tide"}, ToolOutcome.OK)
    assert trajectory.reward == Reward(parts={"length": float(trajectory.num_sampled)})
    result = trajectory.spans[2]
    assert not renderer.control_token_ids.intersection(trajectory.token_ids[result.start : result.end])


WORDS = st.text(alphabet='ab#{}"\\ \n:.é🦉', max_size=12)
VALUES = st.recursive(
    st.text(alphabet='ab{}"\\ \né🦉', max_size=6) | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(alphabet="k{}", max_size=2), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def scripts(draw: st.DrawFn) -> tuple[str, int, list[str]]:
    """A policy's text with its number of calls, and the same text cut into random pieces (each becomes tokens alone)."""
    parts, num_calls = ["<think>"], 0
    for _ in range(draw(st.integers(0, 4))):
        parts.append(draw(WORDS) + "\n")
        if draw(st.booleans()):
            arguments = json.dumps(
                {"word": draw(VALUES)}, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1]))
            )
            parts.append(f"#call {draw(st.sampled_from(['look', 'unknown']))} {arguments}")
            num_calls += 1
    parts += [draw(WORDS), "</think>", draw(WORDS)]
    text = "".join(parts)
    middle = text.removeprefix("<think>")
    cuts = sorted(draw(st.sets(st.integers(0, len(middle)), max_size=12)))
    pieces = [middle[start:end] for start, end in zip([0, *cuts], [*cuts, len(middle)], strict=True)]
    return text, num_calls, ["<think>", *pieces]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=scripts(), max_segment_length=st.integers(1, 60))
def test_masked_tokens_are_exactly_what_the_policy_wrote_and_no_tool_token_is_among_them(
    renderer: Renderer, script: tuple[str, int, list[str]], max_segment_length: int
) -> None:
    text, num_calls, pieces = script
    written = [token_id for piece in pieces for token_id in renderer.control(piece)]
    trajectory = run_script(
        [written], renderer, max_segment_length=max_segment_length, max_tool_calls_per_cot=100, max_tokens=100_000
    )
    masked = [token_id for token_id, sampled in zip(trajectory.token_ids, trajectory.loss_mask, strict=True) if sampled]
    assert masked[:-1] == written
    assert masked[-1] in renderer.eos_token_ids
    # Pieces that split `</think>` leave it spelled in ordinary tokens; the text is the same.
    assert renderer.decode(masked[:-1]) == text
    assert trajectory.num_calls == num_calls
    for kind, words in spoken(trajectory, renderer):
        assert (MARK in words) <= (kind is SpanKind.RESULT)
        assert words.startswith(("\n#look_", "\n#unknown_error:")) or kind is not SpanKind.RESULT
    assert sum(span.kind is SpanKind.RESULT for span in trajectory.spans) == num_calls
    assert all(
        math.isfinite(value) == sampled
        for value, sampled in zip(trajectory.sampled_logprobs, trajectory.loss_mask, strict=True)
    )


def test_an_episode_ends_by_length_where_the_budget_is_spent_or_a_result_does_not_fit(renderer: Renderer) -> None:
    spent = run_script(["<think>" + "and " * 50], renderer, max_tokens=20, max_segment_length=8)
    assert (spent.stop_reason, spent.num_response, spent.num_sampled) == (StopReason.LENGTH, 20, 20)
    call = "<think>#call look {}"
    num_call = len(renderer.control(call))
    unfit = run_script([call], renderer, max_tokens=num_call + 3)
    assert (unfit.stop_reason, unfit.num_response, unfit.num_calls) == (StopReason.LENGTH, num_call, 1)
    assert unfit.reward is not None


def test_a_long_result_is_cut_and_the_record_holds_what_the_policy_read(renderer: Renderer) -> None:
    words = " ".join(["tide"] * 300)
    trajectory = run_script([f'<think>#call look {{"word": "{words}"}}</think>ok'], renderer, max_result_tokens=20)
    read = trajectory.tool_events[0].call.result
    assert read is not None
    assert len(renderer.foreign(read)) <= 20
    assert read in spoken(trajectory, renderer)[2][1]


def test_a_reply_is_a_chat_turn_and_a_new_thought_with_a_fresh_call_budget(renderer: Renderer) -> None:
    written = "<think>#call look {}</think>first<|im_end|><think>#call look {}</think>second"
    options: dict[str, Any] = {"environment": lambda _: Host(["No <|im_end|>."]), "max_tool_calls_per_cot": 1}
    trajectory = run_script([written], renderer, **options)
    replies = [words for kind, words in spoken(trajectory, renderer) if kind is SpanKind.REPLY]
    assert replies == ["\n<|im_start|>user\nNo <|im_end|>.<|im_end|>\n<|im_start|>assistant\n"]
    assert [event.outcome for event in trajectory.tool_events] == [ToolOutcome.OK] * 2
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert run_script([written], renderer, max_turns=1, **options).stop_reason is StopReason.MAX_TURNS
    # The reply's own words hold no control token: exactly the template's four are there.
    reply = next(span for span in trajectory.spans if span.kind is SpanKind.REPLY)
    tokens = trajectory.token_ids[reply.start : reply.end]
    assert sum(token in renderer.control_token_ids for token in tokens) == 3


def test_what_breaks_inside_one_episode_ends_that_one_only(renderer: Renderer) -> None:
    class Broken(Host):
        async def score(self, trajectory: Trajectory) -> Reward:
            raise ZeroDivisionError("no judge today")

    finished: list[str] = []
    trajectories = run(
        ScriptedEngine(["one", "two", "three"], renderer),
        renderer,
        num_episodes=3,
        environment=lambda task: Broken() if task.task_id == "t1" else Host(),
        on_finished=lambda trajectory: finished.append(trajectory.task.task_id),
    )
    assert [trajectory.stop_reason for trajectory in trajectories] == [
        StopReason.ANSWERED,
        StopReason.FAILED,
        StopReason.ANSWERED,
    ]
    assert trajectories[1].error == "ZeroDivisionError: no judge today"
    assert trajectories[1].reward is None
    assert sorted(finished) == ["t0", "t1", "t2"]


def test_an_interrupt_is_not_swallowed(renderer: Renderer) -> None:
    class Interrupted(Host):
        async def score(self, trajectory: Trajectory) -> Reward:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(ScriptedEngine(["one"], renderer), renderer, environment=lambda _: Interrupted())


@pytest.mark.parametrize(
    ("config_class", "more"),
    [(Qwen3Config, {}), (LlamaConfig, {}), (Gemma3TextConfig, {"sliding_window": 8, "query_pre_attn_scalar": 8})],
)
def test_rescoring_every_sampled_token_gives_its_recorded_logprob(renderer, config_class, more):
    model = small_model(config_class, renderer, **more)
    engine = LocalEngine(model, eos_token_ids=renderer.eos_token_ids, max_num_seqs=4)
    trajectories = run(engine, renderer, num_episodes=6, call_format=EveryFew(), max_tokens=120, max_segment_length=16)
    assert sum(trajectory.num_calls for trajectory in trajectories) >= 8
    for trajectory in trajectories:
        assert trajectory.error is None
        expected = token_logprobs(model, trajectory.token_ids)
        mask = torch.tensor(trajectory.loss_mask[1:])
        recorded = torch.tensor(trajectory.sampled_logprobs[1:])
        assert (recorded - expected)[mask].abs().max() < logit_tolerance(model, 200)
    assert engine.stats.num_reused_tokens > 0


def test_a_slow_tool_holds_up_only_its_own_episode(renderer: Renderer) -> None:
    """The slow call returns when the seven other episodes have ended."""
    model = small_model(Qwen3Config, renderer)
    engine = LocalEngine(model, eos_token_ids=[], max_num_seqs=8)
    finished: list[str] = []
    others_ended = threading.Event()

    @tool
    def look(word: str) -> str:
        """Looks it up.

        Args:
            word: what to look for
        """
        return "late" if word == "slow" and not others_ended.wait(8) else "found"

    def note(trajectory: Trajectory) -> None:
        finished.append(trajectory.task.task_id)
        if len(finished) == 7:
            others_ended.set()

    trajectories = run(
        engine,
        renderer,
        num_episodes=8,
        tools=[look],
        call_format=EveryFew(num_calls=1, words=["quick", "quick", "slow", "quick"]),
        on_finished=note,
        max_tokens=60,
    )
    assert finished[-1] == "t2"
    assert {event.call.result for trajectory in trajectories for event in trajectory.tool_events} == {"found"}
