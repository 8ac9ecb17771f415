"""`python -m benchmarks.short_form [TASK …]`: the short form on four tasks, with small models that it creates, on one core.

Each task: a short `Trainer.sft` on demonstrations, of which half call the tool and half guess, then `Trainer.fit` with GRPO.
Measured is the mean reward on held-out tasks, sampled at temperature 1, before and after `fit`. The control is the same without
the tool: demonstrations that guess, the same steps and iterations. The game has no tool; its control draws random actions.
Finished tasks are not measured again.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from midthought import CalculateTool, SimpleGameEnvironment, Trainer, load_tasks, mcp_tools, tool
from midthought.types import Task, Trajectory

COLORS, STUFFS, THINGS, ROOMS = (
    words.split()
    for words in (
        "amber azure black brown coral cream green ivory khaki lemon olive pearl plum rose silver teal white",
        "brass clay cork glass iron jade oak paper stone tin wax wool",
        "bell boat book bowl chair clock coat drum fan flag hat kite lamp mask pen pot ring rope shoe vase",
        "attic barn cellar garden hall kitchen library office porch stable studio tower",
    )
)
NAMES = [" ".join(words) for words in itertools.product(COLORS, STUFFS, THINGS)]
"""4,080 names. With a few hundred tasks, the supervised steps teach the answers instead of reading them in the tool's results."""
NUM_HELD_OUT = 128
SETTINGS: dict[str, Any] = {
    "num_layers": 3,
    "algorithm": "grpo",
    "batch_size": 128,
    "mini_batch_size": 128,
    "learning_rate": 2e-4,
    "policies": {"equal_rewards": "off"},
    "progress": False,
}
"""Besides those, the settings of the preset `tiny`, which a trainer has that creates its model. Batch and learning rate are as in
the podcast recipe: with 64 episodes and 3e-4, some seeds lost what they had learned. The control without a tool may never get a
reward, and continues."""


@dataclass(frozen=True)
class Job:
    """A task with a data set."""

    rows: list[dict[str, str]]
    tools: Sequence[Any]
    read: Callable[[str, str], tuple[dict[str, Any], str, str]]
    """Of a question and its answer: the arguments of a call, its result, and what to write after it. Words that are copied
    have a space before them wherever they are written, so that they are the same tokens."""
    num_steps: int = 300
    """Supervised steps."""

    def demonstrate(self, task: Task, *, has_tool: bool) -> list[dict[str, Any]]:
        """Returns a call, its result and the answer; or a guess, which is the answer of another task."""
        draw = random.Random(task.task_id)
        if not has_tool or draw.random() < 0.5:
            guess = draw.choice(self.rows)["answer"].rpartition("#### ")[2]
            return [{"role": "assistant", "content": guess, "reasoning_content": "I guess."}]
        arguments, result, answer = self.read(task.prompt, task.answer)
        (used,) = self.tools
        call = {"function": {"name": used.definition.name, "arguments": arguments}}
        return [
            {"role": "assistant", "content": "I look it up.", "tool_calls": [call]},
            {"role": "tool", "content": result},
            {"role": "assistant", "content": answer},
        ]


@contextmanager
def arithmetic() -> Iterator[Job]:
    """Word problems in GSM8K's form, with a calculator."""
    rows = [
        {"question": f"A box has {a} pens. How many pens do {b} boxes have?", "answer": f"{a} * {b} pens\n#### {a * b}"}
        for a, b in itertools.product(range(12, 75), repeat=2)
    ]

    def read(question: str, answer: str) -> tuple[dict[str, Any], str, str]:
        a, b = filter(str.isdigit, question.split())
        return {"expression": f" {a} * {b}"}, answer, answer

    yield Job(rows, [CalculateTool()], read, num_steps=500)  # the second number to copy is learned after step 300


@contextmanager
def documents() -> Iterator[Job]:
    """Where things are, which only the documents say."""
    draw = random.Random(1)
    places = {name: draw.choice(ROOMS) for name in NAMES}
    texts = {frozenset(name.split()): f"The {name} is in the {place}" for name, place in places.items()}

    @tool
    def search(query: str) -> str:
        """Returns the document that has the most words of the query."""
        words = frozenset(query.split())
        return texts.get(words) or texts[max(texts, key=lambda own: len(own & words))]

    def read(question: str, answer: str) -> tuple[dict[str, Any], str, str]:
        name = question.removeprefix("Where is the ").removesuffix(" now?")
        return {"query": f" {name}"}, search.execute(query=name), f" {answer}"

    yield Job([{"question": f"Where is the {name} now?", "answer": places[name]} for name in NAMES], [search], read)


@contextmanager
def mcp() -> Iterator[Job]:
    """The stock of a product, which only an MCP server knows."""
    stock = {name: str(10 + int(hashlib.sha256(name.encode()).hexdigest(), 16) % 90) for name in NAMES}

    def read(question: str, answer: str) -> tuple[dict[str, Any], str, str]:
        name = question.removeprefix("How many of the ").removesuffix(" are left?")
        return {"product": f" {name}"}, answer, answer

    rows = [{"question": f"How many of the {name} are left?", "answer": number} for name, number in stock.items()]
    with mcp_tools(command=[sys.executable, str(Path(__file__).with_name("stock_server.py"))]) as tools:
        yield Job(rows, tools, read)


