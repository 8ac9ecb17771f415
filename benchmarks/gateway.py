"""Part `gateway`: processor time of the gateway for each request, its latency over the engine's, and its memory after sessions.

The gateway and the clients run in separate processes. The engine writes given words; where processor time is measured, it does
not wait, and almost all of its time is its stopper's, which belongs to the gateway. Messages have 60 words of one token each.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.options import Options
from benchmarks.reciter import STYLES, WORDS, make_tokenizer
from benchmarks.table import Row
from benchmarks.timing import Spread
from midthought.config import InferenceConfig
from midthought.engines.engine import Sampling, Stopper
from midthought.engines.generation import BaseInferenceEngine
from midthought.serve.chat_policy import ChatPolicy
from midthought.serve.gateway import Gateway
from midthought.serve.sessions import Session
from midthought.tokenization import Renderer
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Completion, Finish

PART = "gateway"
MAX_CPU_MS, MAX_P50_MS, MAX_P95_MS, MAX_GROWTH = 3.0, 5.0, 20.0, 1.02
NUM_MESSAGES, NUM_WORDS = 50, 60
NUM_WRITTEN, NUM_STEPS = 32, 20
"""Words of an answer, and the steps in which an answer that takes time arrives."""
NUM_SESSIONS = 64
PATHS = {"chat": "/v1/chat/completions", "anthropic": "/v1/messages"}


def measure(options: Options) -> Iterator[Row]:
    num = 8 if options.quick else 40
    with served() as server:
        for dialect, stream in itertools.product(PATHS, (False, True)):
            yield from processor_time(server, dialect, num, options.num_rounds, stream=stream)
    seconds = 0.1 if options.quick else 1.0
    with served(seconds) as server:
        yield from latency(server, seconds, num_turns=1 if options.quick else 4)
    with served() as server:
        yield from memory(server, num_rounds=2 if options.quick else 5)


def processor_time(server: Server, dialect: str, num: int, num_rounds: int, *, stream: bool) -> Iterator[Row]:
    """Requests one after the other, each of a session of its own: the first one is rendered, the second one continued."""
    found: dict[str, list[float]] = {"rendered": [], "continued": []}
    for number in range(num_rounds + 1):
        agents = [Agent(server.open(), dialect, NUM_MESSAGES - 3, stream=stream) for _ in range(num)]
        for name in found:
            before = server.usage()["cpu"]
            asyncio.run(one_by_one(agents))
            if number:
                found[name].append(1000 * (server.usage()["cpu"] - before) / num)
        server.close_sessions()
    for name, values in found.items():
        yield Row(
            part=PART,
            setting=f"{dialect}, {'stream' if stream else 'whole'}, {NUM_MESSAGES} messages, {NUM_WRITTEN} words written",
            figure=f"processor time of a {name} request",
            value=Spread.of(values),
            at_most=MAX_CPU_MS,
            unit="ms",
        )


async def one_by_one(agents: Sequence[Agent]) -> None:
    for agent in agents:
        await agent.ask()
        await agent.leave()


def latency(server: Server, seconds: float, num_turns: int) -> Iterator[Row]:
    """Sessions whose first requests are spread over the time of an answer: time of a request minus that of the engine."""
    rng = random.Random(0)
    agents = [
        Agent(server.open(), dialect, 9, stream=stream)
        for dialect, stream in itertools.islice(itertools.cycle(itertools.product(PATHS, (False, True))), NUM_SESSIONS)
    ]

    async def play(agent: Agent) -> None:
        await asyncio.sleep(rng.uniform(0.0, seconds))
        for _ in range(num_turns):
            await agent.ask()
        await agent.leave()

    async def everything() -> None:
        await asyncio.gather(*map(play, agents))

    asyncio.run(everything())
    engine = server.tell("durations")
    taken = [1000 * (spent - engine[number]) for agent in agents for number, spent in agent.seconds.items()]
    for percent, goal in ((50, MAX_P50_MS), (95, MAX_P95_MS)):
        yield Row(
            part=PART,
            setting=f"{NUM_SESSIONS} sessions, answers of {seconds:g} s, {len(taken)} requests",
            figure=f"latency over the engine's, p{percent}",
            value=Spread.of([float(np.percentile(taken, percent))]),
            at_most=goal,
            unit="ms",
        )


def memory(server: Server, num_rounds: int) -> Iterator[Row]:
    """Rounds of sessions that are closed: resident memory after the last one over that after the first one."""
    sizes = []
    for _ in range(num_rounds):
        agents = [Agent(server.open(), "chat", NUM_MESSAGES - 1, stream=True) for _ in range(NUM_SESSIONS)]
        for _ in range(3):
            asyncio.run(one_by_one(agents))
        server.close_sessions()
        sizes.append(server.usage()["rss"])
    yield Row(
        part=PART,
        setting=f"{num_rounds} rounds of {NUM_SESSIONS} sessions with 3 requests of {NUM_MESSAGES} messages",
        figure=f"resident memory against {sizes[0]:.0f} MiB after the first round",
        value=Spread.of([sizes[-1] / sizes[0]]),
        at_most=MAX_GROWTH,
    )


# -- clients -----------------------------------------------------------------------------------------------------


class Agent:
    """A conversation that grows with every answer, over one connection. `seconds`: of each answer, by its number."""

    def __init__(self, client: dict[str, str], dialect: str, num_messages: int, *, stream: bool) -> None:
        rng = random.Random(client["key"])
        self.seconds: dict[str, float] = {}
        self._client, self._path, self._stream, self._words = client, PATHS[dialect], stream, rng
        self._messages = [self._message(("user", "assistant")[n % 2]) for n in range(num_messages)]
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> None:
        """Sends the conversation and appends the answer and a question."""
        body = {"model": "policy", "messages": self._messages, "max_tokens": 200, "stream": self._stream}
        data = json.dumps(body).encode()
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._client['key']}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        if self._connection is None:
            self._connection = await asyncio.open_connection("127.0.0.1", self._client["port"])
        reader, writer = self._connection
        began = time.perf_counter()
        writer.write(head.encode() + data)
        received = await self._response(reader)
        spent = time.perf_counter() - began
        text = text_of(received) if not self._stream else "".join(map(text_of, events(received)))
        self.seconds[text.split()[0]] = spent
        self._messages += [{"role": "assistant", "content": text}, self._message("user")]

    async def leave(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _response(self, reader: asyncio.StreamReader) -> bytes:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b" 200 " not in head:
            raise RuntimeError(f"{head!r} {await reader.read(1000)!r}")
        if self._stream:
            return await reader.readuntil(b"\r\n0\r\n\r\n")
        return await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))

    def _message(self, role: str) -> dict[str, str]:
        return {"role": role, "content": "".join(self._words.choices(WORDS, k=NUM_WORDS)).strip()}


def events(received: bytes) -> Iterator[bytes]:
    return (line[6:] for line in received.split(b"\n") if line.startswith(b"data: {"))


def text_of(data: bytes) -> str:
    """The text in a response, or in an event of a stream, of either dialect."""
    found = json.loads(data)
    if choices := found.get("choices"):
        return str((choices[0].get("message") or choices[0]["delta"]).get("content") or "")
    return "".join(block.get("text", "") for block in found.get("content", ())) + found.get("delta", {}).get("text", "")


# -- the server --------------------------------------------------------------------------------------------------


class Server:
    """The process with the gateway. It reads commands and writes their results, a line each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, command: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def open(self) -> dict[str, str]:
        return dict(self.tell("open"))

    def usage(self) -> dict[str, float]:
        return dict(self.tell("usage"))

    def close_sessions(self) -> None:
        self.tell("close")


