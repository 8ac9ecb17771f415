"""Check 4: tokens per second of decoding, and the share of what the memory's bandwidth allows.

A step reads every weight of the layers and the output layer once, whatever the number of rows: bound in steps per second =
measured bandwidth / bytes of these weights. Keys and values are left out; the sequences are short.
"""

from __future__ import annotations

import torch

from benchmarks.gpu.findings import Report
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import SHAPES, WIDTHS, complete, has_room, make_engine, make_model, random_prompts, short

NUM_ROWS = (1, 8, 32, 128)
REQUIRED = {("0.6B", 32): 0.40, ("8B", 32): 0.50}
"""Share of the bound by model and number of rows, on a GPU."""
NUM_PROMPT_TOKENS = 8


def run(machine: Machine, report: Report) -> None:
    dtype = torch.bfloat16
    for name in machine.model_names:
        setting, shape = f"{name} {short(dtype)}", SHAPES[name]
        if not has_room(machine, name, 1.5 * WIDTHS[dtype]):
            report.left_out(setting, "the model does not fit into the free memory")
            continue
        model = make_model(machine, name, dtype)
        steps_bound = machine.bandwidth / (WIDTHS[dtype] * shape.computing_parameters)
        for num_rows in machine.pick(NUM_ROWS, (1, 4)):
            if machine.seconds_left < machine.pick(10.0, 0.5):
                report.left_out(f"{setting}, {num_rows} at once", "no time is left")
                continue
            num_tokens = machine.pick(192, 12)
            engine = make_engine(model, num_rows, NUM_PROMPT_TOKENS + num_tokens)
            lengths = [NUM_PROMPT_TOKENS] * num_rows
            complete(engine, random_prompts(shape, lengths, seed=1), num_tokens)  # records graphs
            prompts = random_prompts(shape, lengths, seed=2)
            seconds, done = machine.wall_seconds(
                lambda engine=engine, prompts=prompts, number=num_tokens: complete(engine, prompts, number)
            )
            num_sampled = sum(len(completion.token_ids) for completion in done)
            assert num_sampled == num_rows * num_tokens
            where = f"{setting}, {num_rows} at once"
            report.figure(where, "decoding", num_sampled / seconds, "tokens/s")
            share = num_tokens / seconds / steps_bound
            required = REQUIRED.get((name, num_rows), 0.0) if machine.is_cuda else 0.0
            words = "share of the bandwidth bound"
            if required:
                report.require(where, words, 100 * share, share >= required, f"≥ {100 * required:g}", "%")
            else:
                report.figure(where, words, 100 * share, "%")
            engine.shutdown()
            machine.clean()
        del model
