"""One slow, dead or faulty server among several: it costs at most its share, and comes back when it works again."""

from __future__ import annotations

import asyncio
import selectors
from types import SimpleNamespace
from typing import Any

import pytest
from fake_server import FakeServer, Fault
from server_engines import PROMPT, engine_for, written

from midthought.engines.engine import Sampling
from midthought.engines.servers import endpoints as endpoints_module
from midthought.engines.servers import slow_servers as slow_servers_module
from midthought.engines.servers.endpoints import Endpoint, Endpoints
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.slow_servers import SlowServers
from midthought.engines.servers.streams import PartialCompletion

pytest.importorskip("httpx")


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Its clock jumps to the next timer. Nothing but timers: no sockets, no threads."""

    def __init__(self) -> None:
        loop = self
        self.now = 1000.0

        class Clock(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> list[Any]:
                assert timeout is not None, "nothing will ever happen"
                loop.now += max(timeout, 0.0)
                return []

        super().__init__(Clock())

    def time(self) -> float:
        return self.now


@pytest.mark.parametrize("num_before", [0, 3])
def test_requests_on_a_server_that_hangs_continue_on_one_that_has_room(num_before):
    async def one(engine: ServerEngine, number: int) -> None:
        engine.open(number)
        sampled = await engine.sample(number, [*PROMPT, number], Sampling(max_tokens=20))
        engine.close(number)
        assert list(sampled.token_ids) == written(20, [*PROMPT, number])

    async def all_of_them(engine: ServerEngine) -> None:
        await asyncio.gather(*(one(engine, number) for number in range(6)))

    with FakeServer() as sick, FakeServer(token_seconds=0.02) as healthy:
        sick.always = Fault(kind="stall", after=num_before)
        asyncio.run(
            all_of_them(engine_for(sick, healthy, limits={"max_num_seqs": 8}, pause_seconds=0.1, max_pause_seconds=0.5))
        )
        assert len(sick.requests) == 3  # half of them started there, and none came back
        lengths = sorted(len(prompt) for prompt in healthy.prompts)
        assert lengths == sorted([len(PROMPT) + 1] * 3 + [len(PROMPT) + 1 + num_before] * 3)


async def write(slow: SlowServers, endpoint: Endpoint, num_requests: int, token_seconds: float) -> None:
    """The server writes 0.8 s long."""

    async def request() -> None:
        endpoint.num_taken += 1
        draft = PartialCompletion(PROMPT, Sampling(max_tokens=1000), frozenset())
        async with slow.watch(endpoint, draft):
            for _ in range(round(0.8 / token_seconds)):
                await asyncio.sleep(token_seconds)
                draft.token_ids.append(1)

    await asyncio.gather(*(request() for _ in range(num_requests)))


@pytest.mark.parametrize(("num_requests", "is_slow"), [(1, True), (10, False)])
def test_a_server_is_slow_by_request_and_in_total(num_requests, is_slow, monkeypatch):
    """Ten requests at a tenth of the speed are as much work: that server is full, not slow."""
    endpoints = Endpoints(["http://a:1", "http://b:1"], pause_seconds=1.0, max_pause_seconds=1.0, max_num_seqs=16)
    a, b = endpoints.all
    slow = SlowServers(endpoints)

    async def both() -> None:
        await asyncio.gather(write(slow, a, num_requests, 0.1), write(slow, b, 1, 0.01))

    loop = SimulatedLoop()
    for module in (endpoints_module, slow_servers_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=loop.time))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(both())
    assert (a.slow_until > 0) is is_slow and not b.slow_until


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[Endpoints, Endpoint, Endpoint, list[float]]:
    """Two servers, and a clock that the test sets."""
    clock = [1000.0]
    monkeypatch.setattr(endpoints_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    endpoints = Endpoints(["http://a:1", "http://b:1"], pause_seconds=1.0, max_pause_seconds=1.0, max_num_seqs=4)
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


def test_an_episode_leaves_a_slow_server_only_for_one_with_room(two):
    endpoints, a, b, clock = two
    assert taken(endpoints, 1) == ["a"]
    a.slow_until = clock[0] + 30
    assert taken(endpoints, 1) == ["b"]
    b.num_taken = 4
    assert not endpoints.is_slow(a) and taken(endpoints, 2) == ["a"]
    b.num_taken = 3
    assert endpoints.is_slow(a) and not endpoints.is_slow(b)
    clock[0] += 31  # it is tried again, because it may have recovered
    assert taken(endpoints, 3) == ["a"]


def test_after_its_pause_one_request_at_a_time_tests_a_failed_server(two):
    endpoints, a, _, clock = two
    endpoints.failed(a, "out of order", started_at=clock[0])
    assert taken(endpoints, 1, 2) == ["b", "b"]
    clock[0] += 2
    assert taken(endpoints, 3, 4, 5) == ["a", "b", "b"]
    endpoints.succeeded(a)
    assert taken(endpoints, 6) == ["a"]


@pytest.mark.parametrize(
    ("token_seconds", "expected"), [(0.035, "bbbabbbba"), (0.011, "ababababa"), (0.0, "ababababa")]
)
def test_a_server_gets_new_episodes_by_its_measured_speed(two, token_seconds, expected):
    """Three times as slow: a third as many. Differences below 30 % are chance."""
    endpoints, a, b, _ = two
    a.token_seconds, b.token_seconds = token_seconds, 0.01
    assert "".join(taken(endpoints, *range(9))) == expected
