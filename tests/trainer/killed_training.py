"""A training run in a process of its own, to be killed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch

from midthought import Trainer, create_default_config, save_trajectories
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.trainer import overlapping

QUESTIONS = [{"question": f"Say {number}.", "answer": "red"} for number in range(5)]
MAX_STALENESS, GROUP_SIZE = 2, 2
HELD = 4
"""Number of the group that does not finish while there is a file `hold`."""


def settings(num_iters: int, *, overlap: bool, max_staleness: int) -> Any:
    training = {"adv_estimator": "grpo", "group_size": GROUP_SIZE, "batch_size": 6, "mini_batch_size": 4}
    training |= {"max_dynamic_batches": 2, "num_train_iters": num_iters, "validate_every": 0, "learning_rate": 1e-3}
    return create_default_config(
        preset="tiny",
        inference={"max_tokens": 48, "deterministic": False, "overlap": overlap},
        training={**training, "max_staleness": max_staleness},
        checkpoint={"save_interval": 3, "save_minutes": 1e9},
    )


def listening() -> dict[int, str]:
    """The inodes of the sockets that listen on this machine, by port. A port may be another process's later, an inode not."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16): row[9] for row in rows if row[3] == "0A"}


class Agent:
    """Two turns, and a second answer to the first question. The socket that serves each session is a line of `folder/sockets`."""

    def __init__(self, folder: str) -> None:
        self._sockets = os.open(Path(folder, "sockets"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, task: Any, client: Any) -> float | None:
        port = urlsplit(client.base_url).port
        assert port is not None
        os.write(self._sockets, f"{listening()[port]}\n".encode())
        headers = {"authorization": f"Bearer {client.api_key}"}
        question = {"role": "user", "content": task.prompt}
        messages = [question]
        with httpx.Client(base_url=client.base_url, headers=headers, timeout=60) as http:
            for asks in ([], [], [{"role": "user", "content": "Say it."}]):
                asked = [*messages, *asks] if asks else [question]
                body = {"model": client.model, "messages": asked, "max_tokens": 16}
                answer = http.post("/chat/completions", json=body).raise_for_status().json()
                messages = [question, answer["choices"][0]["message"]]
        return None


def train(folder: str, num_iters: int, overlap: bool, max_staleness: int, agents: bool, started: Any) -> None:
    """Trains in `folder/run`, or continues there. Every scored episode is a line of `folder/scored`."""
    torch.set_num_threads(1)
    overlapping.num_cores = lambda: 2  # they overlap also if the tests may use one core only
    tokenizer = make_tokenizer(["Say red blue green 0 1 2 3 4."] * 20, 300)
    policy = make_policy(tokenizer, hidden_size=32, num_layers=1, num_heads=2, max_length=256, seed=0)
    scored = os.open(Path(folder, "scored"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def reward(trajectory: Any) -> float:
        while trajectory.group == HELD and Path(folder, "hold").exists():
            await asyncio.sleep(0.05)
        os.write(scored, f"{os.getpid()} {trajectory.group} {trajectory.seed}\n".encode())
        return float(sum(trajectory.token_ids) % 3)

    class Keeping(Trainer):
        """Writes what it trains on, a file for each iteration."""

        def train_step(self, data: Any = None) -> dict[str, float]:
            save_trajectories(Path(folder, "episodes", f"{self.iteration + 1:06}.jsonl"), data)
            return super().train_step(data)

    options: dict[str, Any] = {"run_path": Path(folder, "run"), "resume": True, "progress": False}
    options |= {"agent": Agent(folder)} if agents else {}
    config = settings(num_iters, overlap=overlap, max_staleness=max_staleness)
    with Keeping(config, None, reward, QUESTIONS, model=policy, tokenizer=tokenizer, **options) as trainer:
        started.set()
        trainer.fit()
