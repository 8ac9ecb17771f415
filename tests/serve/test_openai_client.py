"""The official `openai` client against the endpoint: chat, streams, tools, errors, concurrent requests."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the serve extra is not installed")
pytest.importorskip("openai", reason="the dev extra is not installed")

import openai
from endpoints import scripted, served
from served import request

from midthought.config import InferenceConfig
from midthought.engines.inference_engines import ScriptedInferenceEngine
from midthought.memory.service.auth import AccessPolicy
from midthought.recipes.served_run import open_run
from midthought.serve.chat_policy import ChatPolicy
from midthought.tools.builtin.calculate import CalculateTool
from midthought.trainer.trainer import Trainer
from midthought.types import Task

TASKS = [Task(task_id=f"t{n}", prompt=f"What is {n} + {n}?", answer=str(2 * n)) for n in range(4)]
NAME = "run"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASK = {"model": NAME, "messages": [{"role": "user", "content": TASKS[1].prompt}]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder, and the greedy evaluation episodes of its policy."""
    path = tmp_path_factory.mktemp("serve") / NAME
    sizes = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 400}
    with Trainer(
        dataset=TASKS,
        tools=[CalculateTool()],
        call_format="in_thought",
        system_prompt="Answer briefly.",
        run_path=path,
        progress=False,
        inference={"max_tokens": 24},
        **sizes,
    ) as trainer:
        episodes = trainer.source.evaluate(TASKS)
        trainer.save_model(path / "policy")
    return path, episodes


@pytest.fixture(scope="module")
def url(trained):
    opened = open_run(trained[0])
    with served(opened.engine, opened.policy, NAME) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        yield client


def text_of(message: Any) -> str:
    """Thoughts and answer."""
    return (getattr(message, "reasoning_content", None) or "") + (message.content or "")


def test_a_greedy_answer_has_the_tokens_of_the_evaluation(client, trained):
    for task, episode in zip(TASKS, trained[1], strict=True):
        asked = {"model": NAME, "messages": [{"role": "user", "content": task.prompt}], "temperature": 0}
        answer = client.chat.completions.create(**asked, extra_body={"return_token_ids": True})
        num_prompt = episode.segments[0].spans[0].end
        assert answer.prompt_token_ids == episode.token_ids[:num_prompt]
        assert answer.choices[0].token_ids == episode.token_ids[num_prompt:]
        assert answer.usage.prompt_tokens == num_prompt
        assert answer.usage.completion_tokens == episode.num_response


def test_a_stream_has_the_text_of_the_whole_answer(client):
    whole = client.chat.completions.create(**ASK, seed=3, n=2)
    texts: dict[int, str] = {0: "", 1: ""}
    reasons: dict[int, Any] = {}
    usage = None
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in client.chat.completions.create(**ASK, seed=3, n=2, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += text_of(choice.delta)
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    assert [texts[choice.index] for choice in whole.choices] == [text_of(choice.message) for choice in whole.choices]
    assert [reasons[choice.index] for choice in whole.choices] == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage and texts[0] != texts[1]


def test_seeds_limits_and_logprobs_are_those_of_the_request(client):
    ask = {**ASK, "seed": 7, "max_completion_tokens": 5, "logprobs": True, "extra_body": {"return_token_ids": True}}
    one, same = (client.chat.completions.create(**ask).choices[0] for _ in range(2))
    assert one.token_ids == same.token_ids and len(one.token_ids) == 5 and one.finish_reason == "length"
    logprobs = [token.logprob for token in one.logprobs.content]
    assert len(logprobs) == 5 and all(value < 0 for value in logprobs)
    assert client.chat.completions.create(**{**ask, "seed": 8}).choices[0].token_ids != one.token_ids


@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({"model": "other"}, 404, "no model 'other'"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, 400, "wizard"),
        ({"temperature": 3}, 400, "temperature"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"n": 1000}, 400, "n"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty"),
        ({"extra_body": {"no_such_parameter": 1}}, 400, "'no_such_parameter' is not supported"),
        ({"tools": [{"type": "function", "function": {"name": "<|im_end|>"}}]}, 400, "im_end"),
    ],
)  # fmt: skip
def test_wrong_input_is_an_error_of_the_client_with_a_reason(client, changes, status, told):
    for stream in (False, True):
        with pytest.raises(openai.APIStatusError) as refused:
            client.chat.completions.create(**{**ASK, **changes}, stream=stream)
        assert refused.value.status_code == status
        assert told in refused.value.message and refused.value.body["type"], refused.value.message


