"""Forms of conversations that other libraries write: each becomes the record of the plain form, or is named with its remedy."""

import json
import logging
from typing import Any

import numpy
import pytest
from published_templates import PUBLISHED
from pydantic import BaseModel

from midthought import Task, ToolRegistry, Trajectory, tool
from midthought.errors import DataError
from midthought.rollout.selection import ShuffledTasks
from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.parsers import find_call_format
from midthought.trainer.demonstrations import DemonstrationReader
from midthought.trainer.sources import PromptBuilder

BY_NAME = {published.name: published for published in PUBLISHED}
STREAM: ShuffledTasks[Task] = ShuffledTasks([Task(task_id="t", prompt="Why?", answer="A")], 0)


@tool
def look(query: str, limit: int = 1) -> str:
    """Looks."""
    return query


@tool
def ping() -> str:
    """Pings."""
    return "pong"


def read(given: Any, name: str = "qwen3", call_format: ToolCallFormat | None = None) -> Trajectory:
    """The first record of the demonstrations with a published chat template."""
    registry = ToolRegistry([look, ping])
    choice = choose_call_format(Renderer(BY_NAME[name].tokenizer()), registry.definitions())
    renderer = choice.renderer if call_format is None else Renderer(BY_NAME[name].tokenizer())
    prompts = PromptBuilder(system_prompt="", registry=registry, call_format=call_format or choice.call_format)
    return DemonstrationReader(prompts, renderer, 4000).read(given, STREAM)[0]


