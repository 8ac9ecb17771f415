"""A served memory is searched like a local one, and errors name the problem."""

import copy
import pickle
import socket
import time
from dataclasses import replace

import pytest
from serving import served

from midthought.engines.servers.process import free_port
from midthought.errors import MemoryStoreError, NoReplyError, SettingsError
from midthought.memory.remote import RemoteMemory, open_memory
from midthought.memory.service.auth import AccessPolicy
from midthought.memory.tool import MemoryRetrievalTool

TOKEN = "a-token-that-nobody-guesses"
QUERIES = ["a copper hand", "mitten", "herring scales in the café", "yes", "' OR 1=1 --", "a\ud800b", "a\0b"]


@pytest.fixture
def service(store, embedder):
    with served(store.uri, embedder) as service:
        yield service


@pytest.mark.parametrize("mode", ["hybrid", "vector", "full_text"])
def test_the_tool_says_the_same_of_a_memory_here_and_of_one_that_is_served(service, store, mode):
    here, there = (MemoryRetrievalTool(memory, mode=mode) for memory in (store, RemoteMemory(service.url)))
    assert here.definition.json_schema() == there.definition.json_schema()
    for query in QUERIES[:-1]:
        assert here.execute(query=query, k=4) == there.execute(query=query, k=4), query


def test_filters_and_batches_are_those_of_the_store(service, store):
    remote = RemoteMemory(service.url)
    assert remote.search("yes", 5, "vector", speakers=["Ann"]) == store.search("yes", 5, "vector", speakers=["Ann"])
    assert len(remote) == 6 and remote.get(["tide_3", "none"]) == store.get(["tide_3", "none"])


def test_it_travels_without_its_connections_and_its_token(service, monkeypatch):
    monkeypatch.setenv("MEMORY_TOKEN", TOKEN)
    remote = RemoteMemory(service.url, token_env="MEMORY_TOKEN")
    remote.search("yes")
    data = pickle.dumps(MemoryRetrievalTool(remote))
    assert TOKEN.encode() not in data
    assert pickle.loads(data).execute(query="mitten", k=1).metadata == {"chunk_ids": ["tide_2"]}  # noqa: S301
    assert copy.deepcopy(remote).search("yes") == remote.search("yes")


def test_connections_are_used_again_and_opened_anew_where_the_service_closed_them(service, monkeypatch):
    from uvicorn.protocols.http.h11_impl import H11Protocol

    made, connect = [], H11Protocol.connection_made
    monkeypatch.setattr(H11Protocol, "connection_made", lambda self, to: (made.append(to), connect(self, to)))
    remote = RemoteMemory(service.url, retries=0)
    remote.search("yes")
    remote.search("yes")
    (transport,) = made
    assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    transport.abort()
    time.sleep(0.1)
    assert remote.search("mitten", 1)[0].chunk_id == "tide_2"
    assert len(made) == 2


def test_the_token_is_asked_for_and_given(store, embedder, monkeypatch):
    with served(store.uri, embedder, access=AccessPolicy(token=TOKEN)) as service:
        with pytest.raises(MemoryStoreError, match=r"rejects the token.*memory\.token_env"):
            open_memory(service.url)
        monkeypatch.setenv("MEMORY_TOKEN", TOKEN)
        assert open_memory(service.url, token_env="MEMORY_TOKEN").search("mitten", 1)[0].chunk_id == "tide_2"
        monkeypatch.setenv("MEMORY_TOKEN", "another-token-altogether")
        with pytest.raises(MemoryStoreError, match="check its value") as raised:
            open_memory(service.url, token_env="MEMORY_TOKEN")
        assert "another-token" not in str(raised.value)


def test_what_is_asked_for_at_the_start_is_said_at_the_start(service, chunks, monkeypatch):
    with pytest.raises(MemoryStoreError, match="the service has table 'transcripts', not 'other'"):
        open_memory(service.url, "other")
    with pytest.raises(SettingsError, match="NO_SUCH_TOKEN is not set"):
        open_memory(service.url, token_env="NO_SUCH_TOKEN")
    for url in ("http://", "http://user:secret@host", "http://host?x", "http://host:port"):
        with pytest.raises(SettingsError) as raised:
            RemoteMemory(url)
        assert "secret" not in str(raised.value)
    RemoteMemory(service.url).require(chunks)
    with pytest.raises(MemoryStoreError, match="lacks 1 of 6 chunks, such as 'tide_1'"):
        RemoteMemory(service.url).require([replace(chunks[1], transcript="other words"), chunks[0], *chunks[2:]])


def test_a_service_that_is_not_there_is_a_sentence_for_the_user_and_for_the_model():
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(MemoryStoreError, match=r"no service answers at this address.*midthought memory serve"):
        open_memory(url)
    with pytest.raises(NoReplyError, match=rf"{url}: the memory cannot be reached .*memory serve"):
        RemoteMemory(url, retries=1).search("yes")
    with pytest.raises(NoReplyError, match=r"http://a\.\.b: the memory cannot be reached .*memory serve"):
        RemoteMemory("http://a..b", retries=0).search("yes")
