"""Check 4: tokens per second of decoding, and the share of what the memory's bandwidth allows.

A step reads every weight of the layers and the output layer once, whatever the number of rows: bound in steps per second =
measured bandwidth / bytes of these weights. Keys and values are left out; the sequences are short. What a share is required
of is measured first.
"""

from __future__ import annotations

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
    random_prompts,
    short,
)
from midthought.engines.local.engine import LocalEngine
from midthought.types import Completion

ROUNDS, TINY_ROUNDS = ((32,), (128, 8, 1)), ((4,), (1,))
"""Numbers of rows. Every model is made once in each round."""
REQUIRED = {("0.6B", 32): 0.40, ("8B", 32): 0.50}
"""Share of the bound by model and number of rows, on a GPU."""
NUM_PROMPT_TOKENS = 8
DTYPE = torch.bfloat16


def run(machine: Machine, report: Report) -> None:
    for numbers in machine.pick(ROUNDS, TINY_ROUNDS):
        for name in sorted(machine.model_names, key=lambda name: (name, numbers[0]) not in REQUIRED):
            setting, room = f"{name} {short(DTYPE)}", 1.5 * WIDTHS[DTYPE]
            first, seconds = f"{setting}, {numbers[0]} at once", 0.5 if (name, numbers[0]) in REQUIRED else 3.0
            if not is_left_out(machine, report, first, name, bytes_per_parameter=room, seconds=seconds):
                _measure_all(machine, report, setting, name, numbers)
                machine.clean()


def _measure_all(machine: Machine, report: Report, setting: str, name: str, numbers: tuple[int, ...]) -> None:
    model, num_tokens = make_model(machine, name, DTYPE), machine.pick(192, 12)
    engine = make_engine(model, max(numbers), NUM_PROMPT_TOKENS + num_tokens)
    for num_rows in numbers:
        where = f"{setting}, {num_rows} at once"
        if num_rows == numbers[0] or not is_left_out(machine, report, where, name, seconds=3.0):
            _measure(machine, report, where, name, engine, num_rows, num_tokens)
    engine.shutdown()


def _measure(
    machine: Machine, report: Report, where: str, name: str, engine: LocalEngine, num_rows: int, num_tokens: int
) -> None:
    def decode(seed: int) -> list[Completion]:
        prompts = random_prompts(SHAPES[name], [NUM_PROMPT_TOKENS] * num_rows, seed=seed)
        return complete(engine, prompts, num_tokens)

    decode(1)  # records graphs
    seconds, done = machine.wall_seconds(lambda: decode(2))
    num_sampled = sum(len(completion.token_ids) for completion in done)
    assert num_sampled == num_rows * num_tokens
    report.figure(where, "decoding", num_sampled / seconds, "tokens/s")
    steps_bound = machine.bandwidth / (WIDTHS[DTYPE] * SHAPES[name].computing_parameters)
    share = num_tokens / seconds / steps_bound
    words = "share of the bandwidth bound"
    if machine.is_cuda and (required := REQUIRED.get((name, num_rows))):
        report.require(where, words, 100 * share, share >= required, f"≥ {100 * required:g}", "%")
    else:
        report.figure(where, words, 100 * share, "%")
