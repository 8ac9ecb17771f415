"""Which of several servers gets the next request."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from midthought.engines.servers import pool as pool_module
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.pool import ServerPool
from midthought.engines.servers.server import Requirements, Server
from midthought.engines.servers.streams import RetryableError
from midthought.engines.servers.vllm import VLLMServer


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[ServerPool, Server, Server, list[float]]:
    """Two servers, and a clock that the test sets."""
    clock = [1000.0]
    monkeypatch.setattr(pool_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    retry_policy = RetryPolicy(pause_seconds=1.0, max_pause_seconds=1.0)
    a, b = (VLLMServer(f"http://{name}:1", Requirements(model="tiny"), retry_policy) for name in "ab")
    return ServerPool([a, b], retry_policy), a, b, clock


def taken(pool: ServerPool, *episodes: int) -> list[str]:
    """The servers of these episodes' next requests, all of which are running then."""

    async def take() -> list[str]:
        found = []
        for episode in episodes:
            server = await pool.take(episode)
            server.num_taken += 1
            found.append(server.url[7:8])
        return found

    return asyncio.run(take())


def test_a_new_episode_goes_to_the_server_with_the_fewest_requests_and_stays_there(two: Any) -> None:
    pool, a, b, _ = two
    b.num_taken = 2
    assert taken(pool, 1, 2, 3, 1, 2) == ["a", "a", "a", "a", "a"]
    assert taken(pool, 4) == ["b"]
    pool.forget(1)
    assert a.num_taken > b.num_taken and taken(pool, 1) == ["b"]


def test_a_failed_server_gets_no_requests_while_it_pauses(two: Any) -> None:
    pool, a, _, clock = two
    pool.failed(a, RetryableError("out of order"), started_at=clock[0])
    assert taken(pool, 1, 2) == ["b", "b"]
    clock[0] += 2
    assert taken(pool, 3, 4, 1) == ["a", "a", "b"]