@contextlib.contextmanager
def served(seconds: float = 0.0) -> Iterator[Server]:
    """A gateway whose answers take so long."""
    command = [sys.executable, "-m", "benchmarks.gateway", str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Server(process)
        process.kill()


class WritingEngine:
    """Writes a number and words."""

    policy_version = 0

    def __init__(self, renderer: Renderer, seconds: float) -> None:
        self.durations: dict[str, float] = {}
        self.eos_token_ids = renderer.eos_token_ids
        self._renderer, self._seconds, self._numbers = renderer, seconds, itertools.count(1)
        self._words = renderer.control("".join(WORDS[:NUM_WRITTEN]))

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        began = time.perf_counter()
        number = str(next(self._numbers))
        written = [*self._renderer.control(f"</think>{number}"), *self._words, min(self.eos_token_ids)]
        for step in range(NUM_STEPS):
            if self._seconds:
                await asyncio.sleep(max(0.0, began + (step + 1) * self._seconds / NUM_STEPS - time.perf_counter()))
            for token_id in written[step * len(written) // NUM_STEPS : (step + 1) * len(written) // NUM_STEPS]:
                if stopper is not None and token_id not in self.eos_token_ids:
                    stopper.feed(token_id)
        self.durations[number] = time.perf_counter() - began
        logprobs = (-0.5,) * len(written)
        return Completion(token_ids=tuple(written), sampled_logprobs=logprobs, finish=Finish.END)

    def open(self, episode: int) -> None: ...

    def close(self, episode: int) -> None: ...


def serve(seconds: float) -> None:
    """Runs the commands of the standard input."""
    style = STYLES["in_thought"]
    renderer = Renderer(make_tokenizer(style.template))
    core = WritingEngine(renderer, seconds)
    engine = BaseInferenceEngine(core, renderer)
    policy = ChatPolicy(
        engine=core,
        renderer=renderer,
        call_format=style.call_format,
        executor=ToolExecutor(ToolRegistry([])),
        max_seq_len=32_000,
        inference=InferenceConfig(max_tokens=1_000),
    )
    gateway, sessions = Gateway("policy"), list[Session]()
    gc.freeze()  # else a collection of what the libraries have made falls into a request
    for line in sys.stdin:
        command = line.strip()
        found: Any = None
        if command == "open":
            sessions.append(gateway.open_session(policy, seed=0, start=engine.start))
            client = sessions[-1].client
            found = {"port": urlsplit(client.base_url).port, "key": client.api_key}
        elif command == "close":
            for session in sessions:
                asyncio.run(session.close())
            sessions.clear()
            gc.collect()
        elif command == "usage":
            rss = int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * 4096 / 2**20
            found = {"cpu": time.process_time(), "rss": rss}
        elif command == "durations":
            found = core.durations
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    serve(float(sys.argv[1]))
