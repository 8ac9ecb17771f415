"""The loop of an episode: what is written and what is read stay apart, whatever the calls, the splits and the tools. What a tool
can do wrong: `tests/tools/test_concurrency.py`, `test_executor.py`."""

import asyncio
import itertools
import json
import math
import threading
from collections.abc import Sequence
from typing import Any, Self

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playing import MARK, Add, EveryFew, Host, Look, parts_of, play, play_turns, spoken, starts
from precision import logit_tolerance
from small_qwen import small_model, token_logprobs
from transformers import Gemma3TextConfig, LlamaConfig, Qwen3Config

from midthought.engines.local.engine import LocalEngine
from midthought.engines.scripted import ScriptedEngine, byte_tokenizer
from midthought.env.rewards import last_answer
from midthought.errors import SettingsError
from midthought.rollout.episode import run_episodes
from midthought.rollout.rollout_metrics import rollout_metrics
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.json_calls import HermesFormat
from midthought.tools.definition import Tool, ToolDefinition, ToolEpisode, ToolOutput, ToolParameter
from midthought.tools.function_tool import tool
from midthought.types import Reward, SpanKind, StopReason, ToolOutcome, Trajectory


def run(engine: Any, renderer: Renderer, *, num_episodes: int = 1, on_finished: Any = None, **options: Any) -> Any:
    trajectories = play(
        parts_of(engine, renderer, **{"tools": [Look()], **options}), num_episodes, on_finished=on_finished
    )
    for trajectory in trajectories:
        trajectory.check()
    return trajectories


def run_script(script: Sequence[Any], renderer: Renderer, **options: Any) -> Any:
    return run(ScriptedEngine(script, renderer), renderer, **options)[0]


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
    (event,) = trajectory.tool_events
    assert (event.call.parameters, event.outcome) == ({"word": "tide"}, ToolOutcome.OK)
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
            how = {"ensure_ascii": draw(st.booleans()), "indent": draw(st.sampled_from([None, 1]))}
            arguments = json.dumps({"word": draw(VALUES)}, **how)
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
    limits = {"max_segment_length": max_segment_length, "max_tool_calls_per_cot": 100, "max_tokens": 100_000}
    trajectory = run_script([written], renderer, **limits)
    masked = [token_id for token_id, sampled in zip(trajectory.token_ids, trajectory.loss_mask, strict=True) if sampled]
    assert masked[:-1] == written and masked[-1] in renderer.eos_token_ids
    # Pieces that split `</think>` leave it spelled in ordinary tokens; the text is the same.
    assert renderer.decode(masked[:-1]) == text
    assert trajectory.num_calls == num_calls
    for kind, words in spoken(trajectory, renderer):
        assert (MARK in words) <= (kind is SpanKind.RESULT)
        assert words.startswith(("\n#look_", "\n#unknown_error:")) or kind is not SpanKind.RESULT
    assert sum(span.kind is SpanKind.RESULT for span in trajectory.spans) == num_calls
    assert list(map(math.isfinite, trajectory.sampled_logprobs)) == trajectory.loss_mask


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
    assert len(renderer.foreign(read)) <= 20 and read in spoken(trajectory, renderer)[2][1]


def test_a_reply_is_a_chat_turn_and_a_new_thought_with_a_fresh_call_budget(renderer: Renderer) -> None:
    written = "<think>#call look {}</think>first<|im_end|><think>#call look {}</think>second"
    options: dict[str, Any] = {"environment": lambda _: Host(["No <|im_end|>."]), "max_tool_calls_per_cot": 1}
    trajectory = run_script([written], renderer, **options)
    replies = [words for kind, words in spoken(trajectory, renderer) if kind is SpanKind.REPLY]
    assert replies == ["\n<|im_start|>user\nNo <|im_end|>.<|im_end|>\n<|im_start|>assistant\n"]
    assert [event.outcome for event in trajectory.tool_events] == [ToolOutcome.OK] * 2
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert run_script([written], renderer, max_turns=1, **options).stop_reason is StopReason.MAX_TURNS
    (reply,) = (span for span in trajectory.spans if span.kind is SpanKind.REPLY)
    tokens = trajectory.token_ids[reply.start : reply.end]
    assert sum(token in renderer.control_token_ids for token in tokens) == 3, "those of the template"


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
    assert [trajectory.stop_reason for trajectory in trajectories] == ["answered", "failed", "answered"]
    assert (trajectories[1].error, trajectories[1].reward) == ("ZeroDivisionError: no judge today", None)
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
    finished, others_ended = [], threading.Event()

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

    call_format = EveryFew(num_calls=1, words=["quick", "quick", "slow", "quick"])
    options = {"num_episodes": 8, "tools": [look], "on_finished": note, "max_tokens": 60}
    trajectories = run(engine, renderer, call_format=call_format, **options)
    assert finished[-1] == "t2"
    assert {event.call.result for trajectory in trajectories for event in trajectory.tool_events} == {"found"}


