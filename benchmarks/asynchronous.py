"""Part `asynchronous`: episodes with two steps that wait (Pareto 1.5, 0.2 to 2 s), trained with `max_staleness` against the
synchronous run, which has both cores in turn. The ceiling is its time divided by that of the slower stage on one core, measured
in a synchronous run with one thread and without waiting."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence

import torch

from benchmarks.options import Options
from benchmarks.table import Row
from benchmarks.timing import Spread
from midthought import BaseEnvironment, Trainer, create_default_config

PART = "asynchronous"
STALENESS = (2, 4)
GROUPS, GROUP_SIZE = 8, 8
TURN_TOKENS = 24
SHAPE = {"hidden_size": 192, "num_layers": 3}
GOALS = {2: 1.8, 4: 2.3}
SKIPPED = 5
"""First iterations that are not counted: processes start, the pipeline fills, and `inference.overlap=auto` chooses. As many last
ones, in which it empties."""


class Waits(BaseEnvironment):
    """Three turns; two steps wait, most of them shortly."""

    waits = True

    def reset(self, seed: int = 0) -> str:
        self.num_turns = 0
        self._draw = random.Random(time.perf_counter_ns())
        return f"Write {seed % 7}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, bool]]:
        self.num_turns += 1
        if self.waits and self.num_turns < 3:
            time.sleep(min(2.0, 0.2 * self._draw.paretovariate(1.5)))
        return "Go on.", float(len(action) % 5), self.num_turns == 3, {}


class Never(Waits):
    waits = False


def measure(options: Options) -> Iterator[Row]:
    if options.device != "cpu" or torch.get_num_threads() < 2:
        return
    num_iters = 2 * SKIPPED + (2 if options.quick else 12)
    alone = run(Never, num_iters, num_threads=1)
    learning = mean(alone, "time/scoring_seconds") + mean(alone, "time/update_seconds")
    stages = {"sampling": mean(alone, "time/rollout_seconds"), "learning": learning}
    for environment in (Waits, Never):
        setting = f"{GROUPS} × {GROUP_SIZE} episodes, {'steps that wait' if environment.waits else 'no waiting'}"
        base = mean(run(environment, num_iters), "time/seconds")
        for staleness in STALENESS:
            history = run(environment, num_iters, staleness)
            wall = mean(history, "time/wall")
            idle = {side: mean(history, f"time/idle_{side}") for side in ("engine", "learner")}
            yield Row(
                part=PART,
                setting=setting,
                figure=f"synchronous time per iteration ÷ that with max_staleness={staleness}",
                value=Spread.of([base / wall]),
                at_least=GOALS[staleness] if environment.waits else None,
                seconds={"synchronous": base, "asynchronous": wall, **stages},
            )
            yield Row(
                part=PART,
                setting=setting,
                figure=f"… as a share of its ceiling, max_staleness={staleness}",
                value=Spread.of([max(stages.values()) / wall]),
                at_least=(0.85 if staleness == 4 else None) if environment.waits else 0.95,
                seconds={"mean age": mean(history, "staleness/mean")},
            )
            yield Row(
                part=PART,
                setting=setting,
                figure=f"time in which the busier side works, max_staleness={staleness}",
                value=Spread.of([1 - min(idle.values()) / wall]),
                at_least=0.9 if environment.waits and staleness == 4 else None,
                seconds={f"idle {side}": seconds for side, seconds in idle.items()},
            )


def mean(history: Sequence[Mapping[str, float]], name: str) -> float:
    """The mean of a metric, without the first and last iterations."""
    return statistics.mean(metrics[name] for metrics in history[SKIPPED:-SKIPPED])


def run(
    environment: type[Waits], num_iters: int, max_staleness: int = 0, num_threads: int = 2
) -> list[dict[str, float]]:
    """Metrics of every iteration of one run of a small random model."""
    torch.set_num_threads(num_threads)
    config = create_default_config(
        preset="tiny",
        model=SHAPE,
        inference={"max_tokens": 3 * TURN_TOKENS + 60, "max_segment_length": TURN_TOKENS, "max_turns": 3},
        training={
            "algorithm": "grpo",
            "group_size": GROUP_SIZE,
            "batch_size": GROUPS * GROUP_SIZE,
            "mini_batch_size": GROUPS * GROUP_SIZE,
            "num_train_iters": num_iters,
            "max_staleness": max_staleness,
            "validate_every": 0,
        },
    )
    with Trainer(config, environment) as trainer:
        return list(trainer.fit())
