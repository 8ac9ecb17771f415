"""What travels to workers and what does not: named, with the remedy."""

import asyncio
import threading

import pytest
from ray_worlds import HoldsLock, tasks, twice

from midthought.cluster.process import deserialize, serialize
from midthought.errors import SettingsError
from midthought.memory.embedding import MiniLMEmbedder
from midthought.memory.tool import MemoryRetrievalTool
from midthought.recipes.evaluation import Proofs
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction


def test_what_cannot_be_sent_is_named_with_its_type_and_the_remedy():
    with pytest.raises(SettingsError, match=r"the world .* '_thread\.lock' .*__getstate__.*ray\.use_ray"):
        serialize(HoldsLock(), "the world")


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
    from midthought.memory.chunks import Chunk
    from midthought.memory.store import MemoryStore

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
    from midthought.errors import MemoryStoreError
    from midthought.memory.store import MemoryStore

    store = MemoryStore.open(tmp_path / "memory")
    twin = deserialize(serialize(store, "it"), "it")  # not built yet: nothing is missing
    assert not twin.is_built
    reopened, (place, *others, was_built) = store.__reduce__()
    assert not was_built
    with pytest.raises(MemoryStoreError, match=r"no memory .* every machine can read"):
        reopened(place, *others, True)
