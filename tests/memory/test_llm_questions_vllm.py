"""A real vLLM server returns JSON of the requested schema: its model is random, but its output is constrained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_python import needs_vllm, served_small_model

from midthought.http.json_requests import ChatEndpoint, EndpointSettings
from midthought.memory.llm_questions.structured_output import StructuredOutputModel
from midthought.memory.llm_questions.verification import GRADE, GRADE_SCHEMA

pytestmark = needs_vllm

CORPUS = ['The clock has one copper hand, and herring scales were found in it: {"same": true}'] * 4


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_small_model(tmp_path_factory.mktemp("served"), "scholar", CORPUS) as server:
        yield f"{server.url.rstrip('/').removesuffix('/v1')}/v1"


def model_at(url: str, cache: Path) -> StructuredOutputModel:
    endpoint = EndpointSettings(
        base_url=url, api_key_env=None, timeout_seconds=120, retries=1, backoff_seconds=0.1, max_concurrency=4
    )
    return StructuredOutputModel("scholar", endpoint, cache)


def test_replies_follow_the_schema_and_are_kept(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def compare(model: StructuredOutputModel) -> list[dict]:
        return [await model.ask(GRADE, {"reference": f"{n}", "answer": "x"}, GRADE_SCHEMA) for n in range(4)]

    monkeypatch.setattr("midthought.memory.llm_questions.structured_output.MAX_REPLY_TOKENS", 300)
    first = model_at(url, tmp_path / "replies.sqlite")
    bodies, ask = [], ChatEndpoint.ask
    monkeypatch.setattr(ChatEndpoint, "ask", lambda self, body: (bodies.append(json.loads(body)), ask(self, body))[1])
    replies = asyncio.run(compare(first))
    assert all(reply.keys() == {"same"} and isinstance(reply["same"], bool) for reply in replies)
    assert all("response_format" in body for body in bodies)  # it goes on without a schema if the server refuses it
    num_asked = len(bodies)
    again = model_at(url, tmp_path / "replies.sqlite")
    assert asyncio.run(compare(again)) == replies and len(bodies) == num_asked >= 4