JOBS = {"arithmetic": arithmetic, "documents": documents, "mcp": mcp}
TASKS = (*JOBS, "game")


def learn(job: Job, seed: int, *, has_tool: bool = True) -> dict[str, float]:
    """Learns a task with a data set, and returns its figures."""
    rows = random.Random(0).sample(job.rows, len(job.rows))
    held_out = load_tasks(rows[:NUM_HELD_OUT])
    with Trainer(
        dataset=rows[NUM_HELD_OUT:],
        validation=held_out,
        tools=job.tools if has_tool else [],
        demonstrations=lambda task: job.demonstrate(task, has_tool=has_tool),
        rewards=["correct"],
        describe_tools=False,
        max_tokens=64,
        num_train_iters=40,
        seed=seed,
        **SETTINGS,
    ) as trainer:
        return measured(trainer, lambda: trainer.source.evaluate(held_out, temperature=1.0), job.num_steps)


def play(seed: int) -> dict[str, float]:
    """Learns the game from a player who often takes a wrong way, and returns its figures."""
    with Trainer(
        environment=SimpleGameEnvironment,
        demonstrations=[played(number, share_of_mistakes=0.5) for number in range(400)],
        max_turns=10,
        num_train_iters=40,
        seed=seed,
        **SETTINGS,
    ) as trainer:
        return measured(trainer, lambda: [each for _ in range(4) for each in trainer.rollout()])


def measured(trainer: Trainer, sample: Callable[[], list[Trajectory]], num_steps: int = 300) -> dict[str, float]:
    """Returns the mean rewards of sampled episodes before and after `fit`, calls per episode, and the seconds of both stages."""
    seconds = [time.perf_counter()]
    trainer.sft(num_steps=num_steps, batch_tokens=2048)
    seconds.append(time.perf_counter())
    before = mean_reward(sample())
    seconds.append(time.perf_counter())
    trainer.fit()
    seconds.append(time.perf_counter())
    done = sample()
    calls = sum(len(each.tool_events) for each in done) / len(done)
    times = {"sft": seconds[1] - seconds[0], "fit": seconds[3] - seconds[2]}
    return {"before": before, "after": mean_reward(done), "calls": calls, **times}


def mean_reward(done: Sequence[Trajectory]) -> float:
    return sum(each.reward.total for each in done if each.reward is not None) / len(done)


ACTIONS = [*(f"move {each}" for each in ("north", "south", "east", "west")), "take key", "complete"]


def played(number: int, share_of_mistakes: float) -> list[dict[str, str]]:
    """Returns a played game. A mistake is a random action; the other actions are those that the game's text suggests."""
    draw, game = random.Random(number), SimpleGameEnvironment()
    said = [{"role": "user", "content": str(game.reset(seed=100_000 + number))}]
    for _ in range(8):
        sight = said[-1]["content"].rpartition("The ")[2]
        moves = [action for action in ACTIONS[:4] if f" {action.split()[1]}" in sight]
        good = [*moves, "take key" if "here" in sight else "complete"][0]
        action = draw.choice(ACTIONS) if draw.random() < share_of_mistakes else good
        seen, _, is_done, _ = game.step(action)
        said.append({"role": "assistant", "content": action})
        if is_done:
            break
        said.append({"role": "user", "content": seen})
    return said if said[-1]["role"] == "assistant" else said[:-1]


def random_play(num_games: int = 256) -> float:
    """Returns the mean return of 10 random actions."""
    draw, total = random.Random(0), 0.0
    for seed in range(num_games):
        game = SimpleGameEnvironment()
        game.reset(seed=seed)
        for _ in range(10):
            if game.is_done():
                break
            game.step(draw.choice(ACTIONS))
        total += game.get_episode_reward()
    return total / num_games


def figures(name: str, seed: int) -> dict[str, float]:
    """Measures a task and its control in this process."""
    torch.set_num_threads(1)
    if name == "game":
        return {**play(seed), "control": random_play()}
    with JOBS[name]() as job:
        return {**learn(job, seed), "control": learn(job, seed, has_tool=False)["after"]}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", help=f"any of {', '.join(TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("runs/short_form"))
    parser.add_argument("--here", action="store_true", help="measure the first task and seed in this process")
    arguments = parser.parse_args(words)
    names = arguments.tasks or TASKS
    if unknown := sorted(set(names) - set(TASKS)):
        parser.error(f"unknown task {unknown[0]!r}; there is: {', '.join(TASKS)}")
    if arguments.here:
        found = figures(names[0], arguments.seeds[0])
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / f"{names[0]}-{arguments.seeds[0]}.json").write_text(json.dumps(found))
        return
    print("| task | seed | after `sft` | after `fit` | control | calls | seconds: sft, fit |\n" + "| --- " * 7 + "|")
    for name, seed in itertools.product(names, arguments.seeds):
        path = arguments.out / f"{name}-{seed}.json"
        if not path.exists():
            own = [name, "--seeds", str(seed), "--out", str(arguments.out), "--here"]
            subprocess.run([sys.executable, "-m", "benchmarks.short_form", *own], check=True)
        row = json.loads(path.read_text())
        rewards = " | ".join(f"{row[key]:.2f}" for key in ("before", "after", "control", "calls"))
        print(f"| {name} | {seed} | {rewards} | {row['sft']:.0f}, {row['fit']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
