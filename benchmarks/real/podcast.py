"""The podcast recipe with a pretrained model: warm-up, gate, PPO. Each is a `midthought` command with a folder of its own.

The gate: greedy exact match with oracle results after the warm-up. A policy that does not read a right result learns little
from the tool. All weights learn; on a GPU the recipe would choose adapters. On a CPU less is trained, by GRPO (no critic), and
fewer questions are asked.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.real.measure import AFTER_RL, AFTER_SFT, Options, markdown

NAME = "podcast"
NUM_QUESTIONS, NUM_ON_CPU = 440, 64
GATE = 0.85
WARMUP, GATE_RUN, RL = "warmup", "gate", "rl"
SETTINGS: Mapping[str, Any] = {
    "model.lora_rank": 0,
    "memory.chunking": "turns",
    "memory.search": "full_text",
    "memory.k": 1,
    "warmup.num_steps": 300,
    "warmup.batch_tokens": 6144,
    "warmup.learning_rate": 2e-4,
    "training.learning_rate": 1e-5,
    "training.num_train_iters": 30,
    "training.batch_size": 128,
}
ON_CPU: Mapping[str, Any] = {
    "warmup.num_steps": 100,
    "warmup.learning_rate": "auto",
    "questions.num_test_no_memory": 32,
    "inference.max_tokens": 256,
    "training.algorithm": "grpo",
    "training.group_size": 4,
    "training.batch_size": 32,
    "training.mini_batch_size": 16,
    "training.num_train_iters": 15,
    "training.validate_every": 0,
}
SHORT: Mapping[str, Any] = {
    "questions.num_train": 40,
    "questions.num_test_no_memory": 2,
    "inference.max_tokens": 64,
    "warmup.num_steps": 2,
    "warmup.batch_tokens": 1024,
    "training.num_train_iters": 2,
    "training.batch_size": 8,
    "training.mini_batch_size": 4,
    "training.num_validation_questions": 2,
    "training.critic_warmup_iters": 1,
}
FACTORS = ("called", "exact_query", "retrieved", "read")
FIGURES = {
    "sampled": "after.sampled.exact_match",
    "greedy": "after.exact_match",
    "oracle results": "after.oracle.exact_match",
    "tool off": "after.tool_off.exact_match",
    "results shuffled": "after.shuffled.exact_match",
    "constant guess": "after.constant_guess",
}
"""Keys of `summary.json` by column."""


def run(options: Options, words: Sequence[str] = ()) -> int:
    """Returns the exit status of the first command that failed, 1 if the gate is closed, else 0. `words`: more settings."""
    settings = {
        **SETTINGS,
        **(ON_CPU if options.settings["device"] == "cpu" else {}),
        **(SHORT if options.is_short else {}),
        "model.local_path": options.model,
        "model.device": options.settings["device"],
        "training.seed": options.seed,
        "questions.num_test": options.num_held_out,
        "memory.path": options.out / "memory",
    }
    given = [*(f"{key}={value}" for key, value in settings.items()), *words]
    warmup = options.out / WARMUP
    code = call_midthought("train", NAME, *given, "--stage", "sft", "--run", warmup)
    code = code or call_midthought("evaluate", warmup, "--run", options.out / GATE_RUN)
    if code or not (_passes(options.out) or options.is_short):
        return code or 1
    return call_midthought("train", NAME, *given, "--stage", "rl", "--from", warmup, "--run", options.out / RL)


def call_midthought(*words: str | Path) -> int:
    return subprocess.run([sys.executable, "-m", "midthought", *map(str, words)]).returncode


def _passes(out: Path) -> bool:
    """Whether the warmed-up policy passes the gate; prints the figures."""
    summary = summary_of(out / GATE_RUN)
    share = _number(summary.get(FIGURES["oracle results"]))
    is_open = share >= GATE
    print(f"Gate: exact match with oracle results {share:.3f}, required ≥ {GATE}{'' if is_open else ': not passed'}")
    print("; ".join(f"{name} {_number(summary[f'after.factors.{name}']):.3f}" for name in FACTORS), flush=True)
    return bool(is_open)


def table(out: Path) -> str:
    """Returns the figures before and after reinforcement learning as a Markdown table."""
    parts = {AFTER_SFT: (GATE_RUN, WARMUP, "seconds.warmup"), AFTER_RL: (RL, RL, "seconds.rl")}
    rows = {}
    for stage, (measured, trained, seconds) in parts.items():
        summary = summary_of(out / measured)
        rows[stage] = {name: _number(summary.get(key)) for name, key in FIGURES.items()}
        rows[stage]["seconds"] = summary_of(out / trained)[seconds]
    return markdown("exact match", [*FIGURES, "seconds"], rows)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def summary_of(run_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_path / "summary.json").read_text("utf-8"))
    return found
