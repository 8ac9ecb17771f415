"""What follows a turn with calls, in every published template: exactly what the template writes between that turn and the next
prompt, whatever the calls look like, in rollouts, demonstrations and served conversations."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from playing import chat_policy
from published_templates import Published
from representatives import representatives
from test_chat_templates import (
    BY_NAME,
    DEFINITIONS,
    QUESTION,
    WITH_CALLS,
    Look,
    chosen,
    first_messages,
    named,
    native,
    now,
    play,
    results,
    said_by_assistant,
)  # fmt: skip

from midthought.config import InferenceConfig
from midthought.engines.scripted import ScriptedEngine
from midthought.rollout.demonstration import demonstration
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.chat_messages import checked_messages
from midthought.types import Task, ToolOutcome, Trajectory

FIRST = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]


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
    "optional left out": Case(calls=[("look_up", {"query": "tide"})]),
    "nothing but optional": Case(calls=[("look_up", {"limit": 2})]),
    "unknown tool": Case(calls=[("look", {"at": "tide"})]),
    "unknown tool, no arguments": Case(calls=[("look", {})]),
    "not JSON": Case(calls=[("look_up", {"query": "tide"})], is_broken=True),
    "two calls": Case(calls=[("now", {}), ("now", {})]),
    "two calls, one with arguments": Case(calls=[("look_up", {"query": "tide"}), ("now", {})]),
    "text before": Case(calls=[("now", {})], text="I look at the clock."),
    "thought before": Case(calls=[("now", {})], thought="The clock knows."),
}


def thought_of(published: Published, case: Case) -> str:
    """Empty if the turn has none."""
    renderer = chosen(published).renderer
    return case.thought or ("Hm." if renderer.opens_thought(renderer.prompt(first_messages(chosen(published)))) else "")


def turn(published: Published, case: Case) -> str:
    """The text of the policy's turn."""
    call_format, thought = native(chosen(published)), thought_of(published, case)
    call = call_format.render_calls(case.calls)
    if case.is_broken:
        call = call[: call.index("tide") + 2]
    text = case.text and case.text + call_format.syntax.after_content
    return f"{thought and published.thought.format(thought)}{text}{call}{published.call_end or published.eos}"


def conversation(published: Published, case: Case, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Up to the results."""
    choice, thought = chosen(published), thought_of(published, case)
    said = said_by_assistant(published, thought, case.calls, 0) | {"content": case.text}
    if not thought:
        said.pop("reasoning_content", None)
    return [*first_messages(choice), said, *results(published, case.calls, texts)]


def expected(published: Published, case: Case, texts: Sequence[str]) -> str:
    """What the template writes between the end of the turn and the next answer."""
    choice = chosen(published)
    whole = choice.renderer.chat_template.text(conversation(published, case, texts), add_generation_prompt=True)
    _, written, after = whole.rpartition(native(choice).render_calls(case.calls))
    last, end, after = after.partition(published.call_end or published.eos)
    assert written and end and last.strip() in ("", case.text)
    return after


def last_turn(published: Published) -> str:
    return f"Noon.{published.answer_end or published.eos}"


def between(published: Published, trajectory: Trajectory) -> str:
    """The text between the first and the second turn of the policy."""
    (segment,) = trajectory.segments
    after_prompt = segment.spans[0].end
    first_end = segment.loss_mask.index(False, segment.loss_mask.index(True))
    assert segment.loss_mask.index(True) == after_prompt
    return chosen(published).renderer.decode(segment.token_ids[first_end : segment.loss_mask.index(True, first_end)])


def served(published: Published, case: Case, texts: Sequence[str]) -> str:
    """What follows the turn in a conversation with a client that has the tools."""
    choice, script = chosen(published), iter([turn(published, case), None, last_turn(published), None])
    engine = ScriptedEngine(lambda episode, token_ids: next(script, None), choice.renderer)
    inference = InferenceConfig(max_tokens=4000)
    policy = chat_policy(engine, choice.renderer, choice.call_format, [Look(), now], inference=inference)
    answers = ChatAnswers(policy)

    def ask(messages: Sequence[Any]) -> ChatAnswer:
        return asyncio.run(answers.answer(ChatRequest(messages=checked_messages(messages), tools=DEFINITIONS)))

    answer = ask(FIRST)
    replies = [
        {"role": "tool", "tool_call_id": call.id, "content": text}
        for call, text in zip(answer.calls, texts, strict=True)
    ]
    second = ask([*FIRST, answer.message(), *replies])
    (segment,) = second.trajectory.segments
    num_before = len(answer.trajectory.token_ids)
    assert segment.token_ids[:num_before] == answer.trajectory.token_ids
    return choice.renderer.decode(segment.token_ids[num_before : segment.spans[0].end])


FIRST_OF_EACH_FORMAT = {published.label: published for published in reversed(WITH_CALLS)}.values()


@pytest.mark.parametrize("published", representatives(WITH_CALLS, *FIRST_OF_EACH_FORMAT, BY_NAME["qwen3"]), ids=named)
def test_what_follows_calls_is_what_the_template_writes_after_them(published: Published) -> None:
    choice, wrong = chosen(published), []
    for name, case in CASES.items():
        if not case.suits(published):
            continue
        played = play(choice, [turn(published, case), last_turn(published)])
        outcomes = {event.outcome for event in played.tool_events}
        assert (ToolOutcome.MALFORMED in outcomes) == case.is_broken and len(played.tool_events) == len(case.calls)
        texts = [native(choice).render_results([event]) for event in played.tool_events]
        read = case
        if case.is_broken:
            read = Case(calls=[(played.tool_events[0].call.tool_name or "unknown", {})])
        found = {"rollout": between(published, played)}
        if not case.is_broken:  # the client gets a broken call as text
            found["serve"] = served(published, case, texts)
            thought = {"reasoning_content": "Now I know."} if published.thought else {}
            messages = [*conversation(published, case, texts), {"role": "assistant", "content": "Noon.", **thought}]
            task = Task(task_id="t", prompt=QUESTION, answer="")
            found["sft"] = between(published, demonstration(task, messages, choice.renderer, native(choice)))
        after = expected(published, read, texts)
        wrong += [(name, where, text, after) for where, text in found.items() if text != after]
    assert not wrong


def test_results_of_several_calls_follow_one_another_if_the_template_refuses_several_calls() -> None:
    """Llama 3 writes one call in a turn, and a model may write two."""
    llama, call = BY_NAME["llama3_1"], '{"name": "now", "parameters": {}}'
    trajectory = play(chosen(llama), [f"[{call}, {call}]<|eot_id|>", last_turn(llama)])
    assert [event.outcome for event in trajectory.tool_events] == [ToolOutcome.OK] * 2
    result = '<|start_header_id|>ipython<|end_header_id|>\n\n"noon"<|eot_id|>'
    assert between(llama, trajectory) == f"{result}{result}<|start_header_id|>assistant<|end_header_id|>\n\n"
