"""Check 5: prefill of many prompts of distinct lengths, and that the first token after each is sampled from the right logits."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.findings import Report
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import (
    SHAPES,
    WIDTHS,
    complete,
    is_left_out,
    make_engine,
    make_model,
    own_error,
    random_prompts,
    short,
)
from midthought.engines.local.runner_selection import ROUNDING, float32_logprobs

NUM_COMPARED = 12
MAX_COMPARED_TOKENS = 64


def run(machine: Machine, report: Report) -> None:
    dtype = torch.bfloat16
    num_prompts = machine.pick(128, 16)
    lengths = [machine.pick(100, 8) + machine.pick(7, 1) * number for number in range(num_prompts)]
    for name in machine.model_names:
        setting, shape = f"{name} {short(dtype)}", SHAPES[name]
        if is_left_out(machine, report, setting, name, bytes_per_parameter=2 * WIDTHS[dtype], seconds=4.0):
            continue
        model = make_model(machine, name, dtype)
        engine = make_engine(model, num_prompts, max(lengths) + 2)
        complete(engine, random_prompts(shape, lengths[:8], seed=1), 1)
        prompts = random_prompts(shape, lengths, seed=2)
        seconds, done = machine.wall_seconds(
            lambda engine=engine, prompts=prompts: complete(engine, prompts, 1, temperature=0.0)
        )
        rate = sum(lengths) / seconds
        report.figure(setting, f"{num_prompts} prompts, {sum(lengths):,} tokens", rate, "tokens/s")
        share = 2.0 * shape.num_layers * shape.layer_parameters * rate / machine.matmul_rate
        report.figure(setting, "share of the matmul rate, 2 · parameters of the layers · tokens", 100 * share, "%")
        engine.shutdown()
        _compare(report, setting, model, prompts, [(each.token_ids[0], each.sampled_logprobs[0]) for each in done])
        del model, engine
        machine.clean()


def _compare(
    report: Report, setting: str, model: Any, prompts: list[list[int]], first: list[tuple[int, float]]
) -> None:
    """The first token's log-probability against float32."""
    numbers = range(0, len(prompts), max(1, len(prompts) // NUM_COMPARED))
    errors = []
    for number in numbers:
        token_id, logprob = first[number]
        errors.append(abs(logprob - float(float32_logprobs(model, [prompts[number]])[0][-1, token_id])))
    own = own_error(model, [prompts[number][-MAX_COMPARED_TOKENS:] for number in numbers])
    report.figure(setting, "largest error of the model's own forward pass", own.largest, "nats")
    limit = 5 * own.largest + ROUNDING
    report.at_most(setting, "largest error of a first token's log-probability", max(errors), limit, "nats")
