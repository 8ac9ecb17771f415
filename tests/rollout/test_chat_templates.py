"""Published chat templates: calls are found, run and answered as the template writes them, token by token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from published_templates import PUBLISHED, Published

from midthought.config import InferenceConfig
from midthought.engines.scripted import ScriptedEngine
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.tokenization import Renderer
from midthought.tools.call_formats.detection import ChosenCallFormat, choose_call_format
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Reward, StopReason, Task, ToolOutcome, Trajectory

WITH_CALLS = [published for published in PUBLISHED if published.label]
PARALLEL = [published for published in WITH_CALLS if published.is_parallel]
QUESTION = "What is in the library about the sea?"
RESULT = 'The "tide" clock\nsays: {"high": 3} — 水, <b>&amp;</b>'
ARGUMENTS = {"query": 'a "tide"\nclock — 水 {x} \\ \'it\'', "limit": 3, "filters": {"lang": ["en", "中"], "old": False}}


class Look(Tool):
    definition = ToolDefinition(
        "look_up",
        "Looks it up.",
        [
            ToolParameter("query", "string", "What to look for."),
            ToolParameter("limit", "integer", "How many.", required=False),
            ToolParameter("filters", "object", "Which ones.", required=False),
        ],
    )

    def __init__(self, result: str | None = None) -> None:
        self._result = result

    def execute(self, query: str, limit: int = 1, filters: Any = None) -> str:
        return self._result or (RESULT if limit > 1 else query)


class Host:
    def __init__(self, replies: Sequence[str]) -> None:
        self._replies = list(replies)

    async def reply(self, trajectory: Trajectory) -> str | None:
        return self._replies.pop(0) if self._replies else None

    async def score(self, trajectory: Trajectory) -> Reward:
        return Reward()


def named(published: Published) -> str:
    return published.name


def chosen(published: Published, **arguments: Any) -> ChosenCallFormat:
    return choose_call_format(Renderer(published.tokenizer(), arguments), [Look.definition])


def play(choice: ChosenCallFormat, turns: Sequence[str], replies: Sequence[str] = (), result: str | None = None, **limits: Any) -> Trajectory:
    """One episode in which the policy writes these turns, with the tokens at their ends."""
    script = iter(turns)
    task = Task(task_id="t", prompt=QUESTION, answer="")
    registry = ToolRegistry([Look(result)])
    parts = RolloutParts(
        engine=ScriptedEngine(lambda episode, token_ids: next(script, None), choice.renderer),
        renderer=choice.renderer,
        call_format=choice.call_format,
        executor=ToolExecutor(registry),
        messages=lambda task: task.messages("Be brief.", choice.call_format.instructions(registry.definitions())),
        environment=lambda task: Host(replies),
        inference=InferenceConfig(max_tokens=4000, max_segment_length=2000, max_turns=8, **limits),
    )
    (trajectory,) = asyncio.run(run_episodes(parts, [EpisodeStart(task=task, seed=1)]))
    assert trajectory.stop_reason is StopReason.ANSWERED, (trajectory.error, trajectory.tool_events)
    return trajectory


def native(choice: ChosenCallFormat) -> NativeCallFormat:
    assert isinstance(choice.call_format, NativeCallFormat)
    return choice.call_format


def call_turn(published: Published, choice: ChosenCallFormat, thought: str, calls: Sequence[Any], before: int = 0) -> str:
    written = native(choice).render_calls(calls, before)
    return published.thought.format(thought) + written + (published.call_end or published.eos)


def answer_turn(published: Published, text: str) -> str:
    return published.before_answer.format("Now I know.") + text + (published.answer_end or published.eos)


def said_by_assistant(published: Published, choice: ChosenCallFormat, thought: str, calls: Sequence[Any], before: int) -> Any:
    ids = [native(choice).syntax.make_id(name, number) for number, (name, _) in enumerate(calls, before)]
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, (name, arguments) in zip(ids, calls, strict=True)
    ]
    thoughts = {"reasoning_content": thought} if published.thought else {}
    return {"role": "assistant", "content": "", "tool_calls": tool_calls, **thoughts}


def answer(published: Published, text: str) -> dict[str, Any]:
    thought = {"reasoning_content": "Now I know."} if "{}" in published.before_answer else {}
    return {"role": "assistant", "content": text, **thought}


def results(choice: ChosenCallFormat, calls: Sequence[Any], texts: Sequence[str], before: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "role": "tool",
            "name": name,
            "tool_call_id": native(choice).syntax.make_id(name, number),
            "content": text,
        }
        for number, ((name, _), text) in enumerate(zip(calls, texts, strict=True), before)
    ]


def expected_ids(published: Published, choice: ChosenCallFormat, messages: Sequence[Any]) -> list[int]:
    """What transformers' own `apply_chat_template` gives for the whole conversation."""
    tokenizer = published.tokenizer()
    described = native(choice).describes_tools
    if published.name.startswith("deepseek"):  # its template takes the arguments as JSON text
        messages = json.loads(json.dumps(messages))
        for call in (call for message in messages for call in message.get("tool_calls", [])):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    tools = {"tools": [Look.definition.json_schema()]} if described else {}
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **tools)


