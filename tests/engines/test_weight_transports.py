"""Whole models on their way to servers without files: the messages, the proof after them, failures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from command_process import FORKS
from fake_server import FakeServer, Fault
from fake_weights import GlooGroup, SGLangReceiver, SharedHandles, VLLMReceiver, join_and_receive
from precision import logit_tolerance
from representatives import representatives
from server_engines import IMPATIENT, way
from test_weight_sync import PROBE, difference, learn, load, logits_of, make_model

from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.sglang import SGLangEngine, SGLangServer
from midthought.engines.servers.sglang_weights import SGLangIpcSender, SGLangNcclSender, buckets
from midthought.engines.servers.vllm import VLLMEngine, VLLMServer
from midthought.engines.servers.vllm_weights import VLLMIpcSender, VLLMNcclSender
from midthought.engines.weight_sync.broadcast_groups import TorchGroup, alongside, broadcast_all
from midthought.engines.weight_sync.synced_engine import SyncedEngine
from midthought.engines.weight_sync.transport import WeightTransport
from midthought.errors import EngineError

pytest.importorskip("httpx")
pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="needs gloo")

WAYS = pytest.mark.parametrize("name", ["ipc", "nccl"])


class VLLMOnCpu(VLLMEngine):
    class server_class(VLLMServer):
        senders = {"ipc": lambda: VLLMIpcSender(SharedHandles()), "nccl": lambda: VLLMNcclSender(GlooGroup)}  # noqa: RUF012


class SGLangOnCpu(SGLangEngine):
    class server_class(SGLangServer):
        senders = {"ipc": lambda: SGLangIpcSender(SharedHandles()), "nccl": lambda: SGLangNcclSender("gloo")}  # noqa: RUF012


@contextlib.contextmanager
def serving(kind: Any, name: str | None, num_servers: int = 1, **options: Any) -> Iterator[list[FakeServer]]:
    """Servers that receive tensors by the transport into a model of their own, with untied embeddings."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(num_servers):
            model = make_model()
            learn(model)
            receiver = SGLangReceiver(model, logits_of) if kind == "sglang" else VLLMReceiver(model, logits_of, name)
            settings = {"load": load, "logits": receiver.logits(), "receiver": receiver, **options}
            servers.append(stack.enter_context(FakeServer(kind, **settings)))
        yield servers


def engine_for(servers: list[FakeServer], transport: WeightTransport, **options: Any) -> Any:
    engine_class = SGLangOnCpu if servers[0].kind == "sglang" else VLLMOnCpu
    policy = RetryPolicy(**IMPATIENT, max_attempts=50)
    urls = [server.url for server in servers]
    return engine_class(urls, "tiny", eos_token_ids=[], retry_policy=policy, transport=transport, **options)


def synced(servers: list[FakeServer], policy: Any, transport: WeightTransport, **options: Any) -> SyncedEngine:
    names = options.keys() & {"can_sleep", "max_outage_seconds"}
    engine = engine_for(servers, transport, **{name: options.pop(name) for name in names})
    return SyncedEngine(engine, policy, probe_ids=PROBE, max_seq_len=256, **options)


@pytest.mark.parametrize(
    ("kind", "name"),
    representatives(product(["vllm", "sglang"], ["ipc", "nccl"]), ("vllm", "nccl"), ("sglang", "ipc")),
)
def test_after_every_update_all_servers_compute_with_the_policys_tensors(kind, name, tmp_path):
    policy = make_model(tied=True)
    with serving(kind, name, num_servers=2) as servers:
        engine = synced(servers, policy, way(name), folder=tmp_path)
        for version in (1, 2):
            learn(policy)
            assert difference(engine, policy) > 0.1
            engine.update_weights()
            assert engine.policy_version == version
            assert difference(engine, policy, 4) < logit_tolerance(policy)
        assert all(server.prompts for server in servers)
        assert list(tmp_path.iterdir()) == []  # nothing was written
        assert servers[0].receiver.num_groups == (1 if name == "nccl" else 0)  # one group serves all updates
        engine.shutdown()


