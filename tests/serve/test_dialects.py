"""Requests of both dialects as one form of conversation, the effect of each parameter, and errors in the dialect's own form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dialect_answers import ANSWERS, CALLED, TOOLS, answer, body, events, read

from midthought.errors import DataError
from midthought.serve.chat_messages import chained
from midthought.serve.chat_policy import ContextOverflowError
from midthought.serve.dialects import ANTHROPIC, CHAT, dialect_of
from midthought.serve.dialects.dialect import Dialect, RequestError

HI = {"role": "user", "content": "hi"}
BOTH = pytest.mark.parametrize("dialect", [CHAT, ANTHROPIC], ids=lambda dialect: dialect.name)


def test_both_dialects_give_the_same_conversation():
    asked = {
        "role": "user",
        "content": [{"type": "text", "text": each, "cache_control": None} for each in ("Oslo", "?")],
    }
    call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
    signed = {"type": "thinking", "thinking": "I look.", "signature": "answer_1"}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}
    messages = [asked, {"role": "assistant", "content": [signed, call]}, {"role": "user", "content": [result]}]
    messages += [{"role": "assistant", "content": [{"type": "text", "text": "Rain.", "citations": None}]}, HI]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    found = read(ANTHROPIC, system=system, messages=messages, tools=TOOLS["anthropic"]).requests[0]
    thought = {"role": "assistant", "content": None, "reasoning_content": "I look.", "refusal": None}
    results = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    last = {"role": "assistant", "content": "Rain.", "refusal": None, "tool_calls": None}
    messages = [asked, {**thought, "tool_calls": [CALLED]}, results, last, HI]
    messages = [{"role": "system", "content": "Be brief."}, *messages]
    other = read(CHAT, messages=messages, tools=TOOLS["chat"]).requests[0]
    assert found.messages[2].pop("signature") == "answer_1"
    assert found.messages == other.messages and len(found.messages) == 6
    assert [tool.json_schema() for tool in found.tools] == [tool.json_schema() for tool in other.tools]


def test_the_same_second_request_of_every_client_continues_the_same_conversation():
    found = {}
    for line in (Path(__file__).parent / "client_requests.jsonl").read_text("utf-8").splitlines():
        sent = json.loads(line)
        asked = dialect_of(sent["path"]).read(json.dumps(sent["body"]).encode(), training=True, renderer=None)
        found[sent["client"]] = chained(asked.requests[0].messages, [])[-1]
        assert [tool.name for tool in asked.requests[0].tools] == ["add"], sent["client"]
    assert len(found) == 11 and len(set(found.values())) == 1, found


def test_results_of_parallel_calls_come_before_the_text_beside_them():
    calls = [{"type": "tool_use", "id": each, "name": "weather", "input": {}} for each in ("a", "b")]
    results = [{"type": "tool_result", "tool_use_id": "a"}, {"type": "tool_result", "tool_use_id": "b", "content": "2"}]
    found = read(ANTHROPIC, **said((*calls,), [*results, {"type": "text", "text": "c"}])).requests[0].messages
    assert [(each["role"], each["content"]) for each in found[2:]] == [("tool", ""), ("tool", "2"), ("user", "c")]


@pytest.mark.parametrize("system", [..., None, "", [], [{"type": "text", "text": ""}]])
def test_an_empty_system_prompt_is_none(system):
    assert read(ANTHROPIC, system=system).requests[0].messages == [HI]


@pytest.mark.parametrize(
    ("dialect", "fields", "overridden"),
    [
        (CHAT, {"temperature": 0.0, "seed": 0, "top_k": 5, "frequency_penalty": 0.5}, "temperature top_k seed frequency_penalty"),
        (CHAT, {"frequency_penalty": 0, "parallel_tool_calls": True, "logit_bias": {}, "top_p": None}, ""),
        (CHAT, {"parallel_tool_calls": False, "logit_bias": {"5": -100}}, "logit_bias parallel_tool_calls"),
        (ANTHROPIC, {"temperature": 0, "top_k": 5}, "temperature top_k"),
        (ANTHROPIC, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "disable_parallel_tool_use"),
    ],
)  # fmt: skip
def test_training_overrides_sampling_parameters_and_says_which(dialect, fields, overridden):
    asked = read(dialect, **fields)
    assert list(asked.overridden) == overridden.split()
    assert asked.requests[0].sampling == {} and asked.requests[0].seed is None


def test_the_endpoint_uses_what_training_overrides():
    requests = read(CHAT, training=False, temperature=0.5, top_k=-1, seed=7, n=2).requests
    assert [request.seed for request in requests] == [7, 8]
    assert requests[0].sampling == {"temperature": 0.5, "top_k": 0}
    (request,) = read(ANTHROPIC, training=False, temperature=1, top_p=0.5).requests
    assert request.sampling == {"temperature": 1, "top_p": 0.5}


@BOTH
def test_limits_and_stop_texts_are_honoured(dialect):
    fields = {"stop": "END"} if dialect is CHAT else {"stop_sequences": ["END"]}
    (request,) = read(dialect, max_tokens=128_000, **fields).requests
    assert (request.max_tokens, list(request.stop)) == (128_000, ["END"])


@pytest.mark.parametrize(
    ("dialect", "choice", "required"),
    [
        (CHAT, "auto", None),
        (CHAT, "required", ""),
        (CHAT, {"type": "function", "function": {"name": "weather"}}, "weather"),
        (ANTHROPIC, {"type": "auto"}, None),
        (ANTHROPIC, {"type": "any"}, ""),
        (ANTHROPIC, {"type": "tool", "name": "weather"}, "weather"),
    ],
)  # fmt: skip
def test_a_required_tool_is_reported_in_training_and_refused_by_the_endpoint(dialect, choice, required):
    fields = {"tools": TOOLS[dialect.name], "tool_choice": choice}
    asked = read(dialect, **fields)
    assert asked.required_tool == required and [tool.name for tool in asked.requests[0].tools] == ["weather"]
    if required is not None:
        with pytest.raises(RequestError, match=r"'tool_choice' with the value .* is not supported; leave it out"):
            read(dialect, training=False, **fields)


def test_half_a_surrogate_pair_in_a_schema_is_a_question_mark():
    schema = {"properties": {"a": {"description": "\ud800"}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    (request,) = read(CHAT, response_format=form).requests
    assert request.messages[0]["content"].endswith('{"properties": {"a": {"description": "?"}}}')
    asked = read(ANTHROPIC, tools=[{"name": "look", "description": "\udfff", "input_schema": schema}])
    (tool,) = asked.requests[0].tools
    assert (tool.description, [each.description for each in tool.parameters]) == ("?", ["?"])


def test_a_choice_of_no_tool_hides_the_tools():
    assert not read(CHAT, tools=TOOLS["chat"], tool_choice="none").requests[0].tools
    assert not read(ANTHROPIC, tools=TOOLS["anthropic"], tool_choice={"type": "none"}).requests[0].tools


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}}),
        (CHAT, {"response_format": {"type": "json_object"}}),
        (ANTHROPIC, {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}}),
    ],
)  # fmt: skip
def test_a_response_format_is_text_of_the_system_message(dialect, fields):
    asked = read(dialect, **fields)
    first, second = asked.requests[0].messages
    assert asked.has_response_format and second == HI and first["role"] == "system"
    assert "JSON only" in first["content"] and ('{"type": "object"}' in first["content"]) == ("schema" in str(fields))
    with pytest.raises(RequestError, match="is not supported; leave it out"):
        read(dialect, training=False, **fields)
    assert not read(CHAT, training=False, response_format={"type": "text", "json_schema": None}).has_response_format


USE = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
CALLS_IT = {"role": "assistant", "tool_calls": [CALLED]}
RESULT = {"type": "tool_result", "tool_use_id": "b"}
DEEP = json.loads('{"a":' * 150 + "1" + "}" * 150)


def said(*messages: Any) -> dict[str, Any]:
    """A conversation; a list is the content of a message of the user, a tuple that of an answer."""
    roles = {list: "user", tuple: "assistant"}
    given = [{"role": roles[type(m)], "content": m} if type(m) in roles else m for m in messages]
    return {"messages": [HI, *given]}


@pytest.mark.parametrize(
    ("dialect", "fields", "told"),
    [
        (ANTHROPIC, {"max_tokens": ...}, "'max_tokens' is missing"),
        (ANTHROPIC, {"max_tokens": "5"}, "max_tokens: Input should be a valid integer"),
        (ANTHROPIC, {"n": 2}, "'n' is not supported; leave it out"),
        (ANTHROPIC, {"container": "c"}, "'container' is not supported; leave it out"),
        (ANTHROPIC, {"messages": [{"role": "tool", "content": "5"}]}, "messages.0.role: Input should be 'system'"),
        (ANTHROPIC, said([{"type": "image"}]), "'image'"),
        (ANTHROPIC, said(({"type": "redacted_thinking"},)), "redacted_thinking"),
        (ANTHROPIC, said({"role": "assistant", "content": "It is ("}), "the last message must be of the user"),
        (ANTHROPIC, said([{"type": "text", "text": ""}, USE]), r"^messages\.1\.content\.1 is .*assistant' thinking and tool_use"),
        (ANTHROPIC, said((USE,), HI), r"^the calls of messages\.1 have no result before messages\.2: \['a'\]"),
        (ANTHROPIC, said((USE,), [RESULT]), r"^messages\.2\.content\.0 has the result of 'b'"),
        (ANTHROPIC, said((USE,), [{**RESULT, "content": [USE]}]), r"^messages\.2\.content\.0\.content\.0 is \{'type'"),
        (ANTHROPIC, said(({**USE, "name": "a b"},), [RESULT]), r"^messages\.1 calls the tool 'a b'"),
        (ANTHROPIC, said(({**USE, "input": DEEP},)), "levels deep"),
        (ANTHROPIC, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type: Input should be 'custom'"),
        (ANTHROPIC, {"tools": [{"name": "a b", "input_schema": {}}]}, "'a b': a name has"),
        (ANTHROPIC, {"tool_choice": {"type": "all"}}, "tool_choice.type: Input should be 'auto'"),
        (ANTHROPIC, {"tool_choice": {"type": "tool"}}, "'tool_choice.name' is missing"),
        (ANTHROPIC, {"system": [{"type": "image"}]}, r"^system\.0 is "),
        (CHAT, {"tool_choice": {"type": "function", "function": {"name": ""}}}, r"^tool_choice\."),
        (CHAT, {"audio": {}}, "'audio' is not supported; leave it out"),
        (CHAT, {"max_tokens": True}, "max_tokens: Input should be a valid integer"),
        (CHAT, {"modalities": ["audio"]}, "modalities.0"),
        (CHAT, said(CALLS_IT, HI), r"^the calls of messages\.1 have no result before messages\.2: \['call_1'\]"),
        (CHAT, said(HI, {**HI, "content": [{"type": "image_url"}], "place": "messages.0"}), r"^the content of messages\.2 is \["),
    ],
)  # fmt: skip
@pytest.mark.parametrize("training", [False, True])
def test_a_wrong_request_is_refused_with_one_sentence_that_names_its_place(dialect, fields, told, training):
    system = {"system": "Be brief."} if dialect is ANTHROPIC else {}
    with pytest.raises(DataError, match=told):
        read(dialect, training=training, **{**system, **fields})


@BOTH
@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(dialect, data):
    with pytest.raises(RequestError, match=r"the body (is missing|is not JSON|must be a JSON object)") as refused:
        dialect.read(data, training=True, renderer=None)
    assert refused.value.param is None and ("missing" in str(refused.value)) == (not data)


@BOTH
def test_parameters_without_effect_may_have_any_value_and_null_is_no_value(dialect):
    asked = read(dialect, metadata={"a": 1}, service_tier="auto", stop=None if dialect is CHAT else ..., tools=None)
    (request,) = asked.requests
    assert not (asked.overridden or request.sampling or request.stop or request.tools)


def told(dialect: Dialect, error: BaseException) -> dict[str, Any]:
    failure = dialect.failure(error)
    return dialect.error(failure)["error"] | {"status": failure.status}


@pytest.mark.parametrize("num", [12_345, None])
def test_a_conversation_that_is_too_long_is_refused_in_the_words_that_clients_look_for(num):
    chat, anthropic = (told(dialect, ContextOverflowError(num, 4096)) for dialect in (CHAT, ANTHROPIC))
    assert chat["message"].startswith("this model's maximum context length is 4096 tokens")
    assert (chat["status"], chat["code"]) == (400, "context_length_exceeded")
    assert anthropic["message"] == f"prompt is too long: {num or 'more than 4096'} tokens > 4096 maximum"
    assert (anthropic["status"], anthropic["type"]) == (400, "invalid_request_error")


@BOTH
def test_an_error_of_the_server_does_not_say_its_details(dialect):
    found = told(dialect, ValueError("a secret"))
    assert found["status"] == 500 and "secret" not in str(found)
    assert found["type"] == ("server_error" if dialect is CHAT else "api_error")


def test_conversations_that_the_server_is_to_keep_are_refused_with_the_code_that_the_client_looks_for():
    with pytest.raises(RequestError) as refused:
        read(ANTHROPIC, thread={"type": "create"})
    details = told(ANTHROPIC, refused.value)["details"]
    assert details == {"error_code": "thread_unsupported_request", "unsupported": []}


def test_thoughts_are_sent_to_the_clients_of_anthropic_that_ask_for_them():
    given = answer(**ANSWERS["several thoughts"])
    wanted = ((None, ["text"]), ({"type": "disabled"}, ["text"]), ({"type": "adaptive"}, ["thinking", "text"] * 2))
    for thinking, kinds in wanted:
        asked = read(ANTHROPIC, thinking=thinking)
        blocks = asked.writer.whole([given])["content"]
        assert [block["type"] for block in blocks] == kinds
        assert "".join(block.get("text", "") for block in blocks) == given.content
        signatures = {block["signature"] for block in blocks if block["type"] == "thinking"}
        assert signatures <= {asked.requests[0].answer_id} and asked.requests[0].answer_id
        assert ("thinking" in str(events(read(ANTHROPIC, thinking=thinking), given))) == (len(kinds) > 1)


@BOTH
def test_what_a_client_sends_back_is_the_answer_that_it_got(dialect):
    for fields in ANSWERS.values():
        given = answer(**fields)
        whole = read(dialect, thinking={"type": "enabled"} if dialect is ANTHROPIC else ...).writer.whole([given])
        message = whole if dialect is ANTHROPIC else whole["choices"][0]["message"]
        results: list[Any] = [{"role": "tool", "tool_call_id": call.id, "content": "x"} for call in given.calls]
        if dialect is ANTHROPIC:
            message = {"role": "assistant", "content": message["content"]}
            results = [[{"type": "tool_result", "tool_use_id": call.id} for call in given.calls]]
        found = read(dialect, **said(message, *(results if given.calls else [HI]))).requests[0].messages[1]
        assert found["content"] == given.content and found.get("reasoning_content", "") == given.thoughts
        assert [call["id"] for call in found.get("tool_calls", [])] == [call.id for call in given.calls]
        assert chained([HI, found], []) == chained([HI, given.message()], [])


def test_the_path_and_the_header_say_the_dialect():
    assert dialect_of("/v1/messages/count_tokens") is ANTHROPIC and dialect_of("/v1/chat/completions") is CHAT
    assert dialect_of("/v1/models", {"anthropic-version": "2023-06-01"}) is ANTHROPIC
    assert dialect_of("/v1/models") is CHAT


def test_counting_tokens_needs_no_limit():
    asked = ANTHROPIC.read_count(body(ANTHROPIC, max_tokens=..., system="Be brief."), training=True)
    assert [each["role"] for each in asked.requests[0].messages] == ["system", "user"]
