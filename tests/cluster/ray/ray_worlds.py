"""What the tests of Ray's workers roll out: a small random model, environments that end or kill workers, tools of several kinds.

Workers import this module, too. It writes into files, and does not import transformers or a learner.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from midthought import BaseEnvironment, create_default_config, tool
from midthought.engines.scripted import ScriptedEngine
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.tokenization import Renderer
from midthought.tools.definition import Tool, ToolDefinition, ToolEpisode, ToolParameter
from midthought.types import Reward, Task, Trajectory

WORDS = ["Say a colour.", "Say it again.", "red", "blue", "green", "#call twice", "#twice_result:"]
WORDS += ["speaker: Ann; episode: A; 00:00:01: the tide is late", '#call memory_retrieval {"query": "tide"}']


@tool
def twice(word: str) -> str:
    """Says it twice.

    Args:
        word: what to say
    """
    return f"{word} {word}"


class Echo(BaseEnvironment):
    """Two turns; each pays by the length of what was said."""

    def reset(self, seed: int = 0) -> str:
        self.num_turns = 0
        return f"Say a colour, {seed % 7}."

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        self.num_turns += 1
        return "Say it again.", len(action) / 10, self.num_turns == 2, {"success": len(action) % 2 == 0}


class HoldsLock(Echo):
    """Holds something that no other process can have."""

    def __init__(self) -> None:
        super().__init__()
        self.things = {"guard": threading.Lock()}


@dataclass(eq=False)
class LoggedReward:
    """A reward that says in a file where it is given, and takes its time."""

    log: Path
    seconds: float

    def __call__(self, trajectory: Trajectory) -> float:
        import ray

        write_line(self.log, f"{os.getpid()} {ray.get_runtime_context().get_node_id()}")
        time.sleep(self.seconds)
        return float(trajectory.num_sampled)


@dataclass(eq=False)
class OneAnswer:
    """An episode of one answer. When it is judged, `happens` is called, and then the task's id is written into the log."""

    log: Path
    happens: Callable[[Path, Trajectory], object] = lambda log, trajectory: None

    def __call__(self, task: Task) -> OneAnswer:
        return self

    async def reply(self, trajectory: Trajectory) -> str | None:
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        self.happens(self.log, trajectory)
        write_line(self.log, trajectory.task.task_id)
        return Reward(parts={"length": float(trajectory.num_sampled)})


def write_line(path: Path, words: object) -> None:
    with path.open("a") as file:
        file.write(f"{words}\n")


def log_process(log: Path, trajectory: Trajectory) -> None:
    write_line(log.with_name("processes"), os.getpid())


def kill_worker(log: Path, trajectory: Trajectory, *, once: set[str], always: set[str]) -> None:
    """In the episodes of some tasks: only the first time, or always."""
    task_id = trajectory.task.task_id
    died = log.with_name(f"died-{task_id}")
    if task_id in always or (task_id in once and not died.exists()):
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def block_event_loop(log: Path, trajectory: Trajectory) -> None:
    """The worker's whole loop, once."""
    frozen = log.with_name("frozen")
    if not frozen.exists():
        frozen.touch()
        time.sleep(600)


def record_a_lock(log: Path, trajectory: Trajectory) -> None:
    """The record cannot come back."""
    trajectory.turns[-1].tool_call.parameters = {"lock": threading.Lock()}


def log_warning(log: Path, trajectory: Trajectory) -> None:
    logging.getLogger("worlds").warning("the tide is late for %s", trajectory.task.task_id)


def tasks(count: int) -> list[Task]:
    return [Task(task_id=f"t{number}", prompt=f"Say a colour, {number}.", answer="red") for number in range(count)]


def tokenizer() -> Any:
    return make_tokenizer(WORDS * 20, 400)


def policy(words: Any, *, seed: int = 0) -> Any:
    made = make_policy(words, hidden_size=64, num_layers=2, num_heads=2, max_length=512, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return made


def settings(*, num_actors: int = 1, **sections: Any) -> Any:
    training = {"batch_size": 4, "mini_batch_size": 4, "num_train_iters": 2}
    training |= {"validate_every": 0, "num_validation_questions": 3, "learning_rate": 1e-3}
    return create_default_config(
        inference={"max_tokens": 24, "deterministic": True} | sections.pop("inference", {}),
        training=training | sections.pop("training", {}),
        ray={"use_ray": True, "num_actors": num_actors, "cpus_per_actor": 0.5, "start_timeout_seconds": 600}
        | sections.pop("ray", {}),
        **sections,
    )


class Diary(Tool):
    """Keeps the words of one episode. It leaves a line in a file when it is opened and when it is closed."""

    definition = ToolDefinition("diary", "Keeps a diary.", [ToolParameter("word", "string", "What to add.")])

    def __init__(self, log: Path, episode: ToolEpisode | None = None) -> None:
        self.log = log
        self.episode = episode
        self.words: list[str] = []

    def open(self, episode: ToolEpisode) -> Diary:
        self._say("opened", episode)
        return Diary(self.log, episode)

    def execute(self, word: str) -> str:
        words = list(self.words)
        time.sleep(0.001)
        self.words = [*words, word]
        assert self.episode is not None
        return " ".join([self.episode.task.task_id, str(self.episode.seed), *self.words])

    def close(self) -> None:
        assert self.episode is not None
        self._say("closed", self.episode)

    def _say(self, what: str, episode: ToolEpisode) -> None:
        write_line(self.log, f"{what}-{episode.task.task_id}-{os.getpid()}")


class Diarist(ScriptedEngine):
    """Writes three calls of `diary` and an answer, in every episode; its weights do nothing."""

    max_seq_len = 2048

    def __init__(self, model: Any, *, renderer: Renderer) -> None:
        calls = "".join(f'#call diary {{"word": "{letter}"}}' for letter in "abc")
        self._said = f"<think>{calls}</think>red<|im_end|>"
        super().__init__(lambda episode, token_ids: self._said, renderer)

    def update_weights(self) -> None:
        self.policy_version += 1

    def sleep(self) -> None:
        """Nothing."""

    def shutdown(self) -> None:
        """Nothing."""
