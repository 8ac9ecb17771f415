"""Check 13: the learner in the shapes that another library publishes, against its figures.

Random weights, bfloat16, packed rows of one length, layers recomputed, one row in a micro-batch. MFU: the update's FLOPs of
check 6, divided by its seconds and the dense bfloat16 rate in the datasheet of an H100 SXM and an H200, as published. Tokens per
second and peak memory are required of these two GPUs.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from benchmarks.gpu.findings import Report
from benchmarks.gpu.learning import (
    LORA_RANK,
    Work,
    equal_rows,
    flops,
    make_learning_policy,
    time_update,
    try_part,
)
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import SHAPES, grpo_settings

DATASHEET_RATE = 989e12
"""Floating-point operations per second."""
RATED = ("H100 80GB HBM3", "H200")
"""Ends of the names of the GPUs that have this rate."""


class Published(NamedTuple):
    """A published figure of another library, and how many times that rate is required of an update."""

    stage: str
    tokens_per_second: float
    mfu: float
    """In %."""
    times: float

    @property
    def required(self) -> float:
        return self.times * self.tokens_per_second


class PublishedShape(NamedTuple):
    work: Work
    """Its `num_episodes` is the number of rows."""
    length: int
    """Tokens of a row."""
    published: tuple[Published, ...] = ()
    peak_gib: float = float("inf")
    """Published, and our limit."""


# prime-rl, benchmarks/results/BENCHMARKS.md of 2026-02-07, one H100 HBM3, layers recomputed, FlashAttention 3. Ours is PyTorch's
# attention (FlashAttention 2). `times` are our goals.
PUBLISHED_SHAPES = (
    PublishedShape(
        Work("0.6B", 0, 4, 20), 16384, (Published("RL", 11_900, 11.1, 2.0), Published("SFT", 25_490, 23.7, 1.1)), 12.5
    ),
    PublishedShape(Work("0.6B", LORA_RANK, 4, 5), 16384, (Published("RL", 13_340, 10.9, 1.8),), 5.1),
    PublishedShape(Work("0.6B", 0, 8, 20), 8192, (Published("SFT", 26_010, 16.8, 1.3),), 31.7),
    PublishedShape(Work("4B", LORA_RANK, 2, 5), 16384, (Published("RL", 6_230, 21.7, 1.35),), 23.3),
    PublishedShape(Work("0.6B", 0, 1, 25), 65536, (Published("RL", 10_150, 26.8, 1.0),), 19.6),
)
TINY_SHAPES = (
    PublishedShape(Work("tiny", 0, 4, 20), 64),
    PublishedShape(Work("tiny", LORA_RANK, 2, 5), 64),
    PublishedShape(Work("tiny", 0, 1, 20), 128),
)


def run(machine: Machine, report: Report) -> None:
    """No model is larger than the largest one that was asked for."""
    largest = SHAPES[machine.model_names[-1]].parameters
    for shape in machine.pick(PUBLISHED_SHAPES, TINY_SHAPES):
        work = shape.work
        if SHAPES[work.name].parameters <= largest:
            suffix = f", {work.num_episodes} × {shape.length} tokens"
            try_part(machine, report, functools.partial(_measure, shape), work, suffix, 10.0)


def _measure(shape: PublishedShape, machine: Machine, report: Report, setting: str, work: Work) -> None:
    policy = make_learning_policy(machine, work)
    batch = equal_rows(work.name, work.num_episodes, shape.length, num_prompt=machine.pick(128, 8))
    training = grpo_settings(work.num_episodes, packing=True, micro_batch_tokens=shape.length)
    timed = time_update(machine, report, setting, policy, batch, training)
    score_seconds, _ = machine.wall_seconds(lambda: timed.learner.score(batch))
    rate = batch.num_tokens / timed.seconds
    if machine.device_name.endswith(RATED):
        goals = [f"{each.times:g} × {each.tokens_per_second:,.0f} ({each.stage})" for each in shape.published]
        is_met = all(rate >= each.required for each in shape.published)
        report.require(setting, "update", rate, is_met, f"≥ {', '.join(goals)}", "tokens/s")
        if timed.peak_gib is not None:
            report.at_most(setting, "peak memory of the update", timed.peak_gib, shape.peak_gib, "GiB")
    else:
        report.figure(setting, "update", rate, "tokens/s")
        if timed.peak_gib is not None:
            report.figure(setting, "peak memory of the update", timed.peak_gib, "GiB")
    report.figure(setting, "scoring and update", batch.num_tokens / (score_seconds + timed.seconds), "tokens/s")
    theirs = "; ".join(f"prime-rl, {each.stage}: {each.mfu:g} %" for each in shape.published)
    name = f"MFU of the update, of {DATASHEET_RATE / 1e12:g} TFLOP/s" + (f" ({theirs})" if theirs else "")
    report.figure(setting, name, 100 * flops(work, batch) / timed.seconds / DATASHEET_RATE, "%")
