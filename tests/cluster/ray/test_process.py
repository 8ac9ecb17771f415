"""What travels to other processes and what does not: named, with the remedy; models without their tensors, and these as bytes."""

import asyncio
import functools
import socket
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray_worlds import HoldsLock, tasks, twice
from torch import nn

from midthought.cluster.process import (
    ProcessSettings,
    bytes_of,
    deserialize,
    digest_of,
    fill_placeholders,
    named_tensors,
    placeholder_of,
    serialize,
    write_bytes,
)
from midthought.errors import MemoryStoreError, SettingsError
from midthought.learning.remote_learner import BUCKET_BYTES, buckets
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import MiniLMEmbedder
from midthought.memory.store import MemoryStore
from midthought.memory.tool import MemoryRetrievalTool
from midthought.recipes.evaluation import Proofs
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction


def test_a_lock_in_an_environment_is_named_with_the_way_to_it():
    said = r"(?=.*ray\.use_ray)the world .* _thread\.lock \(things\['guard'\]\).*__getstate__"
    with pytest.raises(SettingsError, match=said):
        serialize(HoldsLock(), "the world")


def test_an_open_socket_in_a_function_s_closure_is_named():
    with socket.socket() as connection:

        def reward(trajectory: object) -> float:
            return float(connection.fileno())

        with pytest.raises(SettingsError, match=r"socket\.socket \(\['reward'\]\.func\.connection\)"):
            serialize({"reward": functools.partial(reward)}, "the reward")


def test_a_variable_without_a_value_in_a_function_s_closure_does_not_hide_what_is_at_fault():
    def reward(trajectory: object) -> object:
        return absent, guard

    guard = threading.Lock()
    with pytest.raises(SettingsError, match=r"_thread\.lock \(guard\)"):
        serialize(reward, "the reward")
    absent = None


def test_a_executor_travels_without_its_threads_and_loops():
    executor = ToolExecutor(ToolRegistry([twice]), timeout_seconds=3.0, max_threads=7)
    twin = deserialize(serialize(executor, "the tools"), "the tools")
    assert (twin.timeout_seconds, twin.max_threads, twin.registry.names()) == (3.0, 7, ["twice"])
    assert twin.registry.execute_tool("twice", word="red") == (True, "red red")


def test_an_arm_of_the_evaluation_keeps_what_is_its_own():
    arm = Proofs(ToolRegistry([twice]), lambda task: f"proof of {task.task_id}")
    twin = deserialize(serialize(arm, "the tools"), "the tools")
    action = ParsedAction(tool_name="twice", parameters={"word": "red"}, raw_text="", success=True)
    answer = asyncio.run(twin.answer(action, tasks(1)[0]))
    assert type(twin) is Proofs and answer.text == "proof of t0"


def test_what_stands_already_is_named_and_not_sent():
    class Large:
        words = "x" * 100_000

    large, names = Large(), {}
    names[id(large)] = "large"
    data = serialize({"method": [large]}, "it", lambda thing: names.get(id(thing)))
    assert len(data) < 200
    assert deserialize(data, "it", {"large": large}.__getitem__)["method"][0] is large


def test_code_that_is_missing_there_is_an_error_with_the_remedy():
    data = serialize(threading.Event.set, "the world").replace(b"threading", b"threadinx")
    with pytest.raises(SettingsError, match=r"No module named 'threadinx'.*importable"):
        deserialize(data, "the world")


def test_the_memory_tool_is_opened_anew_where_it_arrives(tmp_path, monkeypatch):
    chunk = Chunk("a_0", episode="A", stem="a", speaker="Ann", transcript="the tide is late", time="00:00:01", number=0)
    monkeypatch.chdir(tmp_path)
    store = MemoryStore.open("memory", embedder=MiniLMEmbedder())
    store.build([chunk])
    tool = MemoryRetrievalTool(store, k=1, mode="hybrid")
    said = tool.execute(query="tide")
    data = serialize(tool, "the memory tool")
    monkeypatch.chdir("/")
    twin = deserialize(data, "the memory tool")
    assert twin.execute(query="tide") == said
    assert "Ann" in said.text
    assert len(data) < 10_000


def test_a_memory_that_another_machine_does_not_see_is_said_at_once(tmp_path):
    store = MemoryStore.open(tmp_path / "memory")
    twin = deserialize(serialize(store, "it"), "it")  # not built yet: nothing is missing
    assert not twin.is_built
    reopened, (place, *others, was_built) = store.__reduce__()
    assert not was_built
    with pytest.raises(MemoryStoreError, match=r"no memory .* every machine can read"):
        reopened(place, *others, True)


def test_another_process_is_as_deterministic_as_this_one():
    before = ProcessSettings.of_this_process()
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        asked = ProcessSettings.of_this_process()
        torch.use_deterministic_algorithms(False)
        asked.apply_numerics()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        before.apply_numerics()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3, dtype=torch.bfloat16)
        self.head = nn.Linear(3, 7, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embedding.weight
        self.register_buffer("counts", torch.arange(5), persistent=False)
        self.register_buffer("empty", torch.zeros(0, 4))
        self.scale = nn.Parameter(torch.tensor(2.5))


def copied(model: nn.Module) -> nn.Module:
    tensors = named_tensors(model)
    twin = deserialize(serialize(model, "the model", placeholder_of(tensors)), "the model", fill_placeholders("cpu"))
    write_bytes(named_tensors(twin), {name: bytes_of(tensor) for name, tensor in tensors.items()})
    return twin


def test_a_copy_has_the_same_bits_types_and_ties():
    model = Tied()
    twin = copied(model)
    assert twin.head.weight is twin.embedding.weight
    assert list(named_tensors(twin)) == ["scale", "embedding.weight", "counts", "empty"]
    for name, tensor in named_tensors(twin).items():
        assert torch.equal(tensor, named_tensors(model)[name]) and tensor.dtype is named_tensors(model)[name].dtype
        assert digest_of(tensor) == digest_of(named_tensors(model)[name])


def test_the_modules_travel_without_their_tensors_and_weights_are_written_where_they_are():
    model = nn.Linear(1000, 1000)
    assert len(serialize(model, "the model", placeholder_of(named_tensors(model)))) < 2000
    model, twin = Tied(), copied(Tied())
    weight = twin.embedding.weight
    write_bytes(named_tensors(twin), {"embedding.weight": bytes_of(model.embedding.weight)})
    assert twin.embedding.weight is twin.head.weight is weight and torch.equal(weight, model.embedding.weight)


def test_one_bit_is_another_digest():
    assert digest_of(torch.zeros(2)) != digest_of(torch.tensor([0.0, -0.0]))


@given(st.lists(st.integers(0, 300 * 2**20), max_size=6))
def test_buckets_hold_every_tensor_once_and_too_many_bytes_only_of_one(numbers):
    sizes = {f"t{place}": number for place, number in enumerate(numbers)}
    found = list(buckets(sizes))
    assert [name for bucket in found for name in bucket] == list(sizes)
    assert all(len(bucket) == 1 or sum(sizes[name] for name in bucket) <= BUCKET_BYTES for bucket in found)


def test_a_tensor_that_does_not_lie_in_one_piece_arrives_as_it_reads():
    model = nn.Linear(3, 2, bias=False)
    model.weight = nn.Parameter(torch.arange(6.0).view(3, 2).T)
    assert torch.equal(copied(model).weight, model.weight)
