"""Which of several servers gets the next request."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from midthought.engines.servers import endpoints as endpoints_module
from midthought.engines.servers.endpoints import Endpoint, Endpoints


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[Endpoints, Endpoint, Endpoint, list[float]]:
    """Two servers, and a clock that the test sets."""
    clock = [1000.0]
    monkeypatch.setattr(endpoints_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    endpoints = Endpoints(["http://a:1", "http://b:1"], pause_seconds=1.0, max_pause_seconds=1.0)
    return endpoints, *endpoints.all, clock


def taken(endpoints: Endpoints, *episodes: int) -> list[str]:
    """The servers of these episodes' next requests, all of which are running then."""

    async def take() -> list[str]:
        found = []
        for episode in episodes:
            endpoint = await endpoints.take(episode)
            endpoint.num_taken += 1
            found.append(endpoint.url[7:8])
        return found

    return asyncio.run(take())


def test_a_new_episode_goes_to_the_server_with_the_fewest_requests_and_stays_there(two: Any) -> None:
    endpoints, a, b, _ = two
    b.num_taken = 2
    assert taken(endpoints, 1, 2, 3, 1, 2) == ["a", "a", "a", "a", "a"]
    assert taken(endpoints, 4) == ["b"]
    endpoints.forget(1)
    assert a.num_taken > b.num_taken and taken(endpoints, 1) == ["b"]


def test_after_its_pause_one_request_at_a_time_tests_a_failed_server(two: Any) -> None:
    endpoints, a, _, clock = two
    endpoints.failed(a, "out of order", started_at=clock[0])
    assert taken(endpoints, 1, 2) == ["b", "b"]
    clock[0] += 2
    assert taken(endpoints, 3, 4, 5) == ["a", "b", "b"]
    endpoints.succeeded(a)
    assert taken(endpoints, 6) == ["a"]
