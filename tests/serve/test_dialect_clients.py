"""The official clients as oracles: they know every parameter of the tables, and their models and streams read what is written."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any

import pytest
from dialect_answers import ANSWERS, answer, events, read

from midthought.serve.dialects import ANTHROPIC, CHAT, anthropic, chat
from midthought.serve.dialects.dialect import Effect, RequestError

ASKED: Any = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
KEY = {"api_key": "none", "max_retries": 0}
BROKEN = RequestError("internal error; see the server's log", status=500)


@pytest.fixture(scope="module")
def sdk():
    return pytest.importorskip("anthropic", reason="the dev extra is not installed")


@pytest.fixture(scope="module")
def openai():
    return pytest.importorskip("openai", reason="the dev extra is not installed")


@pytest.fixture(scope="module")
def server():
    """A server that replies with its `reply`, (status, bytes, content type), to every request."""

    class Reply(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, data, kind = self.server.reply  # type: ignore[attr-defined]
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Reply) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def url(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def replies(server: Any, found: bytes | dict[str, Any], status: int = 200) -> None:
    is_stream = isinstance(found, bytes)
    data = found if is_stream else json.dumps(found).encode()
    server.reply = status, data, "text/event-stream" if is_stream else "application/json"


# -- the tables ----------------------------------------------------------------------------------------------------


def test_the_table_of_chat_has_every_parameter_of_the_client(openai):
    from openai.types.chat import completion_create_params as theirs

    names = set(theirs.CompletionCreateParamsStreaming.__annotations__)
    assert names - chat.PARAMETERS.keys() == set()
    assert chat.PARAMETERS.keys() - names == {"top_k", "min_p", "return_token_ids"}


def test_the_table_of_messages_has_every_parameter_of_the_client(sdk):
    from anthropic.types import message_count_tokens_params, message_create_params

    names = set(message_create_params.MessageCreateParamsStreaming.__annotations__)
    counted = set(message_count_tokens_params.MessageCountTokensParams.__annotations__)
    assert (names | counted) - anthropic.PARAMETERS.keys() == set()
    assert anthropic.PARAMETERS.keys() - names <= {"temperature", "top_p", "top_k", "thread"}
    used = {name for name, effect in anthropic.PARAMETERS.items() if effect is Effect.USED}
    assert set(anthropic.CountRequest.model_fields) == counted & used


# -- chat ----------------------------------------------------------------------------------------------------------


def plain(message: Any) -> dict[str, Any]:
    """A client's object without what has no value, and without what its stream adds to calls."""
    found = json.loads(message.model_dump_json(exclude_none=True))
    for choice in found.get("choices", ()):
        for call in choice["message"].get("tool_calls", ()):
            call.pop("index", None)
    return found


@pytest.mark.parametrize("names", [*([name] for name in ANSWERS), ["two calls", "several thoughts"]], ids="+".join)
def test_openais_client_reads_chat(names, openai, server):
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    answers = [answer(**ANSWERS[name]) for name in names]
    fields = {"n": len(names), "stream_options": {"include_usage": True}}
    whole = read(CHAT, **fields).writer.whole(answers)
    ChatCompletion.model_validate_json(json.dumps(whole), strict=True)
    found = b"".join(events(read(CHAT, **fields, stream=True), *answers))
    *chunks, done = found.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    for chunk in chunks:
        ChatCompletionChunk.model_validate_json(chunk.removeprefix("data: "), strict=True)
    with openai.OpenAI(base_url=url(server), **KEY) as client:
        replies(server, whole)
        expected = plain(client.chat.completions.create(**ASKED))
        replies(server, found)
        try:
            with client.chat.completions.stream(**ASKED) as stream:
                final = stream.get_final_completion()
        except openai.LengthFinishReasonError as cut:  # the helper gives what it has read
            final = cut.completion
        streamed = plain(final)
    different = {name: expected[name] for name in ("id", "created")}
    assert streamed | different == expected
    num = 5 * len(names)
    assert expected["usage"] == {"prompt_tokens": 3, "completion_tokens": num, "total_tokens": 3 + num}