# -- turns -------------------------------------------------------------------------------------------------

NO_TOOL_ROLE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class PayingHost(Host):
    """Pays 0.25 for each turn and 1 at the end."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        trajectory.turns[-1].reward = 0.25
        return await super().reply(trajectory)

    async def score(self, trajectory: Trajectory) -> Reward:
        return Reward(parts={"end": 1.0}, turns=tuple(turn.reward for turn in trajectory.turns))


def renderer_of(template: str | None = None) -> Renderer:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    return Renderer(tokenizer)


def chat(
    texts: Sequence[str], call_format: Any = None, *, renderer: Any = None, replies: Sequence[str] = (), **limits: Any
) -> Trajectory:
    """An episode whose calls are chat messages, unless the format says otherwise."""
    turns = [text + "<|im_end|>" for text in texts]
    options = {"call_format": call_format or HermesFormat(), "tools": [Add()]}
    environment = lambda task: PayingHost(replies)  # noqa: E731
    trajectory = play_turns(turns, renderer or renderer_of(), environment=environment, **options, **limits)
    trajectory.check()
    return trajectory


def call(a: int, b: int) -> str:
    return HermesFormat().render_call("add", {"a": a, "b": b})


def test_all_calls_of_a_chat_turn_are_run_at_its_end_and_answered_as_tool_messages():
    renderer = renderer_of()
    first = f"Let me see. {call(2, 3)} {call(10, 20)} done"
    trajectory = chat([first, "It is 5."], renderer=renderer)
    assert spoken(trajectory, renderer)[1:] == [
        (SpanKind.SAMPLED, first + "<|im_end|>"),
        (SpanKind.RESULT, "\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>tool\n30<|im_end|>\n<|im_start|>assistant\n"),
        (SpanKind.SAMPLED, "It is 5.<|im_end|>"),
    ]
    assert [event.outcome for event in trajectory.tool_events] == [ToolOutcome.OK, ToolOutcome.OK]
    assert trajectory.stop_reason is StopReason.ANSWERED


def test_every_answer_is_a_turn_with_its_words_its_call_and_what_came_back():
    trajectory = chat([f"Hm. {call(2, 3)}", "Five", "Six"], replies=["Sure?"])
    first, second, third = trajectory.turns
    assert first.tool_call.result == "5" and first.parsed_action is not None and first.observation == "5"
    assert (second.model_output, second.observation, bool(second.tool_call)) == ("Five", "Sure?", False)
    assert (third.model_output, third.done, third.observation) == ("Six", True, None)
    assert trajectory.states == ["Who?", "5", "Sure?"] and trajectory.actions[1:] == ["Five", "Six"]
    assert trajectory.dones == [False, False, True]
    assert trajectory.rewards == [0.0, 0.25, 1.25] and trajectory.get_return() == 1.5
    assert trajectory.get_return(0.5) == 0.0 + 0.125 + 0.3125
    assert trajectory.log_probs == pytest.approx([-0.5 * len(run) for run in trajectory.sampled_runs()])


OPENS_THOUGHTS = NO_TOOL_ROLE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")


@pytest.mark.parametrize(
    ("template", "said", "answer"),
    [(OPENS_THOUGHTS, "Five", None), (OPENS_THOUGHTS, "Hm.</think>Five", "Five"), (None, "Five", "Five")],
)
def test_a_turn_knows_whether_the_template_opened_a_thought_for_it(template, said, answer):
    trajectory = chat([said], renderer=renderer_of(template))
    assert trajectory.turns[0].begins_in_thought is (template is OPENS_THOUGHTS)
    assert last_answer(trajectory) == answer


def test_the_turn_of_a_call_format_that_stops_at_calls_goes_on_after_the_result():
    written = 'Let me add. <think>#call add {"a": 2, "b": 3}</think>Five'
    trajectory = chat([written], InThoughtFormat())
    (turn,) = trajectory.turns
    assert turn.model_output == 'Let me add. <think>#call add {"a": 2, "b": 3}\n</think>Five'
    assert turn.tool_call.result == "5" and turn.observation is None


def test_a_call_in_the_last_allowed_turn_is_not_run():
    trajectory = chat([call(1, 1), call(2, 2)], max_turns=2)
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert trajectory.num_calls == 1 and len(trajectory) == 2


def test_a_budget_that_is_spent_ends_the_episode_and_what_happened_is_recorded():
    cut = chat([call(1, 1) * 9], max_tokens=90)
    assert cut.stop_reason is StopReason.LENGTH
    assert cut.num_calls == 0 and len(cut) == 1 and not cut.turns[0].done
    unfit = chat([call(1, 1)], max_tokens=len(call(1, 1)) + 9)
    assert unfit.stop_reason is StopReason.LENGTH and unfit.num_calls == 1
    assert [span.kind for span in unfit.spans] == [SpanKind.PROMPT, SpanKind.SAMPLED]
    texts = [f"{call(1, 1)}{call(2, 2)}", "Two", call(3, 3), "Six"]
    few = chat(texts, replies=["And three?"], max_tool_calls_per_cot=1)
    outcomes = [event.outcome for event in few.tool_events]
    assert outcomes == [ToolOutcome.OK, ToolOutcome.NO_CALLS_LEFT, ToolOutcome.OK], "the budget is of one reply"


def test_a_template_that_refuses_the_tool_role_gets_results_as_the_users_words():
    renderer = renderer_of(NO_TOOL_ROLE)
    trajectory = chat([call(2, 3), "5"], renderer=renderer)
    assert spoken(trajectory, renderer)[2][1] == "\n<|im_start|>user\n5<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_takes_no_second_user_turn_says_so():
    refused = "{% if messages|length > 2 %}{{ raise_exception('one turn only') }}{% endif %}"
    once = refused + "{% for m in messages %}{{ m.content }}{% endfor %}"
    trajectory = chat(["Hello"], InThoughtFormat(), renderer=renderer_of(once), replies=["More"])
    assert trajectory.stop_reason is StopReason.FAILED and "one turn only" in (trajectory.error or "")
    with pytest.raises(SettingsError, match="one turn only"):
        renderer_of(once).following([{"role": "user", "content": "x"}])


# -- tools -------------------------------------------------------------------------------------------------


class Hang(Tool):
    """Never returns."""

    definition = ToolDefinition("hang", "Hangs.")
    timeout_seconds = 60
    num_begun = 0
    num_cancelled = 0

    async def execute(self) -> str:
        self.num_begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.num_cancelled += 1
        return ""


def test_a_rollout_that_ends_early_ends_the_calls_that_are_under_way(renderer: Renderer) -> None:
    hang = Hang()
    script = ["Ada"] + ["<think>#call hang {}So.</think>Ada"] * 3

    def stop(trajectory: Trajectory) -> None:
        raise ZeroDivisionError

    async def rollout() -> None:
        with pytest.raises(ZeroDivisionError):
            await run_episodes(
                parts_of(ScriptedEngine(script, renderer), renderer, tools=[hang]), starts(4), on_finished=stop
            )
        parts = parts_of(ScriptedEngine(script, renderer), renderer, tools=[hang])
        running = asyncio.create_task(run_episodes(parts, starts(4)))
        num_before = hang.num_begun
        while hang.num_begun < num_before + 3:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})
        async with asyncio.timeout(60):  # the calls run on the tool's own event loop
            while hang.num_cancelled < hang.num_begun:
                await asyncio.sleep(0.01)
        assert hang.num_cancelled == hang.num_begun == num_before + 3

    asyncio.run(rollout())


class SlowEngine(ScriptedEngine):
    async def sample(self, *given: Any, **options: Any) -> Any:
        await asyncio.sleep(0.1)
        return await super().sample(*given, **options)


class Wait(Tool):
    definition = ToolDefinition("wait", "Waits.", [ToolParameter("seconds", "number", "How long.")])

    async def execute(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"


def test_the_record_says_how_long_the_episode_waited_for_tools_and_for_the_engine(renderer: Renderer) -> None:
    script = ['<think>#call wait {"seconds": 0.2}So.</think>Ada', "Ada"]
    called, plain = run(SlowEngine(script, renderer), renderer, num_episodes=2, tools=[Wait()])
    assert 0.2 <= called.tool_seconds < 2 and 0.2 <= called.engine_seconds < 2
    assert plain.tool_seconds == 0.0 and 0.1 <= plain.engine_seconds < called.tool_seconds + called.engine_seconds
    figures = rollout_metrics([called, plain])
    assert figures["time/episode/tool_seconds"] == pytest.approx(called.tool_seconds / 2)
    assert figures["time/episode/engine_seconds"] == pytest.approx((called.engine_seconds + plain.engine_seconds) / 2)


class SlowLook(Tool):
    """Takes a while, each time another."""

    definition = ToolDefinition("look", "Looks.", [ToolParameter("word", "string", "What.")])

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = itertools.cycle(seconds)

    async def execute(self, word: str) -> ToolOutput:
        await asyncio.sleep(next(self._seconds))
        if word == "bad":
            raise ValueError("a bad word")
        return ToolOutput(f"<{word}>", {"word": word})


def test_deterministic_rollouts_do_not_depend_on_what_the_tools_take(renderer: Renderer) -> None:
    model = small_model(Qwen3Config, renderer)
    words = [["ab"[number % 2], "bad", "ab"[number // 2 % 2]] for number in range(9)]
    records = []
    for seconds in ((0.0,), (0.02, 0.0, 0.01)):
        engine = LocalEngine(model, eos_token_ids=[], max_num_seqs=4, deterministic=True)
        options = {"tools": [SlowLook(seconds)], "max_tokens": 60, "max_segment_length": 8}
        done = run(engine, renderer, num_episodes=9, call_format=EveryFew(num_calls=3, words=words), **options)
        assert all(trajectory.error is None for trajectory in done)
        records.append([(t.token_ids, [dict(event.metadata) for event in t.tool_events]) for t in done])
        assert sum(len(events) for _, events in records[-1]) == 27
    assert records[0] == records[1]


# -- stateful tools -------------------------------------------------------------------------------------------------


class Notes(Tool):
    """Keeps the words of one episode, and says in `open_now` which episodes have it open."""

    definition = ToolDefinition("note", "Keeps notes.", [ToolParameter("word", "string", "What to add.")])

    def __init__(self, episode: ToolEpisode | None = None, open_now: set[str] | None = None) -> None:
        self.episode = episode
        self.open_now: set[str] = set() if open_now is None else open_now
        self.num_opened = 0
        self.words: list[str] = []

    def open(self, episode: ToolEpisode) -> Self:
        self.num_opened += 1
        self.open_now.add(episode.task.task_id)
        return type(self)(episode, self.open_now)

    def execute(self, word: str) -> str:
        self.words.append(word)
        return " ".join([self.episode.task.task_id, str(self.episode.seed), *self.words])

    def close(self) -> None:
        self.open_now.remove(self.episode.task.task_id)


def test_a_tool_is_closed_after_the_reward_and_what_fails_or_is_too_late_leaves_nothing_open(renderer):
    over, at_score = threading.Event(), []

    class Faulty(Notes):
        timeout_seconds = 0.1

        def execute(self, word: str) -> str:
            if word.startswith("1"):
                raise ValueError("the sandbox broke")
            if word.startswith("2"):
                over.wait(20)
            return super().execute(word)

    def score(trajectory: Trajectory) -> Reward:
        at_score.append(trajectory.task.task_id in tool.open_now)
        if trajectory.task.task_id == "t3":
            raise RuntimeError("the judge broke")
        return Reward()

    tool = Faulty()
    calls = ["".join(f'Now #call note {{"word": "{number}{letter}"}}' for letter in "abc") for number in range(5)]
    engine = ScriptedEngine([f"<think>{each}</think>Ada" for each in calls], renderer)
    done = play(parts_of(engine, renderer, tools=[tool], environment=lambda task: Host(score=score)), 5)
    over.set()
    assert [t.stop_reason for t in done] == [*[StopReason.ANSWERED] * 3, StopReason.FAILED, StopReason.ANSWERED]
    assert [event.call.result for event in done[4].tool_events] == ["t4 4 4a", "t4 4 4a 4b", "t4 4 4a 4b 4c"]
    assert tool.num_opened == 5 and not tool.open_now
    assert at_score == [True] * 5, "it is closed after the reward"
