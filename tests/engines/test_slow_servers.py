"""One slow, dead or faulty server among several: it costs at most its share, and comes back when it works again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any

import pytest
from fake_server import FakeServer, Fault, hashed
from simulated_servers import SimulatedServer, Work, run_episodes, run_simulated

from midthought.engines.engine import Sampling
from midthought.engines.servers import endpoints as endpoints_module
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.endpoints import Endpoint, Endpoints
from midthought.engines.servers.process import free_port
from midthought.engines.servers.slow_servers import SlowServers
from midthought.engines.servers.streams import PartialCompletion
from midthought.engines.servers.vllm import VLLMEngine

pytest.importorskip("httpx")

PROMPT = [3, 1, 2]
TOKEN_SECONDS = 0.05


def expected(number: int, num_tokens: int) -> tuple[int, ...]:
    context = [*PROMPT, number]
    for _ in range(num_tokens):
        context.append(hashed(context, 50))
    return tuple(context[len(PROMPT) + 1 :])


def sample_all(urls: list[str], num_episodes: int, num_tokens: int, *, max_num_seqs: int) -> float:
    """Samples all episodes, as many at once as the servers take. Returns the seconds. Every token must be right."""
    policy = RetryPolicy(pause_seconds=0.1, max_pause_seconds=0.5)
    engine = VLLMEngine(urls, "tiny", eos_token_ids=[], retry_policy=policy, max_num_seqs=max_num_seqs)

    async def run() -> None:
        room = asyncio.Semaphore(max_num_seqs * len(urls))

        async def one(number: int) -> None:
            async with room:
                engine.open(number)
                sampled = await engine.sample(number, [*PROMPT, number], Sampling(max_tokens=num_tokens))
                engine.close(number)
            assert sampled.token_ids == expected(number, num_tokens)

        await asyncio.gather(*map(one, range(num_episodes)))

    started = time.monotonic()
    asyncio.run(run())
    return time.monotonic() - started


@pytest.mark.parametrize("num_before", [0, 3])
def test_requests_on_a_server_that_hangs_continue_on_one_that_has_room(num_before: int) -> None:
    with FakeServer() as sick, FakeServer(token_seconds=0.02) as healthy:
        sick.always = Fault(kind="stall", after=num_before)
        sample_all([sick.url, healthy.url], 6, 20, max_num_seqs=8)
        assert len(sick.requests) == 3  # half of them started there, and none came back
        lengths = sorted(len(prompt) for prompt in healthy.prompts)
        assert lengths == sorted([len(PROMPT) + 1] * 3 + [len(PROMPT) + 1 + num_before] * 3)


WORK = {
    "one turn": Work(num_episodes=64, num_turns=1, num_tokens=(100, 400), num_prompt_tokens=(200, 3000)),
    "long results": Work(num_episodes=16, num_turns=4, num_tokens=(30, 200), num_prompt_tokens=(500, 12000)),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_in_simulated_time_a_sick_server_costs_at_most_its_share_and_no_healthy_one_is_slow(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy, found = run_episodes(monkeypatch, [SimulatedServer() for _ in range(4)], work)
    assert not any(found)
    slower = SimulatedServer(step_seconds=0.06, sequence_seconds=0.0004, prefill_seconds=0.00012)
    for sick in (slower, SimulatedServer(hangs=True)):
        seconds, found = run_episodes(monkeypatch, [*(SimulatedServer() for _ in range(3)), sick], work)
        assert found == [False, False, False, True]
        assert healthy / seconds > 0.75 * 0.93


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
def test_a_server_is_slow_by_request_and_in_total(
    num_requests: int, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten requests at a tenth of the speed are as much work: that server is full, not slow."""
    endpoints = Endpoints(["http://a:1", "http://b:1"], pause_seconds=1.0, max_pause_seconds=1.0, max_num_seqs=16)
    a, b = endpoints.all
    slow = SlowServers(endpoints)

    async def both() -> None:
        await asyncio.gather(write(slow, a, num_requests, 0.1), write(slow, b, 1, 0.01))

    run_simulated(monkeypatch, both)
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


def test_an_episode_leaves_a_slow_server_only_for_one_with_room(two: Any) -> None:
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


def test_after_its_pause_one_request_at_a_time_tests_a_failed_server(two: Any) -> None:
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
def test_a_server_gets_new_episodes_by_its_measured_speed(two: Any, token_seconds: float, expected: str) -> None:
    """Three times as slow: a third as many. Differences below 30 % are chance."""
    endpoints, a, b, _ = two
    a.token_seconds, b.token_seconds = token_seconds, 0.01
    assert "".join(taken(endpoints, *range(9))) == expected


SICK: dict[str, dict[str, Any]] = {
    "slow": {"token_seconds": 10 * TOKEN_SECONDS},
    "hanging": {"always": Fault(kind="stall", after=2)},
    "faulty": {"always": Fault(kind="status", status=500)},
    "cutting": {"always": Fault(kind="cut", after=2)},
}


@pytest.mark.slow
@pytest.mark.parametrize(("num_episodes", "num_tokens"), [(12, 100), (144, 20)])
@pytest.mark.parametrize("name", [*SICK, "dead"])
def test_one_sick_server_among_four_costs_at_most_its_share(name: str, num_episodes: int, num_tokens: int) -> None:
    """A short run: 12 episodes at once. A long one: 144, 16 at once: 9 rounds, on three servers 12."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(FakeServer(token_seconds=TOKEN_SECONDS)) for _ in range(4)]
        urls = [server.url for server in servers]
        healthy = sample_all(urls, num_episodes, num_tokens, max_num_seqs=4)
        for attribute, value in SICK.get(name, {}).items():
            setattr(servers[3], attribute, value)
        if name == "dead":
            urls[3] = f"http://127.0.0.1:{free_port()}"
        sick = sample_all(urls, num_episodes, num_tokens, max_num_seqs=4)
    print(f"{name}, {num_episodes} episodes: {healthy / sick:.2f} of the throughput of four healthy servers")
    assert healthy / sick > 0.75 * 0.93
