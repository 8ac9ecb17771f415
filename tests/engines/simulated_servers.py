"""Model servers in simulated time: an event loop whose clock jumps to the next timer, and continuous batching as vLLM does it."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from midthought.engines.engine import Sampling
from midthought.engines.servers import endpoints as endpoints_module
from midthought.engines.servers import slow_servers as slow_servers_module
from midthought.engines.servers.endpoints import Endpoints
from midthought.engines.servers.slow_servers import SlowServers
from midthought.engines.servers.streams import PartialCompletion


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Nothing but timers: no sockets, no threads."""

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


@dataclass(eq=False)
class Request:
    draft: PartialCompletion
    num_left: int
    num_prefill: int
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_cancelled: bool = False


@dataclass(eq=False)
class SimulatedServer:
    """A step prefills up to 8192 tokens of waiting prompts and gives a token to every request that is prefilled."""

    step_seconds: float = 0.015
    sequence_seconds: float = 0.0001
    """Of a step, for each running request."""
    prefill_seconds: float = 0.00003
    """Of a step, for each token."""
    hangs: bool = False
    requests: list[Request] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    async def stream(self, draft: PartialCompletion, num_left: int, num_prefill: int) -> None:
        request = Request(draft, num_left, num_prefill)
        self.requests.append(request)
        if not self.hangs and (self.task is None or self.task.done()):
            self.task = asyncio.ensure_future(self._run())
        try:
            await request.has_ended.wait()
        finally:
            request.is_cancelled = True

    async def _run(self) -> None:
        while self.requests:
            room = 8192
            for request in self.requests:
                num = min(room, request.num_prefill)
                request.num_prefill -= num
                room -= num
            ready = [request for request in self.requests if not request.num_prefill]
            seconds = self.step_seconds + self.sequence_seconds * len(ready) + self.prefill_seconds * (8192 - room)
            await asyncio.sleep(seconds * random.uniform(0.95, 1.05))
            for request in ready:
                if not request.is_cancelled:
                    request.draft.token_ids.append(1)
                    request.num_left -= 1
                    if not request.num_left:
                        request.has_ended.set()
                        request.is_cancelled = True
            self.requests = [request for request in self.requests if not request.is_cancelled]


@dataclass(frozen=True)
class Work:
    """Episodes that all start at once, of several turns with random lengths, one tool call in between."""

    num_episodes: int
    num_turns: int
    num_tokens: tuple[int, int]
    num_prompt_tokens: tuple[int, int]


def run_simulated(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Runs a coroutine, with a random generator of the same seed each time. Returns the simulated seconds."""
    random.seed(0)
    loop = SimulatedLoop()
    for module in (endpoints_module, slow_servers_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=loop.time))
    started = loop.now
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(make())
    return loop.now - started


def run_episodes(
    monkeypatch: pytest.MonkeyPatch, servers: list[SimulatedServer], work: Work
) -> tuple[float, list[bool]]:
    """Returns the simulated seconds, and which servers were ever found slow."""
    urls = [f"http://server{number}:1" for number in range(len(servers))]
    endpoints = Endpoints(urls, pause_seconds=1.0, max_pause_seconds=1.0)
    slow = SlowServers(endpoints)
    by_endpoint = dict(zip(endpoints.all, servers, strict=True))

    async def episode(number: int) -> None:
        num_before, home = 0, None
        for _ in range(work.num_turns):
            num_prompt, num_tokens = random.randint(*work.num_prompt_tokens), random.randint(*work.num_tokens)
            draft = PartialCompletion([1], Sampling(max_tokens=num_tokens), frozenset())
            while len(draft.token_ids) < num_tokens:
                endpoint = await endpoints.take(number)
                endpoint.num_taken += 1
                num_prefill = num_prompt + (0 if endpoint is home else num_before + len(draft.token_ids))
                home = endpoint
                async with slow.watch(endpoint, draft):
                    await by_endpoint[endpoint].stream(draft, num_tokens - len(draft.token_ids), num_prefill)
                endpoint.num_taken -= 1
            num_before += num_prompt + num_tokens
            await asyncio.sleep(random.expovariate(1.0))

    async def all_episodes() -> None:
        await asyncio.gather(*map(episode, range(work.num_episodes)))

    seconds = run_simulated(monkeypatch, all_episodes)
    return seconds, [endpoint.slow_until > 0 for endpoint in endpoints.all]
