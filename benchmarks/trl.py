"""Part `trl`: our chat-turn episodes against TRL's tool loop: the same model, prompts, calls and results."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks import trl_loop
from benchmarks.options import Options
from benchmarks.systems import Ours, make_engine
from benchmarks.table import Row
from benchmarks.timing import System, compare
from benchmarks.work import Shape, Work, always

PART = "trl"
GOALS = {0: None, 50: 2.5, 200: 5.0}
"""Milliseconds of a tool, and how many times as fast we are to be."""
MAX_ROUNDS = 3
"""A round takes minutes: TRL runs the tools of 64 episodes one after the other."""


def measure(options: Options) -> Iterator[Row]:
    if not trl_loop.is_installed():
        print("trl: left out, trl is not installed here; `make bench` puts it beside the environment", file=sys.stderr)
        return
    shape = Shape(num_episodes=4, num_prompt=60, num_span=12) if options.quick else Shape()
    for size in options.sizes:
        yield from against_trl(options, size, shape)


def against_trl(options: Options, size: str, shape: Shape) -> Iterator[Row]:
    """Tools of 0, 50 and 200 ms, in a plain function, as either library lets one write it."""
    reciter = options.reciter(size, "hermes", num_span=shape.num_span)
    systems: dict[str, System] = {}
    for milliseconds in GOALS:
        systems[f"ours, {milliseconds} ms"] = Ours(reciter, make_engine(reciter, shape), always(milliseconds / 1000))
        systems[f"TRL, {milliseconds} ms"] = trl_loop.TRLToolLoop(reciter, shape, always(milliseconds / 1000))
    timings = compare(systems, lambda _, seed: Work(reciter, shape, seed), min(MAX_ROUNDS, options.num_rounds))
    for milliseconds, goal in GOALS.items():
        ours, theirs = f"ours, {milliseconds} ms", f"TRL, {milliseconds} ms"
        yield Row(
            part=PART,
            setting=shape.describe(size),
            figure=f"{milliseconds} ms tools: TRL's time against ours",
            value=timings.ratio(theirs, ours),
            at_least=goal,
            seconds=timings.medians(ours, theirs),
        )
