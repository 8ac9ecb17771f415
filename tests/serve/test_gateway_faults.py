"""Faults of agents, frameworks and engines at the gateway: timeouts, retries of clients, errors in mid-stream, overflow."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

pytest.importorskip("fastapi", reason="the serve extra is not installed")
pytest.importorskip("openai", reason="the dev extra is not installed")

import openai
from held_engine import ANSWER, CHAT, MESSAGES, NAME, asks, place, until

from midthought.serve.dialects.anthropic import AnthropicDialect
from midthought.serve.dialects.chat import ChatDialect, ChatWriter

TEXT = ANSWER.removeprefix("</think> ")
ASK = {"model": NAME, "messages": [{"role": "user", "content": "hi"}]}
PATHS = pytest.mark.parametrize("path", [CHAT, MESSAGES])
STREAMS = pytest.mark.parametrize("stream", [False, True])


def openai_client(session, **options):
    return openai.OpenAI(base_url=session.client.base_url, api_key=session.client.api_key, **options)


@STREAMS
def test_the_clients_timeout_and_retry_get_one_answer(stream, one):
    session, one.engine.hold_after = one.open(), 0
    retries: list[str] = []

    def on_request(request: httpx.Request) -> None:
        retries.append(request.headers["x-stainless-retry-count"])
        if len(retries) == 2:
            one.engine.go.set()

    with httpx.Client(event_hooks={"request": [on_request]}) as transport:
        client = openai_client(session, max_retries=3, timeout=0.3, http_client=transport)
        answer = client.chat.completions.create(**ASK, stream=stream)
        pieces = [chunk.choices[0].delta for chunk in answer] if stream else [answer.choices[0].message]
    assert "".join(piece.content or "" for piece in pieces) == TEXT and retries == ["0", "1"]
    assert len(one.trained(session)) == len(one.engine.sampled) == 1
    assert session.counts["retried"] == 1 and session.counts["undelivered"] == 0


def test_the_client_does_not_repeat_a_request_to_a_closed_session(one):
    session = one.open()
    asyncio.run(session.close())
    asked: list[httpx.Request] = []
    with httpx.Client(event_hooks={"request": [asked.append]}) as transport:
        client = openai_client(session, max_retries=5, http_client=transport)
        with pytest.raises(openai.PermissionDeniedError, match="session is closed"):
            client.chat.completions.create(**ASK)
    assert len(asked) == 1


@PATHS
def test_an_engine_error_in_mid_stream_is_an_error_event(path, one):
    """As the clients read it: `test_dialect_clients.py`."""
    session, one.engine.hold_after, one.engine.fails_after = one.open(), 5, 6
    with one.client(session).stream("POST", path, json=asks(stream=True)) as response:
        assert response.status_code == 200
        until(lambda: one.engine.num_held == 1)
        one.engine.go.set()
        *_, name, data, _ = response.iter_lines()
    kinds = {CHAT: ("", "server_error"), MESSAGES: ("event: error", "api_error")}
    assert (name, json.loads(data[6:])["error"]["type"]) == kinds[path]
    assert "internal error" in data and "broke" not in data
    assert one.trained(session) == [] and "the engine broke" in session.failure


@PATHS
@STREAMS
def test_an_engine_error_before_the_first_event_has_its_status_and_a_retry_is_sampled_anew(path, stream, one):
    session, one.engine.fails_after = one.open(), 0
    response = one.client(session).post(path, json=asks(stream=stream))
    assert response.status_code == 500 and "internal error" in response.json()["error"]["message"]
    assert session.failure == "EngineError: the engine broke"
    one.engine.fails_after = None
    response = one.client(session).post(path, json=asks(stream=stream), headers={"x-stainless-retry-count": "1"})
    assert response.status_code == 200 and "answer." in response.text
    assert session.failure == "" and session.counts["failed"] == 1 and len(one.trained(session)) == 1


@PATHS
@STREAMS
def test_a_context_overflow_is_told_as_each_dialect_does_and_is_no_failure(path, stream):
    with place(max_seq_len=2_000) as found:
        session = found.open()
        response = found.client(session).post(path, json=asks("a" * 1_990, stream=stream))
        told = {CHAT: "this model's maximum context length is 2000 tokens", MESSAGES: "prompt is too long: 20"}
        assert response.status_code == 400 and response.json()["error"]["message"].startswith(told[path])
        assert session.failure == "" and found.trained(session) == []


@pytest.mark.parametrize(("stream", "name"), [(False, "whole"), (True, "piece"), (True, "end")])
def test_an_answer_that_cannot_be_written_is_a_failure_and_not_trained(stream, name, monkeypatch, one):
    def broken(*given):
        raise KeyError(name)

    session = one.open()
    monkeypatch.setattr(ChatWriter, name, broken)
    response = one.client(session).post(CHAT, json=asks(stream=stream))
    assert "internal error" in response.text and response.status_code == (200 if stream else 500)
    assert session.failure == f"KeyError: '{name}'" and one.trained(session) == []


@pytest.mark.parametrize(
    ("dialect", "name", "path"),
    [
        (ChatDialect, "read", CHAT),
        (AnthropicDialect, "read", MESSAGES),
        (AnthropicDialect, "read_count", f"{MESSAGES}/count_tokens"),
    ],
)
def test_a_failure_of_ours_while_a_request_is_read_is_one_of_the_session(dialect, name, path, monkeypatch, one):
    def broken(*given, **options):
        raise KeyError("ours")

    session, body = one.open(), asks()
    client = one.client(session)
    if name == "read_count":
        del body["max_tokens"]
    with monkeypatch.context() as patched:
        patched.setattr(dialect, name, broken)
        response = client.post(path, json=body)
    assert response.status_code == 500 and "ours" not in response.text
    assert session.failure == "KeyError: 'ours'" and session.counts["failed"] == 1
    assert client.post(path, json={**body, "model": "other"}).status_code == 404
    assert session.failure, "another request does not mend it"
    assert client.post(path, json=body).status_code == 200 and session.failure == ""


def test_an_engine_that_was_shut_down_is_a_failure_of_the_session(one):
    session = one.open()
    one.engine_shutdown()
    assert one.client(session).post(CHAT, json=asks()).status_code == 500
    assert "shut down" in session.failure and session.idle_seconds > 0
