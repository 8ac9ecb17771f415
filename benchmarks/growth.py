"""Memory of long runs: `python -m benchmarks.growth`. It must not grow with the number of episodes or iterations.

Scripted episodes whose calls succeed, fail, and name no tool; then a `Trainer` on a small model with a run folder, validations
and checkpoints. Prints the resident memory at a tenth of the work and at its end. `--trace` also prints the lines whose Python
objects grew most in between; it makes the run several times slower.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midthought import Reward, Task, Trainer, TrainerCallback, Trajectory, create_default_config, tool
from midthought.config import InferenceConfig
from midthought.engines.scripted import ScriptedEngine
from midthought.models.small_model import make_tokenizer
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry

WORDS = ["Say a word.", '#call look {"word": "tide"} </think> red blue green 0123456789', "no calls left; unknown tool"]
BATCH = 100


@tool
def look(word: str) -> str:
    """Looks a word up.

    Args:
        word: what to look up
    """
    if word.endswith("7"):
        raise ValueError(f"{word} is in no book")
    return f"{word} was found. " * 20


class Judge:
    """Ends after the first answer."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        return Reward(parts={"length": float(trajectory.num_sampled)})


class Growth:
    """Prints the resident memory at a tenth of `total` and at its end, and what grew in between."""

    def __init__(self, what: str, total: int, *, trace: bool) -> None:
        self.what, self.total = what, total
        self._trace, self._first_mib = trace, 0.0
        self._snapshot: tracemalloc.Snapshot | None = None

    def at(self, done: int) -> None:
        if done == self.total // 10:
            self._first_mib = resident_mib()
            print(f"{done:,} {self.what}: {self._first_mib:.1f} MiB", flush=True)
            if self._trace:
                tracemalloc.start(1)
                self._snapshot = tracemalloc.take_snapshot()
        elif done == self.total:
            last = resident_mib()
            change = 100 * (last / self._first_mib - 1)
            print(f"{done:,} {self.what}: {last:.1f} MiB ({change:+.1f} %)", flush=True)
            if self._snapshot is not None:
                grown = tracemalloc.take_snapshot().compare_to(self._snapshot, "lineno")
                tracemalloc.stop()
                for each in grown[:12]:
                    print(f"    {each.size_diff / 1024:+9.1f} KiB {each.count_diff:+7d} {each.traceback}", flush=True)


def resident_mib() -> float:
    """Returns the resident memory of this process after a garbage collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_scripted(num_episodes: int, *, trace: bool) -> None:
    """Runs episodes in batches, with one engine and one tool executor. Every fifth call fails in its own way."""
    renderer = Renderer(make_tokenizer(WORDS, 400))
    first = 0

    def script(episode: int, token_ids: Sequence[int]) -> str | None:
        number = first + episode
        calls = [
            f'#call look {{"word": "w{number}"}}',
            f'#call look {{"wrd": "w{number}"}}',
            f'#call look{number} {{"word": "x"}}',
            f"#call look {{word {number}",
            f'#call look {{"word": "w{number % 50}"}}',
        ]
        num_calls = written.get(number, 0)
        written[number] = num_calls + 1
        if num_calls == 2:
            del written[number]
            return f"</think>w{number}"
        return calls[(number + num_calls) % 5] + "\n" if num_calls < 2 else None

    written: dict[int, int] = {}
    parts = RolloutParts(
        engine=ScriptedEngine(script, renderer),
        renderer=renderer,
        call_format=InThoughtFormat(),
        executor=ToolExecutor(ToolRegistry([look])),
        messages=lambda task: [{"role": "user", "content": task.prompt}],
        environment=lambda task: Judge(),
        inference=InferenceConfig(max_tokens=400),
    )
    growth = Growth("scripted episodes", num_episodes, trace=trace)

    async def run() -> None:
        nonlocal first
        for first in range(0, num_episodes, BATCH):
            starts = [
                EpisodeStart(task=Task(task_id=f"t{n}", prompt=f"Say a word, {n}.", answer=""), seed=n)
                for n in range(first, first + BATCH)
            ]
            await run_episodes(parts, starts)
            growth.at(first + BATCH)

    asyncio.run(run())


class AtIterations(TrainerCallback):
    """Measures after training steps."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth

    def on_step(self, trainer: Any, metrics: Any) -> None:
        self._growth.at(trainer.iteration)


def run_trainer(num_iters: int, *, trace: bool) -> None:
    """Trains a small model with random rewards in a run folder."""
    draw = random.Random(0)
    rows = [{"question": f"Say word {number}.", "answer": "red"} for number in range(64)]
    config = create_default_config(
        preset="tiny",
        model={"hidden_size": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 300},
        inference={"max_tokens": 8, "max_tool_calls_per_cot": 1},
        training={
            "adv_estimator": "grpo",
            "group_size": 2,
            "batch_size": 4,
            "mini_batch_size": 4,
            "validate_every": 50,
        },
        checkpoint={"save_interval": 100, "keep_last_n": 1},
    )
    config.training.num_train_iters, config.training.num_validation_questions = num_iters, 4
    growth = Growth("iterations", num_iters, trace=trace)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            config,
            dataset=rows,
            validation=rows[:4],
            reward_fn=lambda trajectory: draw.random(),
            tools=[look],
            run_path=Path(folder) / "run",
            callbacks=[AtIterations(growth)],
            progress=False,
        )
        with trainer:
            trainer.fit()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--trace", action="store_true")
    chosen = parser.parse_args()
    if chosen.episodes:
        run_scripted(chosen.episodes, trace=chosen.trace)
    if chosen.iterations:
        run_trainer(chosen.iterations, trace=chosen.trace)


if __name__ == "__main__":
    main()
