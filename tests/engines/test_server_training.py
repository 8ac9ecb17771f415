"""A training run that samples from servers, against servers that compute with what they are given; an agent in their place."""

import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from fake_server import FakeServer, Fault
from server_engines import KINDS
from test_weight_sync import load

from midthought import RayPPOTrainer, Trainer, TrainerCallback, create_default_config
from midthought.engines.servers.connection import RetryPolicy
from midthought.errors import EngineError, SettingsError, TrainingStoppedError
from midthought.types import SpanKind, StopReason

httpx = pytest.importorskip("httpx")
pytestmark = pytest.mark.filterwarnings("ignore:.*does not report its tokenization")

ROWS = [{"question": f"Who found tide {number}?", "answer": "Ada"} for number in range(2)]


def settings(*servers: FakeServer, max_staleness: int = 0, **inference: Any) -> Any:
    inference = {
        "backend": servers[0].kind if servers else "vllm",
        "base_url": [server.url for server in servers],
        "served_model_name": "tiny",
        "max_tokens": 8,
        **inference,
    }
    training = {"adv_estimator": "grpo", "group_size": 4, "batch_size": 8, "mini_batch_size": 8, "learning_rate": 3e-3}
    training |= {"num_train_iters": 2, "validate_every": 0, "max_staleness": max_staleness}
    return create_default_config(
        model={"hidden_size": 32, "num_layers": 1, "vocab_size": 300}, inference=inference, training=training
    )


def trainer_for(*servers: FakeServer, **inference: Any) -> RayPPOTrainer:
    return RayPPOTrainer(
        settings(*servers, **inference), dataset=ROWS, reward_fn=lambda trajectory: float(sum(trajectory.token_ids) % 5)
    )


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    retry_policy = functools.partial(RetryPolicy, pause_seconds=0.01, max_pause_seconds=0.05, max_attempts=3)
    monkeypatch.setattr("midthought.engines.external_backends.RetryPolicy", retry_policy)


def knowing_nothing(context: list[int]) -> list[float]:
    return [0.0] * 300


@pytest.mark.parametrize(
    ("kind", "inference"),
    [pytest.param("sglang", {}, marks=pytest.mark.slow), ("vllm", {"max_staleness": 2, "max_segment_length": 3})],
)
def test_two_updates_with_synchronised_weights_keep_recomputed_and_sampled_together(kind, inference):
    with (
        FakeServer(kind, load=load, logits=knowing_nothing) as one,
        FakeServer(kind, load=load, logits=knowing_nothing) as other,
        trainer_for(one, other, **inference) as trainer,
    ):
        history = trainer.fit()
        assert trainer.source.policy_version == 2
        names = ("logprob_difference_max", "logprob_difference_older_max")
        found = [figures.get(name, math.nan) for figures in history for name in names]
        assert found[0] < 1e-3 and not any(each > 1e-3 for each in found)  # NaN: no such token
        assert one.requests and other.requests


@pytest.mark.usefixtures("impatient")
def test_a_server_that_dies_in_the_middle_costs_nothing_and_the_last_one_fails_episodes_not_the_run():
    with FakeServer(load=load, logits=knowing_nothing) as survivor:
        with FakeServer(load=load, logits=knowing_nothing) as victim:
            trainer = trainer_for(victim, survivor)
            victim.always = Fault(kind="cut", after=3)
            first = trainer.rollout()
            assert [trajectory.error for trajectory in first] == [None] * 8
        with pytest.warns(UserWarning, match="not every server takes the new weights"):
            trainer.train_step()
        assert [trajectory.error for trajectory in trainer.rollout()] == [None] * 8
        survivor.always = Fault(kind="status", status=500)
        second = trainer.rollout()
        assert [trajectory.stop_reason for trajectory in second] == [StopReason.FAILED] * 8
        assert trainer.train_step()["batch/num_episodes"] == 0
        survivor.always = None
        assert [trajectory.error for trajectory in trainer.rollout()] == [None] * 8
        trainer.cleanup()


