"""Requests that would hold up or break `midthought serve`, each refused with a reason: endless texts, deep JSON, two lengths."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the serve extra is not installed")

from endpoints import scripted, served
from served import request

NAME = "run"
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
BOTH = pytest.mark.parametrize("path", [CHAT, MESSAGES])
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def address():
    engine, policy = scripted(lambda: "</think> Hello.", max_seq_len=2000)
    with served(engine, policy, NAME) as url:
        yield url.split("/")[2]


def ask(address: str, body: bytes | dict[str, Any], path: str = CHAT, **headers: str) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps({"model": NAME, "max_tokens": 5, **body}).encode()
    status, _, reply = request(address, path, data, **headers)
    found = json.loads(reply)
    assert (found.get("type") in ("error", "message")) == (path == MESSAGES)
    return status, found


def tool(parameters: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "look", "parameters": parameters, **fields}}]


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [*HI, answer, {"role": "tool", "tool_call_id": "a", "content": "y"}]


def used(given: Any, result: Any = "y") -> list[dict[str, Any]]:
    uses = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": given}]}
    results = [{"type": "tool_result", "tool_use_id": "a", "content": result}]
    return [*HI, uses, {"role": "user", "content": results}]


def says(content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


TOLD = {
    CHAT: ("a sequence may have 2000", "code", "context_length_exceeded"),
    MESSAGES: ("> 2000 maximum", "type", "invalid_request_error"),
}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, says("a" * 8_000_000)),
        (CHAT, says("a b " * 2_000_000)),
        (CHAT, says("</think>" * 1_000_000)),
        (CHAT, {"messages": [{"role": "user", "content": "a b " * 300}] * 4000}),
        (CHAT, {"messages": [*HI, {"role": "assistant", "content": "a", "reasoning_content": "a " * 9999}, *HI]}),
        (CHAT, says("hi", tools=tool({}, description="x " * 1_000_000))),
        (CHAT, {"messages": called(json.dumps({"a": "b " * 100_000}))}),
        (MESSAGES, says("a" * 8_000_000)),
        (MESSAGES, says([{"type": "text", "text": "a b " * 200}] * 8_000)),
        (MESSAGES, says("hi", system="</think>" * 900_000)),
        (MESSAGES, {"messages": used({}, "a " * 2_000_000)}),
        (MESSAGES, {"messages": used({"a": "b " * 100_000})}),
        (MESSAGES, says("hi", tools=[{"name": "look", "description": "x " * 1_000_000, "input_schema": {}}])),
    ],
)
def test_a_conversation_without_end_is_refused_before_it_is_encoded(path, asked, address):
    status, found = ask(address, asked, path)
    words, name, value = TOLD[path]
    assert status == 400 and words in found["error"]["message"] and found["error"][name] == value, found


@BOTH
@pytest.mark.parametrize("asked", [says("a" * 1900), says("hi", metadata=nested(300))])
def test_a_conversation_that_just_fits_and_what_is_ignored_are_answered(path, asked, address):
    assert ask(address, asked, path)[0] == 200


MANY = {"properties": {f"p{n}": {"type": "string"} for n in range(100_000)}}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, {"messages": called('{"a":' + "[" * 3000 + "]" * 3000 + "}")}),
        (CHAT, {"messages": called(json.dumps(nested(300)))}),
        (CHAT, {"messages": called(nested(200))}),
        (CHAT, says("hi", tools=tool(nested(200)))),
        (CHAT, says("hi", tools=tool(MANY))),
        (MESSAGES, {"messages": used(nested(200))}),
        (MESSAGES, {"messages": used({}, nested(200))}),
        (MESSAGES, says([nested(200)])),
        (MESSAGES, says("hi", tools=[{"name": "look", "input_schema": nested(200)}])),
        (MESSAGES, says("hi", tools=[{"name": "look", "input_schema": MANY}])),
    ],
)
def test_deep_arguments_and_large_schemas_are_refused(path, asked, address):
    status, found = ask(address, asked, path)
    reasons = ("levels deep", "a JSON object", "characters of JSON")
    assert status == 400 and any(words in found["error"]["message"] for words in reasons), found


@BOTH
def test_a_client_that_sends_too_much_reads_why(path, address):
    status, found = ask(address, b" " * 12_000_000, path)
    assert status == 413 and "8,388,608 bytes" in found["error"]["message"]
    assert ask(address, b"{}", path, Expect="100-continue", **{"Content-Length": "99999999"})[0] == 413


def test_a_request_with_two_lengths_is_refused_and_the_connection_closed(address):
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode() + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while piece := connection.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 400") and received.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"max_tokens": 10**400}, "max_tokens"),
        ({"top_k": 2**63}, "top_k"),
        ({"messages": [{**HI[0], "tool_calls": 5}]}, "messages.0"),
        ({"messages": [*HI, {"role": "assistant", "tool_calls": [{"id": []}]}, {"role": "tool"}]}, "messages.1"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "must be text"),
        ({"tools": tool({"properties": {"a": {"enum": 5}}})}, "'enum'"),
        ({"tools": tool({"properties": {"a": "string"}})}, "'a' in 'properties' is 'string'"),
        ({"tools": tool({"properties": {"a": {}}, "required": None})}, "'required'"),
        ({"tools": tool({"properties": {"a": {"items": {"type": 5}}}})}, "'type'"),
        ({"tools": tool({"properties": {"a": {"anyOf": 5}}})}, "'anyOf' is 5"),
        ({"tools": tool({"properties": {"a": {"type": ["string", None]}}})}, "'type' is ['string', None]"),
        ({"tools": tool({"anyOf": [{"properties": {"type": {"properties": []}}}]})}, "'properties'"),
    ],
)
def test_a_value_that_means_nothing_is_named(asked, named, address):
    status, found = ask(address, {"messages": HI, **asked})
    assert status == 400 and named in found["error"]["message"], found


def test_names_of_parameters_and_data_in_a_schema_are_no_keywords(address):
    data = {"enum": [{"type": 5}], "default": {"required": 5}, "const": {"enum": 5}}
    schema = {"properties": {"type": {"type": "string"}, "enum": {}, "required": data}, "required": ["type"]}
    assert ask(address, {"messages": HI, "tools": tool(schema)})[0] == 200
