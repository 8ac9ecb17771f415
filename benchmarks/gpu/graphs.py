"""Check 3: decoding with CUDA graphs and asynchronous scheduling samples the same tokens as without.

A replayed pass has other shapes (padded rows and keys), so it rounds differently, and where two tokens are almost equally
probable another one may be taken. Rows are compared up to their first difference: there the two tokens must be as good as
tied, and before it the log-probabilities must agree.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import torch

from benchmarks.gpu.findings import Report
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import (
    SHAPES,
    complete,
    is_left_out,
    make_engine,
    make_model,
    own_error_of_random_prompts,
    random_prompts,
    short,
)
from midthought.engines.local import kv_cache_manager as room
from midthought.engines.local.cuda_graphs import Pass, Record
from midthought.types import Completion

MIN_TOLERANCE, OWN_ERRORS = 1e-3, 10.0
"""Largest difference of a token's log-probability: so many nats, and so many times the largest expected error of the model's
own forward pass. The largest of thousands of tokens is several times the expected one; a wrong pass is off by nats."""

WAYS = {"eager": (False, False), "graphs": (True, False), "graphs and asynchronous": (True, True)}
"""Ways to decode: with CUDA graphs, and with tokens that are read one pass later."""


class Comparison:
    """Two lists of completions of the same prompts, token by token."""

    def __init__(self, ones: Sequence[Completion], others: Sequence[Completion]) -> None:
        self.num_rows = len(ones)
        self.num_same_rows = self.num_same_tokens = self.num_tokens = 0
        self.largest_difference = 0.0
        """Of log-probabilities of the same token after the same tokens, in nats."""
        self.largest_gap = 0.0
        """Between the tokens of a row's first difference, in nats."""
        for one, other in zip(ones, others, strict=True):
            self._compare(one, other)

    def _compare(self, one: Completion, other: Completion) -> None:
        self.num_tokens += len(one.token_ids)
        tokens = zip(one.token_ids, other.token_ids, one.sampled_logprobs, other.sampled_logprobs, strict=True)
        for token, its_token, logprob, its_logprob in tokens:
            difference = abs(logprob - its_logprob)
            if token != its_token:
                self.largest_gap = max(self.largest_gap, difference)
                return
            self.num_same_tokens += 1
            self.largest_difference = max(self.largest_difference, difference)
        self.num_same_rows += 1


def run(machine: Machine, report: Report) -> None:
    name = machine.model_names[0]
    for dtype in (torch.bfloat16, torch.float32):
        if not is_left_out(machine, report, f"{name} {short(dtype)}", name, seconds=5.0):
            _compare(machine, report, name, dtype)
            machine.clean()
    if not machine.is_cuda:
        report.not_run("there are no CUDA graphs on a CPU; all engines computed every pass")


def _compare(machine: Machine, report: Report, name: str, dtype: torch.dtype) -> None:
    num_rows, num_tokens, setting = machine.pick(16, 3), machine.pick(192, 12), f"{name} {short(dtype)}"
    model = make_model(machine, name, dtype)
    prompts = random_prompts(SHAPES[name], [12 + number for number in range(num_rows)])
    found: dict[str, list[Completion]] = {}
    for way, (has_graphs, is_async) in WAYS.items():
        with counted_recordings() as counts, logged_warnings() as messages:
            engine = make_engine(model, num_rows, 256, cuda_graphs=has_graphs, async_scheduling=is_async)
            complete(engine, random_prompts(SHAPES[name], [10] * num_rows, seed=2), num_tokens)
            seconds, found[way] = machine.wall_seconds(
                lambda engine=engine: complete(engine, prompts, num_tokens, temperature=0.0)
            )
        report.figure(setting, f"tokens/s of {num_rows} rows, {way}", num_rows * num_tokens / seconds)
        if has_graphs and machine.is_cuda:
            used = counts["recordings"] and counts["replays"]
            recorded = f"{counts['recordings']} graphs, {counts['replays']} replays"
            report.require(
                setting, f"recorded passes, {way}", recorded, bool(used) and not messages, "used, and no warning"
            )
            for message in messages:
                report.figure(setting, "warning", message)
        engine.shutdown()
    eager, *others = found
    limit = MIN_TOLERANCE + OWN_ERRORS * own_error_of_random_prompts(model, SHAPES[name]).largest
    for way in others:
        compared = Comparison(found[eager], found[way])
        same = f"{compared.num_same_rows} of {compared.num_rows}"
        report.figure(setting, f"rows with the same tokens, {way}", same)
        before = f"{compared.num_same_tokens} of {compared.num_tokens}"
        report.figure(setting, f"tokens before a difference, {way}", before)
        report.at_most(
            setting, f"largest difference for the same token, {way}", compared.largest_difference, limit, "nats"
        )
        report.at_most(setting, f"largest gap where tokens differ, {way}", compared.largest_gap, limit, "nats")


@contextmanager
def counted_recordings() -> Iterator[dict[str, int]]:
    """Counts the graphs that engines record meanwhile, and how often they are replayed."""
    counts = {"recordings": 0, "replays": 0}
    make_record = room.cuda_graphs

    def counting() -> Record:
        record = make_record()

        def recorded(compute: Pass) -> Pass:
            replay = record(compute)
            counts["recordings"] += 1

            def replayed() -> torch.Tensor:
                counts["replays"] += 1
                return replay()

            return replayed

        return recorded

    with mock.patch.object(room, "cuda_graphs", counting):
        yield counts


@contextmanager
def logged_warnings() -> Iterator[list[str]]:
    """What the recorder warns of."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("midthought.engines.local.cuda_graphs")
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