def test_32_requests_at_the_same_time_have_the_answers_that_they_have_alone(client, url):
    asks = [{**ASK, "seed": seed, "max_tokens": 8} for seed in range(32)]
    alone = [text_of(client.chat.completions.create(**asks[n]).choices[0].message) for n in (0, 31)]

    async def all_at_once() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as several:
            answers = await asyncio.gather(*(several.chat.completions.create(**ask) for ask in asks))
        return [text_of(answer.choices[0].message) for answer in answers]

    together = asyncio.run(all_at_once())
    assert len(set(together)) > 16 and [together[0], together[31]] == alone


# -- tools, with a written policy ------------------------------------------------------------------------------------

OWN = '<think>\nI add. #call calculate {"expression": "2+3"}'


def written(script: list[Any]) -> tuple[ScriptedInferenceEngine, ChatPolicy]:
    texts = iter(script)
    return scripted(lambda: next(texts), tools=[CalculateTool()])


def test_own_tools_run_in_the_server_and_the_clients_come_back():
    done = "\n</think>\n\nRain, and five."
    with served(*written([OWN, "#call", ' weather {"city": "Oslo"}', done, None]), NAME) as url:
        client = openai.OpenAI(base_url=url, api_key="unused", max_retries=0)
        messages: list[Any] = [{"role": "user", "content": "2 + 3 and the weather?"}]
        first = client.chat.completions.create(model=NAME, messages=messages, tools=[WEATHER]).choices[0]
        assert first.finish_reason == "tool_calls" and first.message.content is None
        assert "calculate_result:\n5" in first.message.reasoning_content
        (call,) = first.message.tool_calls
        assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "Oslo"}
        messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        second = client.chat.completions.create(model=NAME, messages=messages, tools=[WEATHER]).choices[0]
        assert (second.message.content, second.finish_reason) == ("Rain, and five.", "stop")


def test_an_answer_ends_when_its_client_leaves():
    def endless() -> str:
        time.sleep(0.001)
        return "word "

    inference = InferenceConfig(max_tokens=10**8, max_segment_length=8)
    engine, policy = scripted(endless, max_seq_len=10**9, inference=inference)
    with served(engine, policy, NAME, max_answers=2) as url:
        client = openai.OpenAI(base_url=url, api_key="unused", max_retries=0)
        for _ in range(3):
            stream = when_free(client, stream=True)
            next(iter(stream))
            stream.close()
        with pytest.raises(openai.APITimeoutError):
            when_free(client, timeout=0.5)
        when_free(client, stream=True).close()


def when_free(client: Any, **options: Any) -> Any:
    """Asks for as many answers as may be in progress, until the server accepts it."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return client.chat.completions.create(**ASK, n=2, **options)
        except openai.RateLimitError as busy:
            assert "answers are in progress" in busy.message and time.monotonic() < deadline
            time.sleep(0.02)


def test_access_is_that_of_the_memorys_service():
    key = "a-key-that-nobody-guesses"
    with served(*written(["Hello.", None]), NAME, AccessPolicy(token=key)) as url:
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0).models.list()
        allowed = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
        assert allowed.chat.completions.create(**ASK).choices[0].message.content == "Hello."
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            status, _, reply = request(url.split("/")[2], "/v1/models", **headers)
            assert status in (421, 403) and json.loads(reply)["error"]["message"]