def assert_same(published: Published, choice: ChosenCallFormat, ours: Sequence[int], messages: Sequence[Any]) -> None:
    expected = expected_ids(published, choice, messages)
    decode = choice.renderer.decode
    if not native(choice).describes_tools:  # our instructions are foreign text, which has no control tokens
        user = choice.renderer.control("<|user|>")[0]
        ours, expected = ours[list(ours).index(user) :], expected[expected.index(user) :]
    if published.answer_end == "<|user|>":  # the template does not write the end of the last answer
        assert decode(ours[-1:]) == "<|user|>"
        ours = ours[:-1]
    assert decode(ours) == decode(expected[: len(ours)])
    assert list(ours) == expected[: len(ours)]
    assert decode(expected[len(ours) :]).strip() == ""


def first_messages(choice: ChosenCallFormat) -> list[dict[str, Any]]:
    system = "\n\n".join(filter(None, ("Be brief.", choice.call_format.instructions([Look.definition]))))
    return [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]


# -- detection -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("published", PUBLISHED, ids=named)
def test_the_call_format_is_found_from_what_the_template_writes(published: Published) -> None:
    choice = chosen(published)
    assert choice.call_format.name == (published.label or "in_thought")


def test_a_template_without_calls_says_why_and_falls_back_to_calls_in_the_thought() -> None:
    choice = chosen(PUBLISHED[-1])
    assert choice.reason == "in_thought (#call), because the chat template refuses calls" or "omits calls" in choice.reason


@pytest.mark.parametrize("published", WITH_CALLS, ids=named)
def test_a_call_is_written_as_the_template_writes_it(published: Published) -> None:
    choice = chosen(published)
    calls = [("look_up", ARGUMENTS), ("look_up", {"query": "b"})][: 1 + published.is_parallel]
    text = choice.renderer.chat_template.text(
        [{"role": "user", "content": "a"}, said_by_assistant(published, choice, "", calls, 0)]
    )
    assert native(choice).render_calls(calls) in text


@pytest.mark.parametrize("arguments", [ARGUMENTS, {}, {"query": "true"}, {"query": "12"}, {"query": "</s> ] } x"}], ids=str)
@pytest.mark.parametrize("published", WITH_CALLS, ids=named)
def test_a_written_call_is_read_back(published: Published, arguments: Any) -> None:
    call_format = native(chosen(published))
    calls = [("look_up", arguments), ("other.tool", {"query": "b"})][: 1 + published.is_parallel]
    found = call_format.parse_all(call_format.render_calls(calls))
    assert [(call.tool_name, call.parameters) for call in found] == calls
    assert all(call.success for call in found)


# -- episodes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("published", WITH_CALLS, ids=named)
def test_an_episode_has_the_tokens_of_the_whole_conversation_and_trains_on_what_was_sampled(published: Published) -> None:
    choice = chosen(published)
    rounds = [[("look_up", ARGUMENTS)], [("look_up", {"query": "the sea"})]]
    turns = [
        call_turn(published, choice, "I look it up.", rounds[0]),
        call_turn(published, choice, "Once more.", rounds[1], before=1),
        answer_turn(published, "It is about the tide."),
    ]
    trajectory = play(choice, turns)
    assert [event.outcome for event in trajectory.tool_events] == [ToolOutcome.OK] * 2
    assert trajectory.tool_events[0].call.parameters == ARGUMENTS
    messages = [
        *first_messages(choice),
        said_by_assistant(published, choice, "I look it up.", rounds[0], 0),
        *results(choice, rounds[0], [RESULT]),
        said_by_assistant(published, choice, "Once more.", rounds[1], 1),
        *results(choice, rounds[1], ["the sea"], before=1),
        answer(published, "It is about the tide."),
    ]
    assert_same(published, choice, trajectory.token_ids, messages)
    sampled = [choice.renderer.decode(run) for run in trajectory.sampled_runs()]
    assert sampled == turns
    assert sum(trajectory.loss_mask) == sum(len(choice.renderer.control(turn)) for turn in turns)


@pytest.mark.parametrize("published", PARALLEL, ids=named)
def test_parallel_calls_have_results_in_order(published: Published) -> None:
    choice = chosen(published)
    calls = [("look_up", ARGUMENTS), ("look_up", {"query": "b"})]
    trajectory = play(choice, [call_turn(published, choice, "Two.", calls), answer_turn(published, "Done.")])
    messages = [
        *first_messages(choice),
        said_by_assistant(published, choice, "Two.", calls, 0),
        *results(choice, calls, [RESULT, "b"]),
        answer(published, "Done."),
    ]
    assert_same(published, choice, trajectory.token_ids, messages)


@pytest.mark.parametrize("published", WITH_CALLS, ids=named)
def test_a_result_that_spells_control_tokens_contains_none(published: Published) -> None:
    choice = chosen(published)
    spelled = f"{published.eos}{''.join(published.tokens)}<think>"
    turns = [call_turn(published, choice, "x", [("look_up", {"query": "sea"})]), answer_turn(published, "Done.")]

    def control_tokens(result: str) -> list[int]:
        trajectory = play(choice, turns, result=result)
        pairs = zip(trajectory.token_ids, trajectory.loss_mask, strict=True)
        tokens = choice.renderer.control_token_ids
        return [token_id for token_id, is_sampled in pairs if not is_sampled and token_id in tokens]

    assert control_tokens(spelled) == control_tokens("harmless")
