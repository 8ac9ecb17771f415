"""Check 4: tokens per second of decoding, and the share of what the memory's bandwidth allows; tokens per second of episodes
that read a tool's result several times.

A step reads every weight of the layers and the output layer once, whatever the number of rows: bound in steps per second =
measured bandwidth / bytes of these weights. Keys and values are left out; the sequences are short. What a share is required
of is measured first.
"""

from __future__ import annotations

import asyncio
import random

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
from midthought.engines.engine import Sampling
from midthought.engines.local.engine import LocalEngine
from midthought.types import Completion

ROUNDS, TINY_ROUNDS = ((32,), (128, 8, 1)), ((4,), (1,))
"""Numbers of rows. Every model is made once in each round."""
REQUIRED = {("0.6B", 32): 0.40, ("8B", 32): 0.50}
"""Share of the bound by model and number of rows, on a GPU."""
NUM_PROMPT_TOKENS = 8
NUM_TURNS, NUM_RESULT_TOKENS = 4, 60
"""Of an episode with results: it samples so many times, and reads a result of so many tokens between two of them."""
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
    room = NUM_PROMPT_TOKENS + 2 * num_tokens + NUM_TURNS * NUM_RESULT_TOKENS
    engine = make_engine(model, max(numbers), room)
    for num_rows in numbers:
        where = f"{setting}, {num_rows} at once"
        if num_rows == numbers[0] or not is_left_out(machine, report, where, name, seconds=3.0):
            _measure(machine, report, where, name, engine, num_rows, num_tokens)
            if num_rows == ROUNDS[0][0] or not machine.is_cuda:
                _measure_with_results(machine, report, where, name, engine, num_rows, num_tokens)
    engine.shutdown()


def _measure(
    machine: Machine, report: Report, where: str, name: str, engine: LocalEngine, num_rows: int, num_tokens: int
) -> None:
    def decode(seed: int) -> list[Completion]:
        prompts = random_prompts(SHAPES[name], [NUM_PROMPT_TOKENS] * num_rows, seed=seed)
        return complete(engine, prompts, num_tokens)

    for seed in (0, 1):  # records passes of one and of several tokens
        decode(seed)
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


def _measure_with_results(
    machine: Machine, report: Report, where: str, name: str, engine: LocalEngine, num_rows: int, num_tokens: int
) -> None:
    """Episodes sample as many tokens as those without results, in turns of different lengths, so that results arrive at different
    times."""

    async def one(episode: int, seed: int) -> int:
        draw = random.Random(1000 * seed + episode)
        token_ids = draw.choices(range(SHAPES[name].vocab_size), k=NUM_PROMPT_TOKENS)
        engine.open(episode)
        num_sampled = 0
        for _ in range(NUM_TURNS):
            share = num_tokens // NUM_TURNS
            sampling = Sampling(max_tokens=draw.randint(share // 2, share + share // 2), temperature=1.0, seed=episode)
            done = await engine.sample(episode, token_ids, sampling)
            num_sampled += len(done.token_ids)
            token_ids += [*done.token_ids, *draw.choices(range(SHAPES[name].vocab_size), k=NUM_RESULT_TOKENS)]
        engine.close(episode)
        return num_sampled

    async def all_of_them(seed: int) -> int:
        return sum(await asyncio.gather(*(one(episode, seed) for episode in range(num_rows))))

    for seed in (0, 1, 2):  # records passes of different numbers of tokens
        asyncio.run(all_of_them(seed))
    seconds, num_sampled = machine.wall_seconds(lambda: asyncio.run(all_of_them(3)))
    report.figure(where, f"decoding with {NUM_TURNS - 1} results", num_sampled / seconds, "tokens/s")
