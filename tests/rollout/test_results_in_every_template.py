"""What follows a turn with calls, in every published template: exactly what the template writes between that turn and the next
prompt, whatever the calls look like, in rollouts, demonstrations and served conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from playing import play_turns
from published_templates import PUBLISHED, Published

from midthought import tool
from midthought.config import InferenceConfig
from midthought.engines.scripted import ScriptedEngine
from midthought.rollout.demonstration import demonstration
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.chat_messages import checked_messages
from midthought.serve.chat_policy import ChatPolicy
from midthought.tokenization import Renderer
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Task, ToolOutcome, Trajectory

WITH_CALLS = [published for published in PUBLISHED if published.label]
TASK = Task(task_id="t", prompt="What time is it?", answer="")
FIRST = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TASK.prompt}]


@tool
def now() -> str:
    """Tells the time."""
    return "noon"


@tool
def find(query: str, limit: int = 1) -> str:
    """Finds it.

    Args:
        query: What.
        limit: How many.
    """
    return f"found {query}"


TOOLS = ToolRegistry([now, find])


@dataclass(frozen=True, kw_only=True)
class Case:
    calls: Sequence[tuple[str, dict[str, Any]]]
    text: str = ""
    thought: str = ""
    is_broken: bool = False
    """The text of the call ends within an argument."""

    def suits(self, published: Published) -> bool:
        """Whether a model with this template can write it, so that it is read as calls."""
        is_marked = published.label not in ("llama", "harmony")
        return (
            len(self.calls) <= 1 + published.is_parallel
            and (is_marked or not self.text)
            and bool(published.thought or not self.thought)
        )


CASES = {
    "no arguments": Case(calls=[("now", {})]),
    "optional left out": Case(calls=[("find", {"query": "tide"})]),
    "nothing but optional": Case(calls=[("find", {"limit": 2})]),
    "unknown tool": Case(calls=[("look", {"at": "tide"})]),
    "unknown tool, no arguments": Case(calls=[("look", {})]),
    "not JSON": Case(calls=[("find", {"query": "tide"})], is_broken=True),
    "two calls": Case(calls=[("now", {}), ("now", {})]),
    "two calls, one with arguments": Case(calls=[("find", {"query": "tide"}), ("now", {})]),
    "text before": Case(calls=[("now", {})], text="I look at the clock."),
    "thought before": Case(calls=[("now", {})], thought="The clock knows."),
}


class Setup:
    """A published template with the tools, and a policy that writes these turns."""

    def __init__(self, published: Published) -> None:
        self.published = published
        choice = choose_call_format(Renderer(published.tokenizer()), TOOLS.definitions())
        assert isinstance(choice.call_format, NativeCallFormat)
        self.renderer, self.call_format = choice.renderer, choice.call_format
        self.first = list(FIRST)
        if told := self.call_format.instructions(TOOLS.definitions()):
            self.first[0] = {"role": "system", "content": f"Be brief.\n\n{told}"}
        self.opens_thought = self.renderer.opens_thought(self.renderer.prompt(self.first))

    def turn(self, case: Case) -> str:
        """The text of the policy's turn."""
        thought = self.published.thought.format(case.thought or "Hm.") if case.thought or self.opens_thought else ""
        text = case.text and case.text + self.call_format.syntax.after_content
        call = self.call_format.render_calls(case.calls)
        if case.is_broken:
            call = call[: call.index("tide") + 2]
        return f"{thought}{text}{call}{self.published.call_end or self.published.eos}"

    def said(self, case: Case) -> dict[str, Any]:
        """The turn as a message."""
        ids = [self.call_format.syntax.make_id(name, number) for number, (name, _) in enumerate(case.calls)]
        calls = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, (name, arguments) in zip(ids, case.calls, strict=True)
        ]
        thought = {"reasoning_content": case.thought or "Hm."} if case.thought or self.opens_thought else {}
        return {"role": "assistant", "content": case.text, "tool_calls": calls, **thought}

    def results(self, case: Case, texts: Sequence[str]) -> list[dict[str, Any]]:
        ids = [call["id"] for call in self.said(case)["tool_calls"]]
        names = [name for name, _ in case.calls]
        return [
            {"role": "tool", "name": name, "tool_call_id": call_id, "content": text}
            for name, call_id, text in zip(names, ids, texts, strict=True)
        ]

    def expected(self, case: Case, texts: Sequence[str]) -> str:
        """What the template writes between the end of the turn and the next answer."""
        messages = [*self.first, self.said(case), *self.results(case, texts)]
        whole = self.renderer.chat_template.text(messages, add_generation_prompt=True)
        _, written, after = whole.rpartition(self.call_format.render_calls(case.calls))
        last, end, after = after.partition(self.published.call_end or self.published.eos)
        assert written and end and last.strip() in ("", case.text)
        return after


