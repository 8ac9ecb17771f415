"""Trains on one task and measures the policy before and after. Each function is a run of its own, with its own folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.real.tasks import RealTask
from midthought import SettingsError, Trainer

NUM_HELD_OUT = 64
RUN, FIGURES = "run", "figures.json"
LARGEST = "logprob_difference_max"
"""A metric of iterations with an update."""
DIFFERENCE = "largest |sampled - recomputed|, nats"
PRETRAINED, AFTER_SFT, AFTER_RL = "pretrained", "after SFT", "after RL"


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """One measurement."""

    model: str
    seed: int
    out: Path
    settings: dict[str, Any]
    """Settings of `Trainer` that replace the task's."""
    is_short: bool = False
    """Two steps, two iterations, four problems: to see that it runs."""
    max_held_out: int = NUM_HELD_OUT

    @property
    def num_held_out(self) -> int:
        return 4 if self.is_short else self.max_held_out


def train(task: RealTask, options: Options) -> None:
    """Demonstrations, then reinforcement learning; writes `FIGURES` into the folder after every part."""
    figures: dict[str, Any] = {}
    with _trainer(task, options, RUN) as trainer:
        figures[PRETRAINED] = _evaluated(trainer, task, options)
        figures[AFTER_SFT] = _supervised(trainer, task, options, task.demonstrations(options.seed))
        _write(options.out / FIGURES, figures)
        figures[AFTER_RL] = _reinforced(trainer, task, options)
    _write(options.out / FIGURES, figures)


def train_arm(task: RealTask, options: Options, name: str) -> None:
    """Trains an arm of the task, and writes its figures to `NAME.json`. Without demonstrations of its own it continues from the
    policy that `train` has after its demonstrations."""
    demonstrations = task.arms[name]
    if demonstrations is not None:
        with _trainer(task, options, name) as trainer:
            figures = _supervised(trainer, task, options, demonstrations(options.seed))
    else:
        with _trainer(task, options, name, model=str(options.out / RUN / "warmup"), algorithm="rft") as trainer:
            figures = _reinforced(trainer, task, options)
    _write(options.out / f"{name}.json", {name: figures})


def _trainer(task: RealTask, options: Options, name: str, **changes: Any) -> Trainer:
    few = {"num_train_iters": 2, "batch_size": 4, "group_size": 2, "mini_batch_size": 2} if options.is_short else {}
    given = {
        "model": options.model,
        "algorithm": "grpo",
        "learning_rate": 1e-5,
        "validate_every": 0,
        "seed": options.seed,
        "run_path": options.out / name,
        **task.arguments(options.seed, options.num_held_out),
        **task.settings,
        **few,
        **options.settings,
        **changes,
    }
    return Trainer(**given)


def _supervised(trainer: Trainer, task: RealTask, options: Options, demonstrations: Any) -> dict[str, float]:
    began = time.monotonic()
    num_steps, batch_tokens = (2, 500) if options.is_short else (task.num_sft_steps, task.sft_tokens)
    trainer.sft(demonstrations, num_steps=num_steps, batch_tokens=batch_tokens)
    seconds = time.monotonic() - began
    return {"seconds": seconds, **_evaluated(trainer, task, options)}


def _reinforced(trainer: Trainer, task: RealTask, options: Options) -> dict[str, float]:
    began = time.monotonic()
    rows = trainer.fit()
    figures = {"seconds": time.monotonic() - began, **_evaluated(trainer, task, options)}
    for how in task.tools:
        try:
            figures[f"tools {how}"] = trainer.evaluate(options.num_held_out, tools=how)[task.score]
        except SettingsError as error:  # too few episodes call the tool
            print(error)
    if differences := [row[LARGEST] for row in rows if LARGEST in row]:
        figures[DIFFERENCE] = max(differences)
    figures["seconds of an iteration"] = sorted(row["time/seconds"] for row in rows)[len(rows) // 2]
    return figures


def _evaluated(trainer: Trainer, task: RealTask, options: Options) -> dict[str, float]:
    """Returns the score and the calls of greedy and of sampled episodes."""
    began = time.monotonic()
    figures: dict[str, float] = {}
    for name in ("greedy", "sampled"):
        metrics = trainer.evaluate(options.num_held_out, sampled=name == "sampled")
        figures |= {name: metrics[task.score], f"{name}, calls": metrics["episode/calls"]}
    return {**figures, "seconds of evaluation": time.monotonic() - began}


def _write(path: Path, figures: dict[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


def table(task: RealTask, out: Path) -> str:
    """Returns the figures of a measurement as a Markdown table: one row for each stage and arm."""
    figures = json.loads((out / FIGURES).read_text("utf-8"))
    for name in task.arms:
        if (out / f"{name}.json").is_file():
            figures |= json.loads((out / f"{name}.json").read_text("utf-8"))
    names = ["sampled", "greedy", "sampled, calls", "greedy, calls", *(f"tools {how}" for how in task.tools), "seconds"]
    trained = figures[AFTER_RL]
    notes = [f"{name}: {trained[name]:.2g}" for name in (DIFFERENCE, "seconds of an iteration") if name in trained]
    return "\n".join([markdown(task.score, names, figures), "", *notes])


def markdown(score: str, names: Sequence[str], rows: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a Markdown table of these figures, one row for each stage. A figure that was not measured is empty."""
    lines = [f"| {score} | {' | '.join(names)} |", "| --- " * (len(names) + 1) + "|"]
    for stage, measured in rows.items():
        lines.append(f"| {stage} | {' | '.join(_cell(name, measured.get(name, math.nan)) for name in names)} |")
    return "\n".join(lines)


def _cell(name: str, value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.0f}" if name == "seconds" else f"{value:.2f}"
