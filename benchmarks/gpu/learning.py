"""Check 6: the learner's tokens per second, MFU and peak memory, rows packed and padded; both must compute the same.

MFU = FLOPs / (seconds · measured matmul rate), of one update (forward, backward and optimizer step). FLOPs of a token at
position p: 6 · parameters (LoRA: 4, because frozen weights need no gradient) of the layers and the output layer, and
12 · layers · query width · p for the attention. Recomputed layers are not counted. It is required of rows of 4,096 tokens,
which are measured first. Whether layers are recomputed, and the tokens of a micro-batch, are what a run chooses for the GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.findings import Report
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import (
    SHAPES,
    grpo_settings,
    is_left_out,
    made_up_completions,
    make_episodes,
    make_model,
    own_error_of_random_prompts,
    random_prompts,
)
from benchmarks.plan import TRAINING
from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.model import add_adapters
from midthought.plan.choices import word
from midthought.plan.measures import LOGITS_MIB, fitted
from midthought.plan.memory import Memory

CHOSEN = ("training.gradient_checkpointing", "training.micro_batch_tokens")
LORA_RANK = 16
TOLERANCE_MEAN, TOLERANCE_NORM = 0.02, 0.05
"""Between packed and padded in bfloat16: mean |Δ log-probability| in nats (at least twice the mean error of the model's own
forward pass), and the gradient norm's relative difference."""
NUM_LONG_ROWS, LONG_ROW = 8, 4096
GIB = 2**30


class Work(NamedTuple):
    """A model, how it learns, and how much it is given."""

    name: str
    lora_rank: int
    num_episodes: int
    bytes_per_parameter: float
    """Weights, float32 copies, gradients and moments: 2 + 4 + 4 + 8; with LoRA the weights, and room for activations."""
    required_mfu: float = 0.0
    """Of rows of `LONG_ROW` tokens, on a GPU; 0: not measured."""

    @property
    def way(self) -> str:
        return f"LoRA {self.lora_rank}" if self.lora_rank else "full"


WORKS = (Work("0.6B", 0, 64, 22), Work("1.7B", 0, 32, 20, 0.35), Work("8B", LORA_RANK, 16, 3, 0.40))
TINY_WORKS = (Work("tiny", 0, 8, 20), Work("tiny", LORA_RANK, 8, 3))


def run(machine: Machine, report: Report) -> None:
    works = [work for work in machine.pick(WORKS, TINY_WORKS) if work.name in machine.model_names]
    for work in works:
        if work.required_mfu:
            try_part(machine, report, _measure_long_rows, work, f", {NUM_LONG_ROWS} rows of {LONG_ROW} tokens", 1.0)
    for work in works:
        try_part(machine, report, _compare_packing, work, "", 4.0)


def try_part(
    machine: Machine, report: Report, measure: Callable[..., None], work: Work, suffix: str, seconds: float
) -> None:
    """Calls `measure(machine, report, setting, work)`, or reports why it cannot. `seconds`: as in `is_left_out`."""
    setting, room = f"{work.name} bfloat16, {work.way}{suffix}", work.bytes_per_parameter
    if is_left_out(machine, report, setting, work.name, bytes_per_parameter=room, seconds=seconds):
        return
    try:
        measure(machine, report, setting, work)
    except ImportError as error:
        report.left_out(setting, str(error))
    machine.clean()


def make_batch(machine: Machine, name: str, num_episodes: int) -> TokenBatch:
    """Prompts of 128 tokens, completions whose lengths have a long tail: half are below 400 tokens, all below 2,048."""
    shape, draw = SHAPES[name], random.Random(0)
    num_prompt, longest, median = machine.pick((128, 1920, 6.0), (8, 48, 2.5))
    lengths = [min(longest, max(4, round(draw.lognormvariate(median, 0.8)))) for _ in range(num_episodes)]
    prompts = random_prompts(shape, [num_prompt] * num_episodes)
    return TokenBatch.from_trajectories(make_episodes(prompts, made_up_completions(shape, lengths)))


def make_learning_policy(machine: Machine, work: Work) -> Any:
    model = make_model(machine, work.name, torch.bfloat16)
    return add_adapters(model, work.lora_rank, 2 * work.lora_rank) if work.lora_rank else model


def equal_rows(name: str, num_rows: int, length: int, *, num_prompt: int = 128) -> TokenBatch:
    """Rows of random tokens, all of the same length."""
    prompts = random_prompts(SHAPES[name], [num_prompt] * num_rows)
    completions = made_up_completions(SHAPES[name], [length - num_prompt] * num_rows)
    return TokenBatch.from_trajectories(make_episodes(prompts, completions))


def _measure_long_rows(machine: Machine, report: Report, setting: str, work: Work) -> None:
    batch = equal_rows(work.name, NUM_LONG_ROWS, LONG_ROW)
    _update(machine, report, setting, work, make_learning_policy(machine, work), batch, True)