def play(setup: Setup, turn: str) -> Trajectory:
    turns = [turn, f"Noon.{setup.published.answer_end or setup.published.eos}"]
    options = {"call_format": setup.call_format, "tools": ToolExecutor(TOOLS), "messages": lambda task: setup.first}
    return play_turns(turns, setup.renderer, max_segment_length=2000, **options)


def between(setup: Setup, trajectory: Trajectory) -> str:
    """The text between the first and the second turn of the policy."""
    (segment,) = trajectory.segments
    after_prompt = segment.spans[0].end
    first_end = segment.loss_mask.index(False, segment.loss_mask.index(True))
    assert segment.loss_mask.index(True) == after_prompt
    return setup.renderer.decode(segment.token_ids[first_end : segment.loss_mask.index(True, first_end)])


def served(setup: Setup, case: Case, texts: Sequence[str]) -> str:
    """What follows the turn in a conversation with a client that has the tools. Calls that cannot run are answered at once."""
    script = iter([setup.turn(case), None, f"Noon.{setup.published.answer_end or setup.published.eos}", None])
    policy = ChatPolicy(
        engine=ScriptedEngine(lambda episode, token_ids: next(script, None), setup.renderer),
        renderer=setup.renderer,
        call_format=setup.call_format,
        executor=ToolExecutor(TOOLS),
        max_seq_len=100_000,
        inference=InferenceConfig(max_tokens=4000),
    )
    answers = ChatAnswers(policy)

    def ask(messages: Sequence[Any]) -> ChatAnswer:
        request = ChatRequest(messages=checked_messages(messages), tools=TOOLS.definitions())
        return asyncio.run(answers.answer(request))

    answer = ask(FIRST)
    if not answer.calls:
        return between(setup, answer.trajectory)
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": text}
        for call, text in zip(answer.calls, texts, strict=True)
    ]
    second = ask([*FIRST, {"role": "assistant", "content": answer.content or None, "tool_calls": calls}, *results])
    (segment,) = second.trajectory.segments
    num_before = len(answer.trajectory.token_ids)
    assert segment.token_ids[:num_before] == answer.trajectory.token_ids
    return setup.renderer.decode(segment.token_ids[num_before : segment.spans[0].end])


@pytest.mark.parametrize("published", WITH_CALLS, ids=lambda published: published.name)
def test_what_follows_calls_is_what_the_template_writes_after_them(published: Published) -> None:
    setup = Setup(published)
    wrong = []
    for name, case in CASES.items():
        if not case.suits(published):
            continue
        played = play(setup, setup.turn(case))
        outcomes = {event.outcome for event in played.tool_events}
        assert (ToolOutcome.MALFORMED in outcomes) == case.is_broken and len(played.tool_events) == len(case.calls)
        texts = [setup.call_format.render_results([event]) for event in played.tool_events]
        read = case
        if case.is_broken:
            read = Case(calls=[(played.tool_events[0].call.tool_name or "unknown", {})])
        expected = setup.expected(read, texts)
        found = {"rollout": between(setup, played), "serve": served(setup, case, texts)}
        if not case.is_broken:
            thought = {"reasoning_content": "Now I know."} if published.thought else {}
            last = {"role": "assistant", "content": "Noon.", **thought}
            messages = [*setup.first, setup.said(case), *setup.results(case, texts), last]
            found["sft"] = between(setup, demonstration(TASK, messages, setup.renderer, setup.call_format))
        wrong += [(name, where, text, expected) for where, text in found.items() if text != expected]
    assert not wrong


def test_results_of_several_calls_follow_one_another_if_the_template_refuses_several_calls() -> None:
    """Llama 3 writes one call in a turn, and a model may write two."""
    setup = Setup(next(published for published in PUBLISHED if published.name == "llama3_1"))
    call = '{"name": "now", "parameters": {}}'
    trajectory = play(setup, f"[{call}, {call}]<|eot_id|>")
    assert [event.outcome for event in trajectory.tool_events] == [ToolOutcome.OK] * 2
    result = '<|start_header_id|>ipython<|end_header_id|>\n\n"noon"<|eot_id|>'
    assert between(setup, trajectory) == f"{result}{result}<|start_header_id|>assistant<|end_header_id|>\n\n"
