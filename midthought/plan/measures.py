"""The measures that save memory, least harmful first: `auto` applies them until a run fits, and an error names the first one.

Computes no sizes itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from midthought.plan.memory import ENOUGH_SEQUENCES, Memory

MICRO = "training.micro_batch_tokens"
MICRO_BATCH_TOKENS = (16_384, 8192, 4096, 2048, 1024)
"""Values of `training.micro_batch_tokens`. The largest is that of a whole group, if its samples share their prompt."""
FAST_TOKENS = {"gpu": (4096, 16_384), "cpu": (1024, 4096)}
"""Smaller passes are slower than recomputed layers; larger ones are faster only if more samples share a prompt."""
RECOMPUTED = 4 / 3
"""Compute of an update with recomputed layers, as a multiple of one without."""
MEASURES: tuple[tuple[str, Any], ...] = (
    ("training.gradient_checkpointing", True),
    *((MICRO, size) for size in MICRO_BATCH_TOKENS),
    ("training.gradient_checkpointing", "offload"),
    ("training.offload", "reference"),
    ("inference.merge_adapters", False),
    *(("inference.max_num_seqs", number) for number in (64, 32, ENOUGH_SEQUENCES)),
    ("inference.gpu_memory_utilization", "auto"),
    ("inference.backend", "local"),
    ("model.critic", "shared"),
    ("model.dtype", "bfloat16"),
    ("training.optimizer", "adamw_8bit"),
    ("training.offload", "optimizer"),
    ("model.lora_rank", 32),
    *(("inference.max_tokens", number) for number in (4096, 2048, 1024, 512)),
    ("inference.max_num_seqs", ENOUGH_SEQUENCES // 2),
    ("training.logits_mib", 16),
)
"""Setting and its new value, least harm first. Costs: docs/scaling.md, "If a run does not fit"."""
LOGITS_MIB = {"gpu": 512, "cpu": 64}
"""Values of `training.logits_mib`, if they fit: large blocks are better for a GPU's matrix product."""


def fitted(plan: Memory, names: Collection[str]) -> tuple[dict[str, Any], Memory]:
    """Returns values of settings, and the plan with them: those of the fastest update, with the mildest measures with which the
    run fits. If nothing fits, all measures that save memory.

    Changes only the settings in `names` (`section.key`).
    """
    group = plan.tokens_together(plan.num_sharing) if plan.pays(plan.num_sharing) else 0
    fastest = {"training.gradient_checkpointing": False, "training.logits_mib": LOGITS_MIB[plan.device]}
    fastest[MICRO] = max(FAST_TOKENS[plan.device][1], group)
    values = {name: value for name, value in fastest.items() if name in names}
    plan = _with(plan, values)
    measures, plan = _mildest(plan, [each for each in _measures(plan) if each[0] in names])
    return values | measures, plan


def remedy(plan: Memory) -> dict[str, Any]:
    """Returns the first setting with which the plan fits; if none suffices alone, the mildest ones that do together.

    `section.key` → value; empty if nothing makes the plan fit.
    """
    measures = _measures(plan)
    ways = (*(_applied(plan, [measure]) for measure in measures), _mildest(plan, measures))
    return next((values for values, tried in ways if tried.fits), {})


def _measures(plan: Memory) -> list[tuple[str, Any]]:
    """Returns `MEASURES` after those that cost less: smaller blocks of logits, and smaller passes."""
    least, most = FAST_TOKENS[plan.device][0], RECOMPUTED * plan.tokens_of_group
    sizes = [size for size in MICRO_BATCH_TOKENS if size >= least and _with(plan, {MICRO: size}).tokens_of_group < most]
    return list(dict.fromkeys([("training.logits_mib", 64), *((MICRO, size) for size in sizes), *MEASURES]))


def _mildest(plan: Memory, measures: Sequence[tuple[str, Any]]) -> tuple[dict[str, Any], Memory]:
    """Leaves out as many measures as the plan can do without, the most harmful ones first; none, if it does not fit."""
    kept = [*measures]
    best = _applied(plan, kept)
    for measure in reversed(measures) if best[1].fits else ():
        others = [each for each in kept if each != measure]
        if (found := _applied(plan, others))[1].fits:
            kept, best = others, found
    return best


def _applied(plan: Memory, measures: Sequence[tuple[str, Any]]) -> tuple[dict[str, Any], Memory]:
    """Applies measures in their order until the plan fits; omits those that save nothing."""
    values: dict[str, Any] = {}
    for name, value in [*measures, *measures]:  # some save nothing before another one
        tried = _with(plan, {name: value})
        if not plan.fits and tried.lack < plan.lack:
            plan, values[name] = tried, value
    return values, plan


def _with(plan: Memory, values: Mapping[str, Any]) -> Memory:
    return replace(plan, **{name.partition(".")[2]: value for name, value in values.items()})