@WAYS
def test_messages_to_vllm_are_in_order_and_name_every_tensor(name):
    policy = make_model(tied=True)
    with serving("vllm", name) as servers:
        synced(servers, policy, way(name)).shutdown()
        first = ["/init_weight_transfer_engine"]
        first = first if name == "ipc" else ["/shutdown_weight_transfer_engine", *first]
        update = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
        end = ["/reset_prefix_cache", "/resume"]
        pause = ["/pause?mode=wait"]
        assert servers[0].orders == [*pause, *first, *update, *end, *pause, *update, *end]
        messages = dict(servers[0].receiver.messages)
    info = messages["/update_weights"]["update_info"]
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(info["names"])
    assert info["dtype_names"][0] == "float32" and info["shapes"][0] == [40, 16]
    if name == "ipc":
        assert set(info) == {"names", "dtype_names", "shapes", "ipc_handles_pickled"}
        assert messages["/init_weight_transfer_engine"] == {"init_info": {"packed": False}}
    assert messages["/finish_weight_update"] is None


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    representatives(
        [
            ("vllm", "ipc", "/update_weights"),
            ("vllm", "ipc", "/start_weight_update"),
            ("vllm", "nccl", "/init_weight_transfer_engine"),
            ("vllm", "nccl", "/update_weights"),
            ("sglang", "ipc", "/update_weights_from_tensor"),
            ("sglang", "nccl", "/init_weights_update_group"),
            ("sglang", "nccl", "/update_weights_from_distributed"),
        ],
        ("vllm", "ipc", "/update_weights"),
        ("vllm", "nccl", "/init_weight_transfer_engine"),
        ("sglang", "nccl", "/update_weights_from_distributed"),
    ),
)
def test_a_refused_update_stops_the_run_and_one_whose_connection_breaks_is_repeated(kind, name, path):
    policy = make_model()
    with serving(kind, name) as servers:
        engine = synced(servers, policy, way(name), max_outage_seconds=30.0)
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
            assert servers[0].receiver.num_groups == num_groups + (name == "nccl"), "a new group"
        engine.shutdown()


@pytest.mark.parametrize(
    ("backend", "name"),
    representatives(product([None, "sparse_nccl"], ["ipc", "nccl"]), (None, "ipc"), ("sparse_nccl", "nccl")),
)
def test_a_vllm_without_the_route_gets_files_and_one_line_says_why(backend, name, caplog):
    policy = make_model()
    with serving("vllm", backend) as servers, caplog.at_level(logging.WARNING, logger="midthought"):
        engine = synced(servers, policy, way(name))
        learn(policy)
        engine.update_weights()
        assert difference(engine, policy) < logit_tolerance(policy)
        assert "/collective_rpc" in servers[0].orders and "/start_weight_update" not in servers[0].orders
        lines = [record.getMessage() for record in caplog.records if "They go through a folder" in record.getMessage()]
        assert len(lines) == 1 and f"--weight-transport {name}" in lines[0]
        with pytest.raises(EngineError, match=rf"does not receive weights by {name}: .*--weight-transport {name}"):
            synced(servers, policy, way(name, is_required=True))
        engine.shutdown()
    with serving("sglang", "ipc") as servers:
        servers[0].receiver.tp_size = 2
        with pytest.raises(EngineError, match=r"it runs on 2 GPUs"):
            synced(servers, policy, way("ipc", is_required=True))


def test_merged_adapters_are_sent_as_a_whole_model():
    peft = pytest.importorskip("peft")
    name, config = "ipc", peft.LoraConfig(r=4, target_modules="all-linear", use_dora=True)
    policy = peft.get_peft_model(make_model(), config).eval()
    with serving("vllm", name) as servers:
        engine = synced(servers, policy, way(name))
        learn(policy)
        engine.update_weights()
        assert difference(engine, policy) < logit_tolerance(policy)
        engine.shutdown()


# -- parts ---------------------------------------------------------------------------------------------------------


def test_buckets_are_full_or_one_larger_tensor():
    tensors = [(str(number), torch.zeros(number)) for number in (1, 2, 5, 1, 1)]
    assert [[name for name, _ in bucket] for bucket in buckets(tensors, 12)] == [["1", "2"], ["5"], ["1", "1"]]
    assert list(buckets([], 12)) == []


def test_a_request_and_the_work_that_takes_part_in_it_end_together_or_the_first_error_ends_both():
    async def answers(seconds: float, result: str = "done") -> str:
        await asyncio.sleep(seconds)
        if result != "done":
            raise EngineError(result)
        return result

    def breaks() -> None:
        raise RuntimeError("no route to host")

    never = asyncio.run(alongside(answers(0.2), lambda: None))
    assert never == "done"
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


def test_a_process_that_joins_with_torchs_own_helper_receives_the_tensor():
    group = TorchGroup(2, torch.device("cpu"), name="midthought", backend="gloo")
    if group.address != "127.0.0.1":
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", group.port), timeout=5):
            pytest.fail("the store listens on all addresses")
    found = FORKS.Queue()
    process = FORKS.Process(target=join_and_receive, args=(group.address, group.port, "midthought", found))
    process.start()
    group.join()
    broadcast_all(group, [("weight", torch.tensor([1.0, 2.0, 3.0]))])
    assert found.get(timeout=120) == [1.0, 2.0, 3.0]
    process.join()