def test_a_server_without_the_log_probabilities_of_the_temperature_is_refused_before_the_first_iteration():
    def undecided(context: list[int]) -> list[float]:
        return [1.0, 0.5, *[0.0] * 298]

    with FakeServer(load=load, logits=undecided, records="model") as server:
        with pytest.raises(SettingsError, match=r"temperature=0.7.*processed_logprobs.*inference.temperature=1.0"):
            trainer_for(server, temperature=0.7)
        trainer_for(server, temperature=1.0).cleanup()
    for records in ("temperature", "processed"):
        with (
            FakeServer(load=load, logits=undecided, records=records) as server,
            trainer_for(server, temperature=0.7) as it,
        ):
            trajectories = list(it.rollout())
            assert all(span.temperature == 0.7 for t in trajectories for span in t.spans if span.kind == "sampled")
            assert it.train_step()["batch/num_unscored_tokens"] == 0


def test_what_cannot_be_trained_through_is_said_before_anything_begins():
    for inference, words in [
        ({"backend": "scripted"}, "use 'local', 'vllm' or 'sglang'"),
        ({"deterministic": True}, "use 'local' for a bit-identical repetition"),
        (
            {"base_url": ["http://host"], "server_flags": ["--seed", "5"]},
            r"inference.server_flags=\['--seed', '5'\] with inference.base_url=\['http://host'\].*started here; .* leave",
        ),
        ({"in_process": True, "backend": "sglang"}, "only 'vllm' can run without a server"),
        ({"in_process": True, "base_url": ["http://127.0.0.1:1"]}, "one excludes the other"),
        ({"base_url": ["http://127.0.0.1:9"], "served_model_name": None}, "inference.served_model_name"),
    ]:
        with pytest.raises(SettingsError, match=words):
            trainer_for(**inference)
    served_elsewhere = {"backend": "vllm", "base_url": ["http://host"]}
    config = create_default_config(model={"tensor_parallel_size": 2}, inference=served_elsewhere).frozen()
    assert config.inference.server_flags == []
    with (
        FakeServer() as server,
        pytest.warns(UserWarning, match="tokenization"),
        pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE"),
    ):
        trainer_for(server)


@pytest.mark.usefixtures("impatient")
def test_dead_servers_are_waited_for_as_long_as_the_settings_say_and_then_the_run_stops():
    class Kill(TrainerCallback):
        def on_step(self, trainer: RayPPOTrainer, metrics: Mapping[str, float]) -> None:
            server.always = Fault(kind="cut")

    message = r"all 8 episodes of iteration 2 .*no server returned a token for 0\.7 s"
    with (
        FakeServer(load=load, logits=knowing_nothing) as server,
        trainer_for(server, server_wait_seconds=0.7) as trainer,
    ):
        trainer.callbacks = [Kill()]
        began = time.monotonic()
        with pytest.raises(TrainingStoppedError, match=message):
            trainer.fit()
        assert 0.7 < time.monotonic() - began < 10
        assert trainer.iteration == 2


def test_a_server_with_other_weights_that_sync_tolerance_lets_through_is_found_before_the_update():
    def other_weights(path: str) -> Callable[[list[int]], list[float]]:
        right = load(path)
        return lambda context: [logit + 3.0 * (number % 3) for number, logit in enumerate(right(context))]

    with (
        FakeServer(load=other_weights, logits=knowing_nothing) as server,
        trainer_for(server, sync_tolerance=100.0) as trainer,
        pytest.raises(TrainingStoppedError, match=r"differ by .* nats .*inference.sync_tolerance"),
    ):
        trainer.fit()


def agent(task: Any, client: Any) -> float:
    """Two turns, and another conversation."""
    headers = {"authorization": f"Bearer {client.api_key}"}
    one, other = ([{"role": "user", "content": text}] for text in (task.prompt, "Another."))
    for messages in (one, one, other):
        body = {"model": client.model, "messages": messages}
        answer = httpx.post(f"{client.base_url}/chat/completions", json=body, headers=headers, timeout=60).json()
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    return float(len(str(other)) % 3)


@KINDS
def test_an_agent_is_trained_on_what_the_server_was_given_and_sampled(kind):
    pytest.importorskip("fastapi", reason="the serve extra is not installed")
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
