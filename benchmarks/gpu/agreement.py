"""Check 7: the log-probabilities that the engine sampled are those that the learner recomputes, before and after 3 updates.

All weights or LoRA, in bfloat16 and float32. The updates must change the policy visibly, or the check shows nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.findings import Report
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import (
    SHAPES,
    complete,
    grpo_settings,
    is_left_out,
    make_engine,
    make_episodes,
    make_model,
    own_error,
    random_prompts,
    short,
)
from midthought.engines.local.engine import LocalEngine
from midthought.engines.local.runner_selection import ROUNDING
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.model import add_adapters
from midthought.plan.shape import Shape

NUM_UPDATES = 3
NUM_COMPARED = 3
LORA_RANK = 16
LEARNING_RATES = {
    torch.bfloat16: {"full": 5e-6, "LoRA": 1e-4},
    torch.float32: {"full": 5e-7, "LoRA": 5e-6},
}
TINY_LEARNING_RATES = {"full": 1e-4, "LoRA": 3e-3}
"""A random 0.6B is sensitive: one step of 2e-6 moved its log-probabilities by 2.6 nats, one of 1e-4 by 16 (float32, CPU).
In bfloat16 a weight changes only if its steps add up to half the distance to the next bfloat16 number: three steps of 5e-7
change about 2 % of the weights, and adapters of rank 16 at 5e-6 almost none."""
LARGEST_FLOAT32 = ROUNDING
MEAN_BFLOAT16 = 0.02
"""Limits of |sampled − recomputed| in nats; in bfloat16 at least twice the mean error of the model's own forward pass."""
MIN_MOVED = 0.05
"""Mean |Δ log-probability| of the first tokens by the updates, in nats."""


def run(machine: Machine, report: Report) -> None:
    name = machine.model_names[0]
    for dtype in (torch.bfloat16, torch.float32):
        for way in ("full", "LoRA"):
            setting = f"{name} {short(dtype)}, {way}"
            if is_left_out(machine, report, setting, name, seconds=6.0):
                continue
            learning_rate = machine.pick(LEARNING_RATES[dtype], TINY_LEARNING_RATES)[way]
            model = make_model(machine, name, dtype)
            try:
                policy = add_adapters(model, LORA_RANK, 2 * LORA_RANK) if way == "LoRA" else model
            except ImportError as error:
                report.left_out(setting, str(error))
                continue
            _compare(machine, report, setting, SHAPES[name], policy, dtype, learning_rate)
            del model, policy
            machine.clean()


def _compare(
    machine: Machine, report: Report, setting: str, shape: Shape, policy: Any, dtype: torch.dtype, learning_rate: float
) -> None:
    num_rows, num_tokens = machine.pick(32, 8), machine.pick(96, 16)
    learner = Learner(policy, None, None, grpo_settings(num_rows, learning_rate=learning_rate))
    engine = make_engine(policy, num_rows, 64 + num_tokens)
    first: TokenBatch | None = None
    for number in range(NUM_UPDATES + 1):
        batch = _sample(engine, shape, num_rows, num_tokens, seed=number)
        scored, health = learner.score(batch)
        if number in (0, NUM_UPDATES):
            when = "before training" if number == 0 else f"after {NUM_UPDATES} updates"
            own = own_error(
                policy, [row.tolist() for row in batch.token_ids.split(batch.lengths.tolist())[:NUM_COMPARED]]
            )
            _judge(report, setting, when, dtype, health, own.mean)
        if first is None:
            first = scored
        if number < NUM_UPDATES:
            learner.update(learner.credit(scored)[0])
            engine.update_weights()
    assert first is not None and first.old_logprobs is not None
    again = learner.score(first)[0].old_logprobs
    assert again is not None
    moved = (again - first.old_logprobs)[first.loss_mask].abs().mean().item()
    report.require(
        setting, "the updates moved log-probabilities by", moved, moved >= MIN_MOVED, f"≥ {MIN_MOVED}", "nats"
    )
    engine.shutdown()


def _sample(engine: LocalEngine, shape: Shape, num_rows: int, num_tokens: int, *, seed: int) -> TokenBatch:
    prompts = random_prompts(shape, [8 + row % 9 for row in range(num_rows)], seed=seed)
    return TokenBatch.from_trajectories(make_episodes(prompts, complete(engine, prompts, num_tokens)))


def _judge(
    report: Report, setting: str, when: str, dtype: torch.dtype, health: dict[str, float], own_mean: float
) -> None:
    mean, largest = health["logprob_difference_mean"], health["logprob_difference_max"]
    words = f"|sampled − recomputed| {when}"
    if dtype == torch.float32:
        report.figure(setting, f"mean {words}", mean, "nats")
        report.at_most(setting, f"largest {words}", largest, LARGEST_FLOAT32, "nats")
        return
    report.figure(setting, f"mean error of the model's own forward pass {when}", own_mean, "nats")
    report.at_most(setting, f"mean {words}", mean, max(MEAN_BFLOAT16, 2 * own_mean), "nats")
    report.figure(setting, f"largest {words}", largest, "nats")
