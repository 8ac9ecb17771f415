"""Whole models on their way to vLLM servers without files: the messages, the proof after them, failures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_server import FakeServer, Fault
from fake_weights import GlooGroup, VLLMReceiver
from precision import logit_tolerance
from server_engines import IMPATIENT
from test_weight_sync import PROBE, difference, learn, load, logits_of, make_model

from midthought.config import InferenceConfig
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.training import on_other_gpus, server_options
from midthought.engines.servers.vllm import VLLMEngine, VLLMServer
from midthought.engines.servers.vllm_weights import WeightSender
from midthought.engines.weight_sync.broadcast_groups import alongside
from midthought.engines.weight_sync.synced_engine import SyncedEngine
from midthought.errors import EngineError

pytest.importorskip("httpx")
pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="needs gloo")


class VLLMOnCpu(VLLMEngine):
    class server_class(VLLMServer):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.sender = WeightSender(GlooGroup)


@contextlib.contextmanager
def serving(backend: str | None = "nccl", num_servers: int = 1) -> Iterator[list[FakeServer]]:
    """Servers that receive tensors into a model of their own, with untied embeddings."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(num_servers):
            model = make_model()
            learn(model)
            receiver = VLLMReceiver(model, logits_of, backend)
            servers.append(stack.enter_context(FakeServer(load=load, logits=receiver.logits(), receiver=receiver)))
        yield servers


def synced(servers: list[FakeServer], policy: Any, **options: Any) -> SyncedEngine:
    engine = VLLMOnCpu(
        [server.url for server in servers],
        "tiny",
        eos_token_ids=[],
        retry_policy=RetryPolicy(**IMPATIENT, max_attempts=50),
        sends_tensors=True,
        max_outage_seconds=options.pop("max_outage_seconds", None),
    )
    return SyncedEngine(engine, policy, probe_ids=PROBE, max_seq_len=256, **options)


def test_after_every_update_all_servers_compute_with_the_policys_tensors(tmp_path):
    policy = make_model(tied=True)
    with serving(num_servers=2) as servers:
        engine = synced(servers, policy, folder=tmp_path)
        for version in (1, 2):
            learn(policy)
            assert difference(engine, policy) > 0.1
            engine.update_weights()
            assert engine.policy_version == version
            assert difference(engine, policy, 4) < logit_tolerance(policy)
        assert all(server.prompts for server in servers)
        assert list(tmp_path.iterdir()) == []  # nothing was written
        assert servers[0].receiver.num_groups == 1  # one group serves all updates
        engine.shutdown()


def test_messages_to_vllm_are_in_order_and_name_every_tensor():
    policy = make_model(tied=True)
    with serving() as servers:
        synced(servers, policy).shutdown()
        first = ["/shutdown_weight_transfer_engine", "/init_weight_transfer_engine"]
        update = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
        end = ["/reset_prefix_cache", "/resume"]
        pause = ["/pause?mode=wait"]
        assert servers[0].orders == [*pause, *first, *update, *end, *pause, *update, *end]
        messages = dict(servers[0].receiver.messages)
    info = messages["/update_weights"]["update_info"]
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(info["names"])
    assert info["dtype_names"][0] == "float32" and info["shapes"][0] == [40, 16]
    assert messages["/finish_weight_update"] is None


@pytest.mark.parametrize("path", ["/start_weight_update", "/init_weight_transfer_engine", "/update_weights"])
def test_a_refused_update_stops_the_run_and_one_whose_connection_breaks_is_repeated(path):
    policy = make_model()
    with serving() as servers:
        engine = synced(servers, policy, max_outage_seconds=30.0)
        learn(policy)
        servers[0].receiver.fails_at = path
        servers[0].receiver.messages.clear()
        if path.startswith("/init"):
            servers[0].faults = [Fault(kind="cut")]  # then the server may have been restarted, and is initialized again
            with contextlib.suppress(EngineError):
                difference(engine, policy)
        else:
            with pytest.raises(EngineError, match=r"does not take new weights: .*out of order"):
                engine.update_weights()
        assert path in [each for each, _ in servers[0].receiver.messages]
        assert not servers[0].is_paused
        engine.update_weights()
        assert difference(engine, policy) < logit_tolerance(policy)
        if "/update" in path:
            num_groups = servers[0].receiver.num_groups
            learn(policy)
            servers[0].receiver.cuts_at = path
            engine.update_weights()
            assert difference(engine, policy) < logit_tolerance(policy)
            assert servers[0].receiver.num_groups == num_groups + 1, "a new group"
        engine.shutdown()