def own_text(record: Trajectory, name: str = "qwen3") -> str:
    renderer = Renderer(BY_NAME[name].tokenizer())
    return "".join(renderer.decode(run) for run in record.sampled_runs())


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(arguments: Any, name: str = "look", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def answered(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A conversation with this message and an answer to it."""
    return [QUESTION, message, {"role": "tool", "content": "a"}, said("So.")]


QUESTION = {"role": "user", "content": "Why?"}
CALLED = said("", tool_calls=[call({"query": "a"}, id="c1")])
RESULT = {"role": "tool", "content": "found", "tool_call_id": "c1"}
PLAIN = [QUESTION, CALLED, RESULT, said("So.")]


class ChatMessage(BaseModel):
    """As the messages of OpenAI's client."""

    role: str
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None


def with_nulls(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "refusal": None, "audio": None, "function_call": None}


NULLS = {"query": "a", "limit": None, "other": None}
FORMS: dict[str, Any] = {
    "messages as JSON": [{"messages": json.dumps(PLAIN)}],
    "prompt and completion": [{"prompt": PLAIN[:1], "completion": PLAIN[1:]}],
    "prompt and completion as arrays": [
        {"prompt": numpy.array(PLAIN[:1], object), "completion": numpy.array(PLAIN[1:], object)}
    ],
    "prompt as a text": [{"prompt": "Why?", "completion": PLAIN[1:]}],
    "column conversations": [{"conversations": PLAIN, "source": "x"}],
    "objects": [[ChatMessage(**message) for message in PLAIN]],
    "objects among mappings": [[QUESTION, ChatMessage(**CALLED), *PLAIN[2:]]],
    "null under unused keys": [[*map(with_nulls, PLAIN)]],
    "null for arguments that are not used": [[QUESTION, said("", tool_calls=[call(NULLS, id="c1")]), *PLAIN[2:]]],
    "a function of the task": lambda task: {"messages": PLAIN},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_gives_the_same_record(form: str) -> None:
    record, plain = read(FORMS[form]), read([PLAIN])
    assert (record.token_ids, record.loss_mask) == (plain.token_ids, plain.loss_mask)
    assert [event.call.parameters for event in record.tool_events] == [{"query": "a"}]


def test_a_text_of_a_function_is_an_answer() -> None:
    assert read(lambda task: "So.").token_ids == read([[QUESTION, said("So.")]]).token_ids


SYSTEM = {"role": "system", "content": "Be kind."}
WITH_COLUMNS: dict[str, tuple[Any, list[Any], str]] = {
    "system beside messages": ({"system": "Be kind.", "messages": PLAIN}, [SYSTEM, *PLAIN], ""),
    "system in both": ({"system": "Be kind.", "messages": [SYSTEM, *PLAIN]}, [SYSTEM, *PLAIN], ""),
    "system of null": ({"system": None, "messages": PLAIN, "tools": [], "x": 1}, PLAIN, "tools, x"),
    "system beside a text": ({"system": "Be kind.", "prompt": "Why?", "completion": PLAIN[1:]}, [SYSTEM, *PLAIN], ""),
}


@pytest.mark.parametrize("form", WITH_COLUMNS)
def test_the_other_columns_of_a_row_are_used_or_named_once(form: str, caplog: Any) -> None:
    row, messages, unused = WITH_COLUMNS[form]
    record = read([row, row])
    assert [each.args for each in caplog.records] == ([(unused,)] if unused else [])
    plain = read([messages])
    assert (record.token_ids, record.loss_mask) == (plain.token_ids, plain.loss_mask)


def test_a_system_column_that_differs_from_the_first_message_is_refused() -> None:
    with pytest.raises(DataError, match=r"row 1: the column system is 'Be rude.', and the messages begin with another"):
        read([{"system": "Be rude.", "messages": [SYSTEM, *PLAIN]}])


@pytest.mark.parametrize("call_format", [None, "hermes", "in_thought"])
def test_an_answer_with_weight_0_is_read_and_not_trained_on(call_format: str | None) -> None:
    conversation = [QUESTION, said("First."), QUESTION, CALLED, RESULT, said("So.")]
    known = None if call_format is None else find_call_format(call_format)

    def weighted(*weights: Any) -> Trajectory:
        left = iter(weights)
        messages = [m | {"weight": next(left)} if m["role"] == "assistant" else m for m in conversation]
        return read([messages], "qwen3", known)

    plain, second = read([conversation], "qwen3", known), weighted(0, 1, 0)
    assert weighted(1, None, True).loss_mask == plain.loss_mask and second.token_ids == plain.token_ids
    trained = own_text(second)
    assert "look" in trained and "First." not in trained and "So." not in trained
    rest = zip(weighted(1, 0, 1).loss_mask, second.loss_mask, strict=True)
    assert [one or other for one, other in rest] == plain.loss_mask
    with pytest.raises(DataError, match="no token is trained on"):
        weighted(0, 0, 0)
    for wrong in (0.5, 2, "0", -1):
        with pytest.raises(DataError, match=f"message 1 has the weight {wrong!r}; it is 0"):
            weighted(wrong, 1, 1)


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_a_call_without_arguments_may_have_none(arguments: Any) -> None:
    record = read([answered(said("", tool_calls=[call(arguments, "ping")]))])
    assert record.tool_events[0].call.parameters == {}


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("name", ["qwen3", "in_thought", "gpt_oss", "gpt_oss_thinking"])
def test_a_thought_under_any_name_is_trained_on(key: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published template of gpt-oss reads `thinking`."""
    conversation = [QUESTION, {**CALLED, key: "Hm, first."}, RESULT, said("So.", **{key: "Now."})]
    template = {"in_thought": "qwen2_5", "gpt_oss_thinking": "gpt_oss"}.get(name, name)
    if name == "gpt_oss_thinking":
        changed("gpt_oss", monkeypatch, ("reasoning_content", "thinking"))
    record = read([conversation], template, InThoughtFormat() if name == "in_thought" else None)
    written = own_text(record, template)
    assert "Hm, first." in written and "Now." in written


@pytest.mark.parametrize(
    ("name", "answer", "warning"),
    [
        ("llama3_1", {**CALLED, "content": "I look."}, "leaves out the text 'I look.'"),
        ("qwen2_5", {**CALLED, "reasoning_content": "Hm."}, "leaves out the thought 'Hm.'"),
        (
            "qwen3",
            said("", tool_calls=[call({"quary": "a"})]),
            "row 1: the call of 'look' would fail (missing argument 'query')",
        ),
    ],
)
def test_what_the_template_leaves_out_and_arguments_that_the_tool_would_refuse_are_reported_once(
    name: str, answer: Any, warning: str, caplog: Any
) -> None:
    with caplog.at_level(logging.WARNING):
        read([answered(answer)] * 2, name)
    assert caplog.text.count(warning) == 1 and "row 2" not in caplog.text


def test_what_cannot_be_a_conversation_is_named() -> None:
    with pytest.raises(DataError, match=r"message 2 has the result of 'c9'.*'c1'"):
        read([{"conversations": [QUESTION, CALLED, {**RESULT, "tool_call_id": "c9"}, said("So.")]}])


def test_calls_that_the_template_does_not_write_are_refused() -> None:
    """Harmony has one call per message; its template leaves out the others, but not their results."""
    calls = [call({"query": query}, id=query) for query in "ab"]
    results = [{**RESULT, "tool_call_id": query} for query in "ab"]
    with pytest.raises(DataError, match=r"chat template.*would be read as .*'a'.*and they are .*'b'"):
        read([[QUESTION, said("", tool_calls=calls), *results, said("So.")]], "gpt_oss")


def changed(name: str, monkeypatch: pytest.MonkeyPatch, *pairs: tuple[str, str]) -> None:
    """Replaces parts of a template."""
    text = BY_NAME[name].text
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    monkeypatch.setattr(type(BY_NAME[name]), "text", property(lambda self: text))


THINKING = [QUESTION, {**CALLED, "reasoning_content": "Hm."}, RESULT, said("So.", reasoning_content="Now.")]


def test_a_template_that_drops_the_thoughts_before_calls_when_the_answer_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the published one of gpt-oss."""
    changed("gpt_oss", monkeypatch, ("loop.index0 > ns.last_user", '(loop.last or messages[-1].role != "assistant")'))
    record = read([THINKING], "gpt_oss")
    written = own_text(record, "gpt_oss")
    assert written.index("Hm.") < written.index('{"query": "a"}') < written.index("Now.") < written.index("So.")


def test_a_thought_that_the_prompt_opens_and_the_template_does_not_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """As DeepSeek R1: the prompt ends with an open thought, and answers have none."""
    opening = '{{- "<|im_start|>assistant\\n" }}'
    changed("qwen2_5", monkeypatch, (opening, opening.replace("\\n", "\\n<think>\\n")))
    record = read([THINKING], "qwen2_5")
    written = own_text(record, "qwen2_5")
    assert written.startswith("Hm.\n</think>\n\n<tool_call>") and "<|im_end|>Now.\n</think>\n\nSo.<|im_end|>" in written
    with pytest.raises(DataError, match="add the thought"):
        read([PLAIN], "qwen2_5")


def test_a_call_that_can_be_read_is_written_as_the_template_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Firefunction: a blank before a marker that is no tag, and no closing marker."""
    changed("qwen2_5", monkeypatch, ("<tool_call>\\n", " functools["), ("\\n</tool_call>", "]"))
    assert own_text(read([PLAIN], "qwen2_5"), "qwen2_5").count(" functools[") == 1


def test_a_call_whose_quotes_the_template_does_not_escape_is_written_so_that_it_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the published template of LFM2.5."""
    escaped = r"""(value | replace("\\", "\\\\") | replace("'", "\\'") | replace("\n", "\\n"))"""
    changed("lfm2", monkeypatch, (escaped, "value"))
    arguments = {"query": 'What\'s "it"?'}
    record = read([answered(said("", tool_calls=[call(arguments)]))], "lfm2")
    assert record.tool_events[0].call.parameters == arguments
    assert "look(query='What\\'s \"it\"?')]<|tool_call_end|><|im_end|>" in own_text(record, "lfm2")
