"""Check 8: the largest batch that a learner fits into a part of the memory, and what a plan says of it.

PyTorch's allocator is limited to 24 GiB, so that the search is short and says the same on every larger GPU. The tokens of
a pass are doubled until memory runs out. What the plan says fits must fit; the planned bytes must be at least those taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks.gpu.findings import Report
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import SHAPES
from benchmarks.plan import LEAST, iterate, memory_of, take
from midthought.errors import SettingsError
from midthought.plan.memory import Memory

LIMIT_GIB, TINY_LIMIT_GIB = 24.0, 0.016
ROW_TOKENS = 512
"""128 of the prompt, 384 sampled: the lengths of `benchmarks.plan`."""
GIB = 2**30
WAYS = {"": "", ", layers recomputed": "gradient_checkpointing=true"}


def run(machine: Machine, report: Report) -> None:
    name = machine.model_names[0]
    limit_bytes = int(min(machine.pick(LIMIT_GIB, TINY_LIMIT_GIB) * GIB, 0.9 * machine.free_bytes))
    with memory_limit(machine, limit_bytes):
        for suffix, way in WAYS.items():
            _search(machine, report, name, way, limit_bytes, f"{name} bfloat16{suffix}")


def _search(machine: Machine, report: Report, name: str, way: str, limit_bytes: int, setting: str) -> None:
    report.figure(setting, "memory limit", limit_bytes / GIB, "GiB")
    planned, largest, num_rows, last_seconds = 0, 0, machine.pick(8, 1), 1.0
    while machine.seconds_left > 4 * last_seconds:  # twice the tokens take twice as long, or a little more
        plan = _plan(name, f"device={'gpu' if machine.is_cuda else 'cpu'} {way}", num_rows, limit_bytes)
        its_bytes, tokens = plan.learner, plan.micro_batch_tokens
        if its_bytes <= plan.limit:
            planned = tokens
        last_seconds, taken = machine.wall_seconds(lambda plan=plan: _taken_bytes(machine, plan, limit_bytes))
        if taken is None:
            words = f"smallest pass that did not fit, planned {its_bytes / 2**20:,.0f} MiB"
            report.figure(setting, words, tokens, "tokens")
            break
        largest, num_rows = tokens, 2 * num_rows
        words = f"pass of {tokens:,} tokens: planned {its_bytes / 2**20:,.0f} MiB over taken {taken / 2**20:,.0f} MiB"
        report.require(setting, words, its_bytes / taken, its_bytes >= LEAST * taken, f"≥ {LEAST}")
    else:
        report.left_out(setting, "no time was left to find the largest pass")
    report.figure(setting, "largest pass that fitted, doubling", largest, "tokens")
    words = "largest of these passes that the plan allows"
    report.require(setting, words, planned, planned <= largest, "≤ what fitted", "tokens")


def _plan(name: str, way: str, num_rows: int, limit_bytes: int) -> Memory:
    """Two optimizer steps of two passes each, `num_rows` rows a pass."""
    shape = SHAPES[name]
    size = (
        f"hidden_size={shape.hidden_size} num_layers={shape.num_layers} num_heads={shape.num_heads} "
        f"num_kv_heads={shape.num_kv_heads} head_dim={shape.head_dim} intermediate_size={shape.intermediate_size} "
        f"vocab_size={shape.vocab_size} tie_embeddings={str(shape.is_tied).lower()}"
    )
    work = f"batch_size={4 * num_rows} micro_batch_tokens={num_rows * ROW_TOKENS}"
    return memory_of(size, f"dtype=bfloat16 memory_gib={limit_bytes / GIB}", work, way)


def _taken_bytes(machine: Machine, plan: Memory, limit_bytes: int) -> int | None:
    """Most bytes allocated at once; None if they are more than the limit."""
    if not machine.is_cuda:
        taken = take(plan).allocated
        return taken if taken <= limit_bytes else None
    machine.clean()
    before = torch.cuda.memory_allocated(machine.device)
    machine.start_peak()
    return (machine.peak_bytes or 0) - before if fits(plan, machine.device) else None


def fits(plan: Memory, device: torch.device) -> bool:
    """Whether an iteration of the learner has enough memory for its micro-batches."""
    try:
        iterate(plan, device)
    except (torch.OutOfMemoryError, SettingsError):  # the latter while a micro-batch is computed
        return False
    return True


@contextmanager
def memory_limit(machine: Machine, limit_bytes: int) -> Iterator[None]:
    """Lets PyTorch's allocator take no more on a GPU; a CPU has no such limit."""
    if not machine.is_cuda:
        yield
        return
    total = torch.cuda.get_device_properties(machine.device).total_memory
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total, machine.device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, machine.device)