def _compare_packing(machine: Machine, report: Report, setting: str, work: Work) -> None:
    policy = make_learning_policy(machine, work)
    batch = make_batch(machine, work.name, work.num_episodes)
    report.figure(
        setting, f"{len(batch)} episodes of up to {int(batch.lengths.max())} tokens", batch.num_tokens, "tokens"
    )
    limit = max(TOLERANCE_MEAN, 2 * own_error_of_random_prompts(policy, SHAPES[work.name]).mean)
    logprobs: dict[str, torch.Tensor] = {}
    norms: dict[str, float] = {}
    for way, is_packed in (("packed", True), ("padded", False)):
        machine.clean()
        logprobs[way], norms[way] = _update(machine, report, f"{setting}, {way}", work, policy, batch, is_packed)
    difference = (logprobs["packed"] - logprobs["padded"])[batch.loss_mask].abs().mean().item()
    report.at_most(setting, "packed against padded, mean difference of log-probabilities", difference, limit, "nats")
    relative = abs(norms["packed"] / norms["padded"] - 1.0)
    report.at_most(setting, "packed against padded, gradient norm, relative difference", relative, TOLERANCE_NORM)


def chosen_update(work: Work, batch: TokenBatch, memory_gib: float) -> dict[str, Any]:
    """Settings of `training` that a run with the local engine chooses for this model on a GPU with so much memory."""
    given = {
        "memory_gib": memory_gib,
        "lora_rank": work.lora_rank,
        "logits_mib": LOGITS_MIB["gpu"],
        "prompt_tokens": 1,
        "max_tokens": int(batch.lengths.max()) - 1,
        "batch_size": len(batch),
    }
    _, plan = fitted(Memory(shape=SHAPES[work.name], **{**TRAINING, **given}), CHOSEN)
    return {key: getattr(plan, key) for key in ("gradient_checkpointing", "micro_batch_tokens")}


def _memory_gib(machine: Machine) -> float:
    """Memory of the GPU that other processes leave; on a CPU, of an H100."""
    if not machine.is_cuda:
        return 79.2
    return (machine.free_bytes + (machine.allocated_bytes or 0)) / GIB


def flops(work: Work, batch: TokenBatch) -> float:
    """Floating-point operations of an update on this batch."""
    shape, lengths = SHAPES[work.name], batch.lengths.double()
    per_parameter = 4.0 if work.lora_rank else 6.0
    attention = 6.0 * shape.num_layers * shape.query_size * float((lengths**2).sum())
    return per_parameter * shape.computing_parameters * batch.num_tokens + attention


class TimedUpdate(NamedTuple):
    """The second update of a learner whose learning rate is 0: the first one makes the optimizer's state."""

    learner: Learner
    scored: TokenBatch
    score_seconds: float
    """Of the first pass."""
    seconds: float
    peak_gib: float | None
    """Of the update; None on a CPU."""
    metrics: Mapping[str, float]


def time_update(
    machine: Machine, report: Report, where: str, policy: Any, batch: TokenBatch, training: TrainingConfig
) -> TimedUpdate:
    """Requires that rows are packed, if they should be, and that no step is skipped."""
    learner = Learner(policy, None, None, training.model_copy(update={"learning_rate": 0.0}))
    if training.packing:
        report.require(where, "rows are packed", str(learner.is_packed), learner.is_packed, "True")
    score_seconds, (scored, _) = machine.wall_seconds(lambda: learner.score(batch))
    credited, _ = learner.credit(scored)
    learner.update(credited)
    machine.start_peak()
    seconds, metrics = machine.wall_seconds(lambda: learner.update(credited))
    peak = machine.peak_bytes
    report.require(where, "skipped steps", metrics["num_skipped_steps"], metrics["num_skipped_steps"] == 0, "0")
    return TimedUpdate(learner, scored, score_seconds, seconds, None if peak is None else peak / GIB, metrics)


def _update(
    machine: Machine, report: Report, where: str, work: Work, policy: Any, batch: TokenBatch, is_packed: bool
) -> tuple[torch.Tensor, float]:
    """Log-probabilities `[B, T]` and the gradient norm. The weights stay, so both ways learn from the same ones."""
    chosen = chosen_update(work, batch, _memory_gib(machine))
    for key, value in chosen.items():
        report.figure(where, f"chosen: training.{key}", word(value))
    few_tokens = machine.pick({}, {"micro_batch_tokens": 64})
    training = grpo_settings(work.num_episodes, packing=is_packed, **(chosen | few_tokens))
    timed = time_update(machine, report, where, policy, batch, training)
    report.figure(where, "scoring, first pass", batch.num_tokens / timed.score_seconds, "tokens/s")
    report.figure(where, "update", batch.num_tokens / timed.seconds, "tokens/s")
    mfu = flops(work, batch) / timed.seconds / machine.matmul_rate
    if machine.is_cuda and int(batch.lengths.min()) == LONG_ROW:
        is_met = mfu >= work.required_mfu
        report.require(where, "MFU of the update", 100 * mfu, is_met, f"≥ {100 * work.required_mfu:g}", "%")
    else:
        report.figure(where, "MFU of the update", 100 * mfu, "%")
    if timed.peak_gib is not None:
        report.figure(where, "peak memory of the update", timed.peak_gib, "GiB")
    assert timed.scored.old_logprobs is not None
    return timed.scored.old_logprobs, timed.metrics["grad_norm"]
