"""Formats a plan as a table and as plain values. Contains no formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from midthought.plan.hardware import GIB
from midthought.plan.measures import remedy
from midthought.plan.memory import MIB, Memory

NAME_WIDTH = 46


def to_lines(memory: Memory) -> Iterator[str]:
    """Yields the lines that `midthought plan` prints."""
    yield from _head(memory)
    unit, size_of_unit = ("GiB", GIB) if memory.needed >= GIB else ("MiB", MIB)
    for phase, parts in memory.phases.items():
        moment = f", at its peak ({memory.worst_moment})" if phase == "learning" else ""
        yield f"\n{unit} per GPU while {phase}{moment}"
        yield from (_row(name, size / size_of_unit) for name, size in parts.items() if size)
        yield _row("total", memory.totals[phase] / size_of_unit)
    yield f"\n{_verdict(memory)}"
    if memory.in_main_memory:
        size = f"{memory.in_main_memory / size_of_unit:.1f} {unit}"
        yield f"The optimizer takes {size} of CPU memory (copies of the weights, gradients, Adam moments)."


def to_dict(memory: Memory) -> dict[str, Any]:
    """Returns the same as values, in bytes."""
    return {
        "settings": memory.settings.model_dump(),
        "parameters": memory.shape.parameters,
        "learning_parameters": _num_learning(memory),
        "memory_bytes": memory.phases,
        "total_bytes": memory.totals,
        "limit_bytes": memory.limit,
        "main_memory_bytes": memory.in_main_memory,
        "worst_moment": memory.worst_moment,
        "sequences_per_engine": memory.num_sequences,
        "fits": memory.fits,
        "fits_with": [*remedy(memory).values()],
    }


def _head(memory: Memory) -> Iterator[str]:
    settings, shape = memory.settings, memory.shape
    name = settings.model or "a model of these sizes"
    yield f"{name}: {_count(shape.parameters)} parameters, {_count(_num_learning(memory))} trained"
    where = (
        f"{settings.learning_gpus} learn, {settings.sampling_gpus} sample"
        if settings.is_split
        else "all learn and sample"
    )
    yield (
        f"{settings.gpus} × {settings.gpu} ({settings.memory_gib:g} GiB), {where}; weights in {settings.num_shards} "
        f"shard{'s' * (settings.num_shards > 1)}; {settings.num_engines} engine{'s' * (settings.num_engines > 1)} "
        f"({settings.engine}) of {settings.tensor_parallel} GPU{'s' * (settings.tensor_parallel > 1)}"
    )
    yield (
        f"{settings.batch_size} episodes of {settings.prompt_tokens} + {settings.response_tokens} tokens; "
        f"{settings.dtype}; micro-batches of {settings.tokens_of_pass} tokens"
    )


def _verdict(memory: Memory) -> str:
    share = f"{memory.settings.headroom:.0%} of the memory reserved"
    words = (
        f"{memory.needed / GIB:.1f} GiB of {memory.limit / GIB:.1f} ({share}); an engine samples {memory.num_sequences} "
        "sequences at once"
    )
    if not memory.has_enough_sequences:
        words += ", too few"
    if memory.fits:
        return f"Fits: {words}."
    if settings := " ".join(remedy(memory).values()):
        return f"Does not fit: {words}. It fits with {settings}."
    others = "take tensor_parallel on several GPUs, a smaller model, or GPUs with more memory"
    return f"Does not fit: {words}. No setting of one GPU makes it fit; {others}."


def _row(name: str, value: float) -> str:
    return f"  {name:<{NAME_WIDTH - 2}}{value:>9.1f}"


def _num_learning(memory: Memory) -> int:
    settings, shape = memory.settings, memory.shape
    policy = memory.adapter_parameters if settings.lora_rank else shape.parameters
    return policy + (shape.trunk_parameters if settings.critic == "separate" else 0)


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"