def test_openais_client_reads_errors_of_chat(openai, server):
    with openai.OpenAI(base_url=url(server), **KEY) as client:
        replies(server, CHAT.error(RequestError("too long", param="messages", code="context_length_exceeded")), 400)
        with pytest.raises(openai.BadRequestError, match="too long") as refused:
            client.chat.completions.create(**ASKED)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
        started = read(CHAT, stream=True).writer
        replies(server, started.begin(3) + started.piece(0, ANSWERS["text"]["pieces"][0]) + started.error(BROKEN))
        with pytest.raises(openai.APIError, match="internal error"):
            list(client.chat.completions.create(**ASKED, stream=True))


# -- messages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "thinking", [None, {"type": "enabled", "budget_tokens": 1024}], ids=["no thoughts", "thoughts"]
)
@pytest.mark.parametrize("name", ANSWERS)
def test_anthropics_client_reads_messages(name, thinking, sdk, server):
    from anthropic.types import Message, RawMessageStreamEvent
    from pydantic import TypeAdapter

    given = answer(**ANSWERS[name])
    asked = read(ANTHROPIC, thinking=thinking)
    whole = asked.writer.whole([given])
    Message.model_validate_json(json.dumps(whole), strict=True)
    streamed = read(ANTHROPIC, thinking=thinking, stream=True)
    found = b"".join(events(streamed, given))
    for text in found.decode().removesuffix("\n\n").split("\n\n"):
        head, data = text.split("\n")
        assert head.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
        if head != "event: ping":
            TypeAdapter(RawMessageStreamEvent).validate_json(data.removeprefix("data: "), strict=True)
    with sdk.Anthropic(base_url=url(server), **KEY) as client:
        replies(server, found)
        with client.messages.stream(**ASKED, max_tokens=9) as stream:
            final = plain(stream.get_final_message())
    expected = plain(Message.model_validate(whole))
    for message, writer in ((expected, asked), (final, streamed)):
        assert message.pop("id").startswith("msg_")
        for block in message["content"]:
            assert block.pop("signature", writer.requests[0].answer_id) == writer.requests[0].answer_id
    assert final == expected and final["usage"] == {"input_tokens": 3, "output_tokens": 5}
    reasons = {"cut": ("max_tokens", None), "a stop text": ("stop_sequence", "END")}
    reason = reasons.get(name, ("tool_use" if given.calls else "end_turn", None))
    assert (final["stop_reason"], final.get("stop_sequence")) == reason


KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "invalid_request_error", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error",
}  # fmt: skip


@pytest.mark.parametrize(("status", "kind"), KINDS.items())
def test_anthropics_client_reads_errors(status, kind, sdk, server):
    from anthropic.types.shared.error_response import ErrorResponse

    found = ANTHROPIC.error(RequestError("a reason", status=status))
    ErrorResponse.model_validate_json(json.dumps(found), strict=True)
    replies(server, found, status)
    with (
        sdk.Anthropic(base_url=url(server), **KEY) as client,
        pytest.raises(sdk.APIStatusError, match="a reason") as refused,
    ):
        client.messages.create(**ASKED, max_tokens=9)
    assert refused.value.status_code == status and refused.value.body["error"]["type"] == kind


def test_anthropics_client_reads_an_error_in_mid_stream(sdk, server):
    writer = read(ANTHROPIC, stream=True).writer
    replies(server, writer.begin(3) + writer.piece(0, ANSWERS["text"]["pieces"][0]) + writer.error(BROKEN))
    client, told = sdk.Anthropic(base_url=url(server), **KEY), pytest.raises(sdk.APIStatusError, match="internal error")
    with client, told, client.messages.stream(**ASKED, max_tokens=9) as stream:
        stream.get_final_message()


def test_what_the_clients_models_say_of_an_answer_is_read_again(sdk):
    from anthropic.types import Message

    given = answer(**ANSWERS["two calls"])
    message = Message.model_validate(read(ANTHROPIC, thinking={"type": "adaptive"}).writer.whole([given]))
    result = {"type": "tool_result", "content": "x", "is_error": True}
    results = [{**result, "tool_use_id": call.id} for call in given.calls]
    said = [{"role": "user", "content": "hi"}, message.to_param(), {"role": "user", "content": results}]
    data = json.dumps(said, default=lambda block: block.model_dump(mode="json"))
    found = read(ANTHROPIC, messages=json.loads(data)).requests[0].messages
    assert found[1]["content"] == given.content and [each["role"] for each in found[2:]] == ["tool", "tool"]
