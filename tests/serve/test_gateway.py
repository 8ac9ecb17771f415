"""The gateway over HTTP: delivery, retries, disconnects, sessions with their keys, rewards and limits, weight changes, faults."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib
import ipaddress
import json
import re
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="the serve extra is not installed")

from dialect_answers import TOOLS as TOOLS_OF_DIALECTS
from held_engine import ANSWER, CHAT, MESSAGES, NAME, answers_with, asks, events, place, streamed_text, texts, until

from midthought.config import InferenceConfig
from midthought.serve import exchange as exchange_module
from midthought.serve.dialects.anthropic import AnthropicDialect
from midthought.serve.dialects.chat import ChatDialect, ChatWriter
from midthought.serve.gateway import Gateway
from midthought.serve.sessions import Session
from midthought.tools.parsers import find_call_format
from midthought.types import Task, Trajectory

TEXT = ANSWER.removeprefix("</think> ")
TOOLS = {
    **TOOLS_OF_DIALECTS,
    "openai": [{"type": "function", "function": {**TOOLS_OF_DIALECTS["chat"][0]["function"], "strict": True}}],
}
RETRIED = {"x-stainless-retry-count": "1"}
PATHS = pytest.mark.parametrize("path", [CHAT, MESSAGES])
STREAMS = pytest.mark.parametrize("stream", [False, True])
ASK = {"model": NAME, "messages": [{"role": "user", "content": "hi"}]}
EVERY_PATH = pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/session/reward"])


def client_of(sdk: str, session: Session, **options: Any) -> Any:
    """The official client of OpenAI or Anthropic."""
    found, client = pytest.importorskip(sdk, reason="the dev extra is not installed"), session.client
    made, url = (found.OpenAI, client.base_url) if sdk == "openai" else (found.Anthropic, client.anthropic_base_url)
    return made(base_url=url, api_key=client.api_key, **options)


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["message"]


def leave_after_first_event(client: httpx.Client, path: str, **fields: Any) -> None:
    """Reads the first event of a stream, and closes the connection."""
    with client.stream("POST", path, json=asks(stream=True, **fields)) as response:
        next(line for line in response.iter_lines() if line.startswith("data: {"))


# -- delivery ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "mark"), [(CHAT, '"finish_reason": "stop"'), (MESSAGES, '"stop_reason": "end_turn"')])
def test_a_client_that_stops_reading_at_the_reason_of_the_end_has_the_answer(path, mark, one):
    def ask(number: int) -> int:
        session = one.open()
        with one.client(session).stream("POST", path, json=asks(stream=True)) as response:
            assert any(mark in line for line in response.iter_lines())
        return len(one.trained(session))

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(48))) == [1] * 48


@PATHS
def test_events_leave_as_the_answer_is_sampled(path, one):
    one.engine.hold_after, said = 5, ""
    with one.client(one.open()).stream("POST", path, json=asks(stream=True)) as response:
        texts = (streamed_text([json.loads(line[6:])]) for line in _data(response))
        for num_tokens in (7, 9, 11):
            while said != TEXT[: one.engine.hold_after - 2]:  # after the tokens of </think> and of the blank
                said += next(texts)
            one.engine.hold_after = num_tokens
        one.engine.go.set()
        assert said + "".join(texts) == TEXT


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_the_helpers_of_the_clients_read_a_slow_answer_that_is_a_call_alone(sdk, monkeypatch):
    """Its text may become a call until it ends, so nothing of it can be sent; the stream begins anyway."""
    monkeypatch.setattr(exchange_module, "KEEP_ALIVE_SECONDS", 0.02)
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    with place(answers_with(call)) as one:
        one.policy = dataclasses.replace(one.policy, call_format=find_call_format("hermes"))
        client, one.engine.hold_after = client_of(sdk, one.open()), 10
        said = client.chat.completions if sdk == "openai" else client.messages
        with said.stream(**asks(), tools=TOOLS[sdk]) as stream:
            first = next(iter(stream))
            until(lambda: one.engine.num_held == 1)
            assert not one.engine.sampled
            one.engine.go.set()
            if sdk == "openai":
                (choice,) = stream.get_final_completion().choices
                assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Oslo"}
                assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
            else:
                final = stream.get_final_message()
                assert [block.input for block in final.content] == [{"city": "Oslo"}]
                assert final.stop_reason == "tool_use"
                begun = first.message.usage
                assert (begun.input_tokens, begun.output_tokens) == (final.usage.input_tokens, 0) != (0, 0)


@PATHS
def test_a_slow_answer_is_kept_alive(path, one, monkeypatch):
    monkeypatch.setattr(exchange_module, "KEEP_ALIVE_SECONDS", 0.02)
    one.engine.hold_after = 0
    with one.client(one.open()).stream("POST", path, json=asks(stream=True)) as response:
        found = [json.loads(line[6:]) for line, _ in zip(_data(response), range(6), strict=False)]
        assert streamed_text(found) == "" and not one.engine.sampled
        kinds = {each.get("type", "chunk") for each in found[2:]}
        assert kinds == ({"chunk"} if path == CHAT else {"ping"})


def _data(response: httpx.Response):
    return (line for line in response.iter_lines() if line.startswith("data: {"))


def test_a_request_without_a_stream_waits_for_a_slow_answer(one, monkeypatch):
    monkeypatch.setattr(exchange_module, "KEEP_ALIVE_SECONDS", 0.01)
    one.engine.hold_after = 3
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.client(one.open()).post, CHAT, json=asks())
        until(lambda: one.engine.num_held == 1)
        threading.Event().wait(0.05)
        one.engine.go.set()
        assert texts(waiting.result()) == [TEXT]


@PATHS
def test_a_client_cannot_have_longer_answers_than_the_run_allows(path):
    with place(answers_with("</think>" + "a" * 300), inference=InferenceConfig(max_tokens=40)) as one:
        session = one.open()
        assert one.client(session).post(path, json=asks(max_tokens=200)).status_code == 200
        (node,) = one.trained(session)
    assert (len(one.engine.sampled[0]), node.finish) == (40, "length")


# -- retries -----------------------------------------------------------------------------------------------------


def test_a_marked_retry_with_another_body_is_another_request(one):
    session = one.open()
    client = one.client(session)
    client.post(CHAT, json=asks())
    client.post(CHAT, json=asks("other"), headers=RETRIED)
    client.post(MESSAGES, json=asks(), headers=RETRIED)
    assert len(one.trained(session)) == 3


def test_an_answer_that_ended_within_the_grace_time_is_found_after_it():
    with place(grace_seconds=0.5) as one:
        session, one.engine.hold_after = one.open(), 5
        while session.counts["answers"] < 1:  # on a busy machine the answer may be cancelled before it ends
            one.engine.go.clear()
            leave_after_first_event(one.client(session), CHAT)
            one.engine.go.set()
            until(lambda: session.idle_seconds > 0)
        threading.Event().wait(0.6)
        response = one.client(session).post(CHAT, json=asks(stream=True))
        assert texts(response) == [TEXT] and len(one.trained(session)) == len(one.engine.sampled) == 1


def test_two_lost_requests_with_one_body_get_an_answer_each(one):
    session = one.open()
    one.engine.hold_after = 5
    clients = [one.client(session) for _ in range(2)]
    streams = [client.send(_stream(client), stream=True) for client in clients]
    until(lambda: one.engine.num_held == 2)
    for each in streams:
        each.close()
    one.engine.go.set()
    until(lambda: session.counts["answers"] == 2)
    ids = {events(one.client(session).send(_stream(clients[0], **RETRIED)))[0]["id"] for _ in range(2)}
    assert len(ids) == len(one.trained(session)) == len(one.engine.sampled) == 2


def _stream(client: httpx.Client, **headers: str) -> httpx.Request:
    return client.build_request("POST", CHAT, json=asks(stream=True), headers=headers)


# -- disconnects -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_continued", [False, True])
def test_an_answer_that_nobody_received_is_not_trained_unless_it_is_continued(is_continued, one):
    session, one.engine.hold_after = one.open(), 5
    leave_after_first_event(one.client(session), CHAT)
    one.engine.go.set()
    until(lambda: session.counts["answers"] == 1)
    if is_continued:
        one.client(session).post(CHAT, json=goes_on("hi"))
    assert len(one.trained(session)) == 2 * is_continued
    assert session.counts["undelivered"] == (not is_continued)


def goes_on(text: str) -> dict[str, Any]:
    """Continues the conversation that began with this text."""
    said = [{"role": "assistant", "content": TEXT}, {"role": "user", "content": "go on"}]
    return asks(messages=[{"role": "user", "content": text}, *said])


# -- sessions ----------------------------------------------------------------------------------------------------


@EVERY_PATH
def test_a_closed_session_refuses_without_a_retry(path, one):
    session = one.open()
    asyncio.run(session.close())
    for control in (False, True):
        response = one.client(session, control=control).post(path, json=asks())
        assert error_of(response) == (403, "this session is closed; each episode has its own key, client.api_key")
        assert response.headers["x-should-retry"] == "false"
    assert session.reward is None


@pytest.mark.parametrize("closed", ["the session", "the gateway"])
def test_closing_ends_answers_in_silence_and_delivers_nothing(closed, one, capfd, caplog):
    session, one.engine.hold_after = one.open(), 5
    with one.client(session).stream("POST", CHAT, json=asks(stream=True)) as response:
        lines = _data(response)
        next(lines)
        if closed == "the session":
            assert one.client(session, control=True).post("/v1/session/close").json() == {"closed": True}
        else:
            one.gateway.close()
        assert one.engine.num_held == 0
        assert "session is closed" in json.loads(list(lines)[-1][6:])["error"]["message"]
    assert one.trained(session) == [] and session.counts["undelivered"] == 1
    assert capfd.readouterr().err == "" and not [each for each in caplog.records if each.levelname == "ERROR"]


@EVERY_PATH
def test_keys_of_others_are_unknown(path, one):
    session = one.open()
    url = session.client.anthropic_base_url
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": session.client.api_key + "x"}):
        response = httpx.post(url + path, json=asks(), headers=headers)
        assert response.status_code == 401 and "missing or is none of this" in response.json()["error"]["message"]
    ours, other = session.client.api_key, "sk-of-another-service"
    for api_key, bearer in ((ours, ""), (ours, f"Bearer {other}"), (other, f"Bearer {ours}")):
        headers = {"x-api-key": api_key, "Authorization": bearer}
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200
        assert httpx.post(f"{url}/v1/session/close", json={}, headers=headers).status_code == 403
    assert one.engine.sampled == []


def test_the_key_of_another_session_neither_continues_nor_repeats_its_answers(one):
    sessions = [one.open(seed) for seed in range(2)]
    first, second = map(one.client, sessions)
    secret = first.post(CHAT, json=asks("a secret")).json()
    second.post(CHAT, json=goes_on("a secret"))
    assert [session.counts["continued"] for session in sessions] == [0, 0]
    assert second.post(CHAT, json=asks("a secret"), headers=RETRIED).json()["id"] != secret["id"]
    assert [len(one.trained(session)) for session in sessions] == [1, 2]
    assert second.post(CHAT, json=asks(), headers=RETRIED).status_code == 403


def test_keys_are_random_and_not_shown(one):
    clients = [one.open().client for _ in range(3)]
    keys = {key for client in clients for key in (client.api_key, client.control_key)}
    assert len(keys) == 6 and min(map(len, keys)) >= 40
    assert not any(key in repr(clients) for key in keys)
    assert clients[0].environ()["OPENAI_API_KEY"] == clients[0].environ()["ANTHROPIC_API_KEY"] == clients[0].api_key


def test_hundreds_of_sessions_may_have_a_connection():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
        with place() as one:
            one.open()
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 2_000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_gateway_listens_on_loopback_only(one):
    session = one.open()
    for url in (session.client.base_url, session.client.anthropic_base_url):
        assert ipaddress.ip_address(httpx.URL(url).host).is_loopback
    assert one.client(session).get("/v1/models", headers={"Host": "evil.example"}).status_code == 421


def test_a_gateway_that_nobody_closed_ends_in_silence(capfd):
    """It is closed when it is garbage-collected, as with a trainer in a notebook."""
    asyncio.run(Gateway(NAME).open_session(None, seed=0, start=None).close())
    gc.collect()
    until(lambda: "midthought-gateway" not in {thread.name for thread in threading.enumerate()})
    assert capfd.readouterr().err == ""


def test_models_are_listed_in_both_forms(one):
    session = one.open()
    entry = one.client(session).get(f"/v1/models/{NAME}", headers={"anthropic-version": "2023-06-01"}).content
    for sdk, form in (("openai", "Model"), ("anthropic", "ModelInfo")):
        client, types = client_of(sdk, session), importlib.import_module(f"{sdk}.types")
        getattr(types, form).model_validate_json(entry, strict=True)
        assert [model.id for model in client.models.list()] == [client.models.retrieve(NAME).id] == [NAME]
    (model,) = client.models.list()
    assert (model.type, model.max_input_tokens) == ("model", 4000) and model.created_at.tzinfo is not None
    assert error_of(one.client(session).get("/v1/models/other"))[0] == 404
    assert error_of(one.client(session).post(MESSAGES, json=asks(model="other")))[0] == 404


def test_tokens_are_counted_as_the_answer_would_use_them(one):
    client = one.client(one.open())
    asked = asks(stream=False)
    counted = client.post(f"{MESSAGES}/count_tokens", json={key: asked[key] for key in ("model", "messages")}).json()
    assert counted["input_tokens"] == client.post(MESSAGES, json=asked).json()["usage"]["input_tokens"]


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/messages", "/v1/responses", "/"])
def test_another_path_is_a_sentence_about_routes_and_base_urls(path, one):
    status, words = error_of(one.client(one.open()).post(path, json=asks()))
    assert status == 404 and all(each in words for each in (path, "base URL", CHAT, MESSAGES))


# -- rewards -----------------------------------------------------------------------------------------------------


REWARD = "/v1/session/reward"


def reward(client: httpx.Client, value: Any, **fields: Any) -> httpx.Response:
    return client.post(REWARD, content=json.dumps({"reward": value, **fields}), headers=_JSON)


_JSON = {"content-type": "application/json"}


def test_rewards_of_the_session_and_of_one_answer(one):
    session = one.open()
    response_id = one.client(session).post(CHAT, json=asks()).json()["id"]
    control = one.client(session, control=True)
    assert reward(control, 0.5, response_id=response_id).status_code == 200
    assert reward(control, 1).status_code == 200
    found = control.get("/v1/session").json()
    assert found["reward"] == session.reward == 1.0 and found["id"] == session.id
    assert not any(isinstance(number, bool) for number in found["counts"].values())
    for again in ({}, {"response_id": response_id}):
        status, words = error_of(reward(control, 1, **again))
        assert status == 400 and "has its reward already" in words
    (node,) = one.trained(session)
    assert node.reward == 0.5


@pytest.mark.parametrize(
    ("body", "told"),
    [
        *[({"reward": value}, "^reward: Input should be a.*number") for value in (None, True, "1", [1], 1e999, -1e999, 10**400)],
        ({"reward": float("nan")}, "^reward: Input should be a finite number"),
        ({"reward": 1, "response_id": "other"}, "^there is no response 'other'"),
        ({"reward": 1, "response_id": 5}, "^response_id: Input should be a valid string"),
        ({"reward": 1, "rewrd": 1}, "'rewrd' is not supported"),
        (b"", "the body is missing"),
        *[(body, "the body (is not JSON|must be a JSON object)") for body in (b"[1]", b"{", b'"a"')],
    ],
)  # fmt: skip
def test_a_reward_that_is_no_finite_number_is_refused(body, told, one):
    session = one.open()
    content = body if isinstance(body, bytes) else json.dumps(body)
    status, words = error_of(one.client(session, control=True).post(REWARD, content=content, headers=_JSON))
    assert status == 400 and re.search(told, words) and session.reward is None


def test_a_reward_with_the_model_key_is_refused(one):
    session = one.open()
    client = one.client(session)
    for response in (reward(client, 1), client.post("/v1/session/close"), client.get("/v1/session")):
        assert error_of(response) == (403, "this needs the session's control key, not its model key")
    assert session.reward is None and one.client(session, control=True).get("/v1/session").status_code == 200
    assert one.client(session, control=True).post(CHAT, json=asks()).status_code == 403


# -- limits ------------------------------------------------------------------------------------------------------


def test_too_many_answers_in_progress_are_refused_for_now():
    with place(max_answers=2) as found:
        session = found.open()
        found.engine.hold_after = 2
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(found.client(session).post, CHAT, json=asks(n=2))
            until(lambda: found.engine.num_held == 2)
            assert session.idle_seconds == 0
            response = found.client(session).post(MESSAGES, json=asks())
            assert response.status_code == 429 and response.headers["retry-after"] == "1"
            assert found.client(found.open()).get("/v1/models").status_code == 200
            found.engine.go.set()
            assert len(waiting.result().json()["choices"]) == 2
        assert found.client(session).post(CHAT, json=asks(n=2)).status_code == 200


@pytest.mark.parametrize("limits", [{"max_requests": 1}, {"max_tokens": 1}])
def test_a_session_that_has_had_enough_refuses_without_a_retry(limits):
    with place(**limits) as found:
        client = found.client(found.open())
        assert client.post(CHAT, json=asks()).status_code == 200
        response = client.post(CHAT, json=asks("more"))
        assert response.status_code == 403 and response.headers["x-should-retry"] == "false"


# -- weights -----------------------------------------------------------------------------------------------------


def test_a_weight_change_during_a_request_is_in_the_versions_of_its_tokens(one):
    session = one.open()
    one.engine.hold_after = 7
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.client(session).post, CHAT, json=asks())
        until(lambda: one.engine.num_held == 1)
        one.engine.is_interrupted, one.engine.policy_version = True, 1
        one.engine.go.set()
        assert texts(waiting.result()) == [TEXT]
    asyncio.run(session.close())
    trajectory = Trajectory(Task(task_id="t", prompt="", answer=""), [0])
    session.answers.graph.fill(trajectory)
    (segment,) = trajectory.segments
    versions = [v for v, is_sampled in zip(segment.policy_versions, segment.loss_mask, strict=True) if is_sampled]
    assert versions == [0] * 7 + [1] * (len(versions) - 7) and len(versions) > 7


# -- faults of agents, frameworks and engines --------------------------------------------------------------------


@STREAMS
def test_the_clients_timeout_and_retry_get_one_answer(stream, one):
    session, one.engine.hold_after = one.open(), 0
    retries: list[str] = []

    def on_request(request: httpx.Request) -> None:
        retries.append(request.headers["x-stainless-retry-count"])
        if len(retries) == 2:
            one.engine.go.set()

    with httpx.Client(event_hooks={"request": [on_request]}) as transport:
        client = client_of("openai", session, max_retries=3, timeout=0.3, http_client=transport)
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
        client = client_of("openai", session, max_retries=5, http_client=transport)
        openai = pytest.importorskip("openai", reason="the dev extra is not installed")
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
    response = one.client(session).post(path, json=asks(stream=stream), headers=RETRIED)
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
