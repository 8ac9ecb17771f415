"""An agent whose policy is sampled by a server."""

from typing import Any

import pytest
from fake_server import FakeServer
from test_server_training import ROWS, knowing_nothing, settings
from test_weight_sync import load

from midthought import Trainer
from midthought.types import SpanKind

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi", reason="the serve extra is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:.*does not report its tokenization")


def agent(task: Any, client: Any) -> float:
    """Two turns, and another conversation."""
    headers = {"authorization": f"Bearer {client.api_key}"}
    one, other = ([{"role": "user", "content": text}] for text in (task.prompt, "Another."))
    for messages in (one, one, other):
        body = {"model": client.model, "messages": messages}
        answer = httpx.post(f"{client.base_url}/chat/completions", json=body, headers=headers, timeout=60).json()
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    return float(len(str(other)) % 3)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_agent_is_trained_on_what_the_server_was_given_and_sampled(kind):
    with (
        FakeServer(kind, load=load, logits=knowing_nothing) as server,
        Trainer(settings(server), agent=agent, dataset=ROWS) as trainer,
    ):
        before = len(server.prompts)
        episodes = trainer.rollout().trajectories
        given = server.prompts[before:]
        metrics = trainer.train_step()
    assert [each.error for each in episodes] == [None] * 8
    for each in episodes:
        each.check()
        assert [len(turns) for turns in (each.segments, each.turns)] == [2, 3]
    spans = [(segment, span) for each in episodes for segment in each.segments for span in segment.spans]
    prompts = [segment.token_ids[: span.start] for segment, span in spans if span.kind is SpanKind.SAMPLED]
    assert sorted(prompts) == sorted(given)
    assert metrics["logprob_difference_max"] < 1e-3 and metrics["agent/continued"] == 1.0
