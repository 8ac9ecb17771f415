"""Conversations in OpenAI's form become the record of an episode with the same texts, in formats that write calls as text."""

import json
from typing import Any

import pytest
from playing import play_turns

from midthought import tool
from midthought.errors import DataError
from midthought.models.small_model import make_tokenizer
from midthought.rollout.demonstration import demonstration
from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.parsers import find_call_format
from midthought.types import StopReason, Task, Trajectory

TASK = Task(task_id="t", prompt="What is 12 times 3?", answer="36")
FORMATS = ("in_thought", "react", "hermes", "json", "function_calling")


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies two whole numbers."""
    return a * b


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer(["What is 12 times 3? I multiply. It is 36. #call multiply"] * 4, 400))


def call(name: str, **arguments: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def asked(**arguments: int) -> dict[str, Any]:
    return {"role": "assistant", "content": "I multiply.", "tool_calls": [call("multiply", **arguments)]}


QUESTION = {"role": "user", "content": TASK.prompt}
RESULT = {"role": "tool", "content": "36"}
ANSWER = {"role": "assistant", "content": "It is 36.", "reasoning_content": "Now I know."}
AGAIN = {"role": "user", "content": "Once more."}
CONVERSATIONS = {
    "one call": [QUESTION, asked(a=12, b=3), RESULT, ANSWER],
    "no call": [QUESTION, ANSWER],
    "two calls": [QUESTION, {**asked(), "tool_calls": [call("multiply", a=12, b=3)] * 2}, RESULT, RESULT, ANSWER],
    "call after call": [QUESTION, asked(a=12, b=3), RESULT, asked(a=3, b=12), RESULT, ANSWER],
    "a reply": [QUESTION, asked(a=12, b=3), RESULT, ANSWER, AGAIN, asked(a=12, b=3), RESULT, ANSWER],
}


def played(trajectory: Trajectory, renderer: Renderer, call_format: ToolCallFormat, *replies: str) -> Trajectory:
    """The episode in which the policy samples the demonstrated texts."""
    options = {"call_format": call_format, "tools": [multiply], "messages": lambda task: TASK.messages()}
    episode = play_turns(trajectory.sampled_runs(), renderer, replies=replies, max_turns=8, **options)
    assert episode.stop_reason is StopReason.ANSWERED, (episode.error, episode.tool_events)
    return episode


@pytest.mark.parametrize("name", [*FORMATS, "between"])
def test_it_has_the_tokens_the_mask_and_the_calls_of_an_episode(name, renderer):
    call_format = InThoughtFormat("between") if name == "between" else find_call_format(name)
    for conversation, messages in CONVERSATIONS.items():
        shown = demonstration(TASK, messages, renderer, call_format)
        episode = played(shown, renderer, call_format, *["Once more."] * (conversation == "a reply"))
        assert renderer.decode(shown.token_ids) == renderer.decode(episode.token_ids)
        assert (shown.token_ids, shown.loss_mask) == (episode.token_ids, episode.loss_mask)
        assert [event.call for event in shown.tool_events] == [event.call for event in episode.tool_events]
        assert shown.num_calls == sum(len(message.get("tool_calls", ())) for message in messages)


def parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}]


@pytest.mark.parametrize("name", ["in_thought", "hermes"])
def test_the_forms_of_other_packages_give_the_same_record(name, renderer):
    def calls(*ids: str) -> list[dict[str, Any]]:
        return [{**call("multiply", a=number, b=3), "id": each} for number, each in enumerate(ids)]

    system = {"role": "system", "content": "Be brief."}
    results = [{"role": "tool", "tool_call_id": each, "content": text} for each, text in (("x", "0"), ("y", "3"))]
    plain = [system, QUESTION, {**asked(), "tool_calls": calls("x", "y")}, *results, ANSWER]
    other = [
        {"role": "developer", "content": parts("Be brief.")},
        {"role": "user", "content": parts(QUESTION["content"])},
        {**asked(), "content": parts("I multiply."), "tool_calls": calls("x", "y")},
        *[{**result, "content": parts(result["content"])} for result in reversed(results)],
        {**ANSWER, "content": parts(ANSWER["content"])},
    ]
    for call_of in (each for message in other for each in message.get("tool_calls", ())):
        call_of["function"]["arguments"] = json.dumps(call_of["function"]["arguments"])
    shown, same = (demonstration(TASK, each, renderer, find_call_format(name)) for each in (plain, other))
    assert (same.token_ids, same.loss_mask) == (shown.token_ids, shown.loss_mask)
    assert [event.call.result for event in same.tool_events] == ["0", "3"]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([QUESTION, asked(a=1, b=2), ANSWER], "the calls of message 1 have no result"),
        ([QUESTION, ANSWER, ANSWER], "two answers follow each other"),
        ([QUESTION, {**asked(), "function_call": {"name": "f"}}, RESULT, ANSWER], "former form; write tool_calls"),
        ([QUESTION, {"role": "assistant", "content": "a\ud800"}], "message 1 is not Unicode text"),
        ([QUESTION, {"role": "assistant", "content": {(1, 2): "a"}}], "the content of message 1 is .*must be text"),
        ([QUESTION, {**ANSWER, "content": "A turn ends with <|im_end|>."}], "'<|im_end|>', the token that ends a turn"),
        ([QUESTION, asked(a=1, b=2), RESULT, RESULT, ANSWER], "message 3 is the result of None, and every call"),
        ([QUESTION, asked(a=1, b=2), RESULT, AGAIN, ANSWER], "a message of the user follows the results"),
        ([QUESTION, {**asked(), "tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]}, RESULT, ANSWER],
            "arguments of 'f' in message 1 are .*JSON object"),
        ([QUESTION, {**ANSWER, "reasoning_content": '#call f {"a": 1}'}], "would be read as .*'f'.* they are"),
    ],
)  # fmt: skip
def test_a_conversation_that_cannot_be_an_episode_is_refused(messages, message, renderer):
    with pytest.raises(DataError, match=f"task 't': .*{message}"):
        demonstration(TASK, messages, renderer, find_call_format("in_thought"))
