"""Engines over fake servers, with little patience, and interpreters that have a vLLM and an SGLang of our own."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_server import hashed

from midthought.engines.engine import Sampling, Stopper
from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.engine import ServerEngine
from midthought.engines.servers.launch import SERVERS
from midthought.types import Completion

KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
PROMPT = [3, 1, 2]
IMPATIENT: dict[str, Any] = {"pause_seconds": 0.01, "max_pause_seconds": 0.05}


def written(num_tokens: int, prompt: Sequence[int] = PROMPT) -> list[int]:
    """What the fake server's policy writes after the prompt."""
    context = list(prompt)
    for _ in range(num_tokens):
        context.append(hashed(context, 50))
    return context[len(prompt) :]


def engine_for(
    *servers: Any, kind: str = "", model: str = "", eos: Sequence[int] = (), limits: Any = None, **retry_policy: Any
) -> ServerEngine:
    """An engine over fake servers, or over those at addresses; `limits`: further options."""
    first = servers[0]
    return ServerEngine(
        SERVERS[kind or getattr(first, "kind", "vllm")],
        [getattr(server, "url", server) for server in servers],
        model or getattr(first, "model", "tiny"),
        eos_token_ids=eos,
        retry_policy=RetryPolicy(**{**IMPATIENT, **retry_policy}),
        **(limits or {}),
    )


def sample(engine: ServerEngine, max_tokens: int = 12, stopper: Stopper | None = None, **sampling: Any) -> Completion:
    return asyncio.run(engine.sample(0, PROMPT, Sampling(max_tokens=max_tokens, **sampling), stopper=stopper))


def sample_together(engine: ServerEngine, prompts: dict[int, list[int]]) -> list[Completion]:
    """Samples four tokens after the prompt of each episode, all at once."""

    async def run() -> list[Completion]:
        ways = Sampling(max_tokens=4)
        return await asyncio.gather(*(engine.sample(episode, prompt, ways) for episode, prompt in prompts.items()))

    return asyncio.run(run())


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Zombies, which wait for whoever inherited them, are not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text() if Path("/proc").is_dir() else True


def interpreter(folder: Path, script: str = 'exec "{python}" "{server}" "$@"') -> str:
    """A program that takes the words of a Python interpreter and runs this script; by default the fake server."""
    path = folder / "python"
    server = Path(__file__).with_name("fake_server.py")
    path.write_text(f"#!/bin/sh\n{script.replace('{python}', sys.executable).replace('{server}', str(server))}\n")
    path.chmod(0o755)
    return str(path)
