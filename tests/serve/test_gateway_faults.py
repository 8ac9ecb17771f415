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

from midthought.serve.dialects import ANTHROPIC
from midthought.serve.dialects import CHAT as CHAT_DIALECT
from midthought.serve.dialects.chat import ChatWriter

TEXT = ANSWER.removeprefix("</think> ")
ASK = {"model": NAME, "messages": [{"role": "user", "content": "hi"}]}
PATHS = pytest.mark.parametrize("path", [CHAT, MESSAGES])


def openai_client(session, **options):
    return openai.OpenAI(base_url=session.client.base_url, api_key=session.client.api_key, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_the_clients_timeout_and_retry_get_one_answer(stream):
    with place() as found:
        session = found.open()
        found.engine.hold_after = 0
        retries: list[str] = []

        def on_request(request: httpx.Request) -> None:
            retries.append(request.headers["x-stainless-retry-count"])
            if len(retries) == 2:
                found.engine.go.set()

        with httpx.Client(event_hooks={"request": [on_request]}) as transport:
            client = openai_client(session, max_retries=3, timeout=0.3, http_client=transport)
            answer = client.chat.completions.create(**ASK, stream=stream)
            text = (
                "".join(chunk.choices[0].delta.content or "" for chunk in answer)
                if stream
                else answer.choices[0].message.content
            )
        assert text == TEXT and retries == ["0", "1"]
        assert len(found.trained(session)) == len(found.engine.sampled) == 1
        assert session.counts["retried"] == 1 and session.counts["undelivered"] == 0


def test_the_client_does_not_repeat_a_request_to_a_closed_session():
    with place() as found:
        session = found.open()
        asyncio.run(session.close())
        asked: list[httpx.Request] = []
        with httpx.Client(event_hooks={"request": [asked.append]}) as transport:
            client = openai_client(session, max_retries=5, http_client=transport)
            with pytest.raises(openai.PermissionDeniedError, match="session is closed"):
                client.chat.completions.create(**ASK)
        assert len(asked) == 1


def test_an_engine_error_in_mid_stream_is_an_error_of_the_openai_client():
    with place() as found:
        session = found.open()
        found.engine.hold_after, found.engine.fails_after = 5, 6
        stream = iter(openai_client(session).chat.completions.create(**ASK, stream=True))
        next(stream)
        found.engine.go.set()
        with pytest.raises(openai.APIError, match="internal error"):
            list(stream)
        assert found.trained(session) == [] and "the engine broke" in session.failure


def test_an_engine_error_in_mid_stream_is_an_error_event_of_anthropics():
    with place() as found:
        session = found.open()
        found.engine.hold_after, found.engine.fails_after = 5, 6
        with found.client(session).stream("POST", MESSAGES, json=asks(stream=True)) as response:
            assert response.status_code == 200
            until(lambda: found.engine.num_held == 1)
            found.engine.go.set()
            *_, name, data, _ = response.iter_lines()
        assert name == "event: error" and json.loads(data[6:])["error"]["type"] == "api_error"
        assert "broke" not in data and found.trained(session) == [] and "the engine broke" in session.failure


@PATHS
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_error_before_the_first_event_has_its_status(path, stream):
    with place() as found:
        session = found.open()
        found.engine.fails_after = 0
        response = found.client(session).post(path, json=asks(stream=stream))
        assert response.status_code == 500 and "internal error" in response.json()["error"]["message"]
        assert session.failure == "EngineError: the engine broke"


@PATHS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num", [1_990, 100_000])
def test_a_context_overflow_is_told_as_each_dialect_does(path, stream, num):
    with place(max_seq_len=2_000) as found:
        session = found.open()
        response = found.client(session).post(path, json=asks("a" * num, stream=stream))
        assert response.status_code == 400
        error = response.json()["error"]
        if path == CHAT:
            assert error["code"] == "context_length_exceeded"
            assert "this model's maximum context length is 2000 tokens" in error["message"]
        else:
            assert error["type"] == "invalid_request_error" and error["message"].startswith("prompt is too long:")
            assert "> 2000 maximum" in error["message"]
        assert session.failure == "" and found.trained(session) == []


@pytest.mark.parametrize(("stream", "name"), [(False, "whole"), (True, "piece"), (True, "end")])
def test_an_answer_that_cannot_be_written_is_a_failure_and_not_trained(stream, name, monkeypatch):
    def broken(*given):
        raise KeyError(name)

    with place() as one:
        session = one.open()
        monkeypatch.setattr(ChatWriter, name, broken)
        response = one.client(session).post(CHAT, json=asks(stream=stream))
        assert "internal error" in response.text and response.status_code == (200 if stream else 500)
        assert session.failure == f"KeyError: '{name}'" and one.trained(session) == []


@pytest.mark.parametrize(
    ("dialect", "name", "path"),
    [
        (CHAT_DIALECT, "read", CHAT),
        (ANTHROPIC, "read", MESSAGES),
        (ANTHROPIC, "read_count", f"{MESSAGES}/count_tokens"),
    ],
)
def test_a_failure_of_ours_while_a_request_is_read_is_one_of_the_session(dialect, name, path, monkeypatch):
    def broken(*given, **options):
        raise KeyError("ours")

    with place() as one:
        session = one.open()
        client, body = one.client(session), asks()
        if name == "read_count":
            del body["max_tokens"]
        with monkeypatch.context() as patched:
            patched.setattr(type(dialect), name, broken)
            response = client.post(path, json=body)
        assert response.status_code == 500 and "ours" not in response.text
        assert session.failure == "KeyError: 'ours'" and session.counts["failed"] == 1
        assert client.post(path, json={**body, "model": "other"}).status_code == 404
        assert session.failure, "another request does not mend it"
        assert client.post(path, json=body).status_code == 200 and session.failure == ""


def test_an_engine_that_was_shut_down_is_a_failure_of_the_session():
    with place() as found:
        session = found.open()
        found.engine_shutdown()
        assert found.client(session).post(CHAT, json=asks()).status_code == 500
        assert "shut down" in session.failure and session.idle_seconds > 0
