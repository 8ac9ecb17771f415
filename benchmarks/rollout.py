"""Part `rollout`: in-thought episodes against this machine's limit, against a full prefill at every call, and against others."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.bare import BareLoop
from benchmarks.floor import decoding_floor
from benchmarks.options import Options
from benchmarks.systems import (
    BareEpisodes,
    BareSampling,
    Generate,
    Ours,
    OurSampling,
    RePrefill,
    make_engine,
)
from benchmarks.table import Row
from benchmarks.timing import System, Timings, compare
from benchmarks.work import Shape, Work, always

PART = "rollout"
LONG_PROMPTS = {1000: 32, 4000: 16}
"""Tokens of a prompt, and episodes at once."""
SHARED_PROMPT = 1000
NUM_SAMPLES = 8
TOOL_SECONDS = 0.2


def measure(options: Options) -> Iterator[Row]:
    shape = Shape(num_episodes=4, num_prompt=40, num_span=12, num_result=24) if options.quick else Shape()
    long_prompts = {100: 2} if options.quick else LONG_PROMPTS
    num_shared = 100 if options.quick else SHARED_PROMPT
    for size in options.sizes:
        yield from against_the_limit(options, size, shape)
        for num_prompt, num_episodes in long_prompts.items():
            yield from with_long_prompts(
                options, size, replace(shape, num_episodes=num_episodes, num_prompt=num_prompt)
            )
        yield from shared_prompt(options, size, replace(shape, num_episodes=NUM_SAMPLES, num_prompt=num_shared))
        yield from slow_tools(options, size, shape)


def against_the_limit(options: Options, size: str, shape: Shape) -> Iterator[Row]:
    """Short prompts: with tools and without, against the bare loop, re-prefilling and transformers' `generate`."""
    reciter = options.reciter(size, num_span=shape.num_span)
    loop = BareLoop(reciter.model, shape.num_episodes, shape.length)
    systems: dict[str, System] = {
        "engine, no tools": OurSampling(reciter, make_engine(reciter, shape)),
        "bare, no tools": BareSampling(reciter, loop),
        "generate, no tools": Generate(reciter),
        "ours": Ours(reciter, make_engine(reciter, shape)),
        "bare": BareEpisodes(reciter, loop),
        "re-prefill": RePrefill(reciter, shape),
    }
    timings = compare(systems, lambda _, seed: Work(reciter, shape, seed), options.num_rounds)
    row = functools.partial(_row, timings, shape.describe(size))
    yield row(
        "no tools: tokens/s against the bare loop (the limit)", "bare, no tools", "engine, no tools", at_least=0.9
    )
    yield row("no tools: tokens/s against generate", "generate, no tools", "engine, no tools", at_least=1.2)
    yield row("in-thought episodes: time against P + D", "ours", "bare")
    yield row("time of a re-prefill at every call against ours", "re-prefill", "ours")
    yield row("tokens/s of episodes with tools against generate without", "generate, no tools", "ours")
    if options.device != "cpu":
        floor_seconds = decoding_floor(reciter, shape)
        yield Row(
            part=PART,
            setting=shape.describe(size),
            figure="no tools: time against the bandwidth-bound floor of decoding",
            value=timings.per_round(lambda seconds: seconds["engine, no tools"] / floor_seconds),
            seconds={**timings.medians("engine, no tools"), "floor": floor_seconds},
        )


def with_long_prompts(options: Options, size: str, shape: Shape) -> Iterator[Row]:
    """Where re-prefilling hurts: P is all prompts and results once, D is decoding."""
    reciter = options.reciter(size, num_span=shape.num_span)
    systems: dict[str, System] = {
        "ours": Ours(reciter, make_engine(reciter, shape)),
        "P + D": BareEpisodes(reciter, BareLoop(reciter.model, shape.num_episodes, shape.length)),
        "re-prefill": RePrefill(reciter, shape),
    }
    timings = compare(systems, lambda _, seed: Work(reciter, shape, seed), options.num_rounds)
    row = functools.partial(_row, timings, shape.describe(size))
    yield row("in-thought episodes: time against P + D", "ours", "P + D", at_most=1.15)
    yield row("time of a re-prefill at every call against ours", "re-prefill", "ours", at_least=1.0)


def shared_prompt(options: Options, size: str, shape: Shape) -> Iterator[Row]:
    """All samples of a group have one prompt: it is to be computed once."""
    reciter = options.reciter(size, num_span=shape.num_span)
    num_samples = shape.num_episodes
    shapes = {
        f"n = {num_samples}": replace(shape, num_per_prompt=num_samples),
        "n = 1": replace(shape, num_episodes=1),
    }
    systems: dict[str, System] = {name: Ours(reciter, make_engine(reciter, shape)) for name in shapes}
    timings = compare(systems, lambda name, seed: Work(reciter, shapes[name], seed), options.num_rounds)
    row = functools.partial(_row, timings, shape.describe(size))
    yield row(
        f"{num_samples} samples of one prompt: time against one sample", f"n = {num_samples}", "n = 1", at_most=2.5
    )


def slow_tools(options: Options, size: str, shape: Shape) -> Iterator[Row]:
    """G is the run without tool latency; the tools of all episodes are to run side by side."""
    reciter = options.reciter(size, num_span=shape.num_span)
    waiting = shape.num_calls * TOOL_SECONDS
    systems: dict[str, System] = {
        "200 ms tools": Ours(reciter, make_engine(reciter, shape), always(TOOL_SECONDS)),
        "G": Ours(reciter, make_engine(reciter, shape)),
    }
    timings = compare(systems, lambda _, seed: Work(reciter, shape, seed), options.num_rounds)
    yield Row(
        part=PART,
        setting=shape.describe(size),
        figure=f"200 ms tools: time against G + {waiting:g} s",
        value=timings.against("200 ms tools", "G", waiting),
        at_most=1.1,
        seconds=timings.medians("200 ms tools", "G"),
    )


def _row(
    timings: Timings,
    setting: str,
    figure: str,
    above: str,
    below: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Row:
    """The ratio of two systems' seconds."""
    return Row(
        part=PART,
        setting=setting,
        figure=figure,
        value=timings.ratio(above, below),
        at_least=at_least,
        at_most=at_most,
        seconds=timings.medians(above, below),
    )
