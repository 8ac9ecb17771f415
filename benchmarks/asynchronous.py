"""Part `asynchronous`: episodes with two steps that wait (Pareto 1.5, 0.2 to 2 s), trained with `max_staleness` against the
synchronous run, which has both cores in turn. The ceiling is its time divided by that of the slower stage on one core, measured
in a synchronous run with one thread and without waiting. `python -m benchmarks.asynchronous`: the same episodes, played by an
agent through the gateway."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import torch

from benchmarks.game import random_policy
from benchmarks.options import Options
from benchmarks.table import Row
from benchmarks.timing import Spread
from midthought import BaseEnvironment, Task, Trainer, create_default_config

PART = "asynchronous"
GROUP_SIZE = 8
GOALS = {2: 1.8, 4: 2.3}
WIDTH, NUM_LAYERS = 192, 3
MAX_TOKENS = 160
FIRST, LAST = 5, 3
"""Iterations that are not counted: processes start, the pipeline fills, and `inference.overlap=auto` chooses; at the end it
empties."""
SLOWER, SLOW_SHARE = 6, 0.1
TASKS = [{"question": f"Write {number}.", "answer": str(number)} for number in range(7)]
_HTTP = httpx.Client(timeout=600, limits=httpx.Limits(max_connections=None))


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Work of one batch. `rft` learns from the best episode of a group only."""

    name: str
    groups: int = 8
    epochs: int = 1
    algorithm: str = "grpo"


EQUAL = Work(name="sampling and learning 1 : 1")
UNEQUAL = Work(name="3 : 1", groups=4, epochs=3, algorithm="rft"), Work(name="1 : 3", groups=4, epochs=4)


class Waits(BaseEnvironment):
    """Three turns; two steps wait, most of them shortly. `success` tells whether the task is a slow one."""

    waits, slow_share = True, 0.0

    def reset(self, seed: int = 0) -> str:
        self.num_turns = 0
        self._draw = random.Random(time.perf_counter_ns())
        self._is_slow = random.Random(seed).random() < self.slow_share
        return f"Write {seed % 7}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, bool]]:
        self.num_turns += 1
        if self.waits and self.num_turns < 3:
            time.sleep(min(2.0, 0.2 * self._draw.paretovariate(1.5)) * (SLOWER if self._is_slow else 1))
        return "Go on.", float(len(action) % 5), self.num_turns == 3, {"success": self._is_slow}


World = type[Waits] | Callable[[Task, Any], float]
"""An environment or an agent."""


class Never(Waits):
    waits = False


class Uneven(Waits):
    """A tenth of the tasks waits six times longer."""

    slow_share = SLOW_SHARE


def agent(task: Task, client: Any) -> float:
    """Plays `Waits` over HTTP."""
    world, is_over, total = Waits(), False, 0.0
    messages = [{"role": "user", "content": world.reset(int(task.answer))}]
    headers = {"authorization": f"Bearer {client.api_key}"}
    while not is_over:
        body = {"model": client.model, "messages": messages}
        response = _HTTP.post(f"{client.base_url}/chat/completions", json=body, headers=headers).raise_for_status()
        messages.append(response.json()["choices"][0]["message"])
        reply, reward, is_over, _ = world.step(messages[-1]["content"])
        messages.append({"role": "user", "content": reply})
        total += reward
    return total


def measure(options: Options) -> Iterator[Row]:
    if options.device != "cpu" or torch.get_num_threads() < 2:
        return
    num_counted = 2 if options.quick else 5
    stages = stages_of(EQUAL, num_counted)
    base, walls = synchronous(Waits, EQUAL, num_counted), {}
    for staleness, goal in GOALS.items():
        history = run(Waits, EQUAL, FIRST + num_counted + LAST, staleness)
        yield from rows(f"{EQUAL.name}, steps that wait", history, staleness, base, stages, goal)
        walls[staleness] = mean(history, "time/wall")
    yield from fairness(run(Uneven, EQUAL, FIRST + 2 * num_counted + LAST, 4), walls[4])
    base = synchronous(Never, EQUAL, num_counted)
    history = run(Never, EQUAL, FIRST + num_counted + LAST, 4)
    yield from rows(f"{EQUAL.name}, no waiting", history, 4, base, stages, 0.95)
    for work in UNEQUAL:
        stages, base = stages_of(work, num_counted), synchronous(Waits, work, num_counted)
        history = run(Waits, work, FIRST + num_counted + LAST, 4)
        yield from rows(f"{work.name}, steps that wait", history, 4, base, stages, None)


def stages_of(work: Work, num_counted: int) -> dict[str, float]:
    """Seconds of sampling and of learning a batch, each alone on one thread."""
    history = run(Never, work, 1 + num_counted, num_threads=1)[1:]
    sampling, scoring, updating = (
        statistics.mean(metrics[f"time/{name}_seconds"] for metrics in history)
        for name in ("rollout", "scoring", "update")
    )
    return {"sampling": sampling, "learning": scoring + updating}