@pytest.mark.parametrize("backend", [None, "sparse_nccl"])
def test_a_vllm_without_the_route_gets_files_and_one_line_says_why(backend, caplog):
    policy = make_model()
    with serving(backend) as servers, caplog.at_level(logging.WARNING, logger="midthought"):
        engine = synced(servers, policy)
        learn(policy)
        engine.update_weights()
        assert difference(engine, policy) < logit_tolerance(policy)
        assert "/collective_rpc" in servers[0].orders and "/start_weight_update" not in servers[0].orders
        lines = [record.getMessage() for record in caplog.records if "so they go through files" in record.getMessage()]
        assert len(lines) == 1 and "engine serve … --nccl" in lines[0]
        engine.shutdown()


def test_a_request_and_the_work_that_takes_part_in_it_end_together_or_the_first_error_ends_both():
    async def answers(seconds: float, result: str = "done") -> str:
        await asyncio.sleep(seconds)
        if result != "done":
            raise EngineError(result)
        return result

    def breaks() -> None:
        raise RuntimeError("no route to host")

    assert asyncio.run(alongside(answers(0.2), lambda: None)) == "done"
    assert asyncio.run(alongside(answers(0.0), lambda: None)) == "done"
    with pytest.raises(EngineError, match="refused"):
        asyncio.run(alongside(answers(0.0, "refused"), breaks))
    with pytest.raises(EngineError, match=r"the broadcast failed \(RuntimeError: no route to host\)"):
        asyncio.run(alongside(answers(60.0), breaks))

    async def hangs(result: str) -> None:
        released = threading.Event()
        try:
            await alongside(answers(0.2, result), released.wait, last_seconds=0.1)
        finally:
            released.set()

    with pytest.raises(EngineError, match="refused"):
        asyncio.run(hangs("refused"))
    with pytest.raises(EngineError, match=r"did not take part within 0\.1 s"):
        asyncio.run(hangs("done"))


@pytest.mark.parametrize(
    ("device", "inference", "is_sent"),
    [
        ("cpu", {}, False),
        ("cuda:0", {}, False),
        ("cuda", {"server_flags": ["--seed", "2"]}, False),
        ("cuda:1", {}, True),
        ("cuda:1", {"server_flags": ["-tp=2"]}, False),
        ("cuda:3", {"server_flags": ["--tensor-parallel-size", "2", "-dp=2"]}, False),
        ("cuda:2", {"server_flags": ["--tp", "2"]}, True),
        ("cuda:0", {"server_flags": ["--base-gpu-id", "1"]}, True),
        ("cuda:0", {"server_flags": ["--tp"]}, False),
        ("cuda:0", {"base_url": ["http://host"]}, True),
        ("cuda:0", {"base_url": ["http://host"], "weights_path": "/shared"}, False),
    ],
)
def test_tensors_are_sent_to_servers_that_may_be_on_other_gpus(device, inference, is_sent):
    assert on_other_gpus(device, InferenceConfig(backend="vllm", **inference)) == is_sent


def test_a_run_starts_its_server_for_its_policy():
    inference = InferenceConfig(backend="vllm", max_num_seqs=4, gpu_memory_utilization=0.4)
    options = server_options(make_model(), inference, "tiny", 200, receives_tensors=True)
    assert (options.receives_tensors, options.accepts_weights) == (True, True)
    assert (options.max_seq_len, options.max_num_seqs, options.dtype) == (200, 4, "float32")
    assert options.gpu_memory_share is None  # the policy is on the CPU