def synchronous(world: World, work: Work, num_counted: int) -> float:
    """Seconds of an iteration."""
    return statistics.mean(metrics["time/seconds"] for metrics in run(world, work, 1 + num_counted)[1:])


def rows(
    setting: str,
    history: Sequence[Mapping[str, float]],
    staleness: int,
    base: float,
    stages: Mapping[str, float],
    goal: float | None,
) -> Iterator[Row]:
    wall, has_goals = mean(history, "time/wall"), staleness == 4 and "no waiting" not in setting
    idle = {side: mean(history, f"time/idle_{side}") for side in ("engine", "learner")}
    yield Row(
        part=PART,
        setting=setting,
        figure=f"synchronous time per iteration ÷ that with max_staleness={staleness}",
        value=Spread.of([base / wall]),
        at_least=goal,
        seconds={"synchronous": base, "asynchronous": wall, **stages},
    )
    yield Row(
        part=PART,
        setting=setting,
        figure=f"… as a share of its ceiling, max_staleness={staleness}",
        value=Spread.of([max(stages.values()) / wall]),
        at_least=0.85 if has_goals else None,
        seconds={"mean age": mean(history, "staleness/mean")},
    )
    yield Row(
        part=PART,
        setting=setting,
        figure=f"time in which the busier side works, max_staleness={staleness}",
        value=Spread.of([1 - min(idle.values()) / wall]),
        at_least=0.9 if has_goals else None,
        seconds={f"idle {side}": seconds for side, seconds in idle.items()},
    )


def fairness(history: Sequence[Mapping[str, float]], wall: float) -> Iterator[Row]:
    """`wall`: seconds of an iteration without slow tasks."""
    share, num_groups = (
        statistics.mean(metrics["env/success_share"] for metrics in history),
        EQUAL.groups * len(history),
    )
    error = (SLOW_SHARE * (1 - SLOW_SHARE) / num_groups) ** 0.5
    setting = f"a tenth of the tasks waits {SLOWER} times longer, max_staleness=4"
    yield Row(
        part=PART,
        setting=setting,
        figure=f"distance of their share of {num_groups} trained groups from 0.1, in standard errors",
        value=Spread.of([abs(share - SLOW_SHARE) / error]),
        at_most=2.0,
        seconds={"share": share, "dropped": sum(metrics["staleness/num_dropped"] for metrics in history)},
    )
    yield Row(
        part=PART,
        setting=setting,
        figure="time per iteration ÷ that without slow tasks",
        value=Spread.of([mean(history, "time/wall") / wall]),
    )


def mean(history: Sequence[Mapping[str, float]], name: str) -> float:
    """The mean of a metric, without the first and last iterations."""
    return statistics.mean(metrics[name] for metrics in history[FIRST:-LAST])


def run(
    world: World,
    work: Work,
    num_iters: int,
    max_staleness: int = 0,
    num_threads: int = 2,
) -> list[dict[str, float]]:
    """Metrics of every iteration of one run of a small random model, whose turns end after about 27 tokens."""
    torch.set_num_threads(num_threads)
    config = create_default_config(
        preset="tiny",
        inference={"max_tokens": MAX_TOKENS, "max_turns": 3},
        training={
            "algorithm": work.algorithm,
            "group_size": GROUP_SIZE,
            "batch_size": work.groups * GROUP_SIZE,
            "mini_batch_size": work.groups * GROUP_SIZE,
            "ppo_epochs": work.epochs,
            "learning_rate": 1e-6,  # so that turns remain as long as they are
            "num_train_iters": num_iters,
            "max_staleness": max_staleness,
            "validate_every": 0,
        },
    )
    model, tokenizer = random_policy(0, WIDTH, NUM_LAYERS)
    plays: dict[str, Any] = {"environment": world} if isinstance(world, type) else {"agent": world, "dataset": TASKS}
    with Trainer(config, model=model, tokenizer=tokenizer, progress=False, **plays) as trainer:
        return list(trainer.fit())


def main() -> None:
    """Prints the times of an agent's iterations."""
    base = synchronous(agent, EQUAL, 5)
    print(f"synchronous: {base:.2f} s per iteration")
    for staleness in GOALS:
        history = run(agent, EQUAL, FIRST + 5 + LAST, staleness)
        wall, ages = mean(history, "time/wall"), [metrics["staleness/max"] for metrics in history]
        failed = sum(metrics["episode/failed"] for metrics in history)
        shares = f"mean age {mean(history, 'staleness/mean'):.1f}, oldest {max(ages):.0f}, failed {failed:g}"
        print(f"max_staleness={staleness}: {wall:.2f} s per iteration, {base / wall:.2f} times as fast, {shares}")


if __name__ == "__main__":
    main()
