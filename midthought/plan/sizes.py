"""Chooses the settings that are `auto` and take memory, so that the run fits: by the mildest measures of `plan.advice`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product

from midthought.plan.activations import logits_sizes
from midthought.plan.advice import ON_ONE_CPU, ON_ONE_GPU, Changes, Measure, excess
from midthought.plan.engine_choice import share_for_engine
from midthought.plan.memory import Memory

MICRO_BATCH_TOKENS = {"gpu": (16384, 8192, 4096), "cpu": (4096, 2048, 1024)}
"""Values of `training.micro_batch_tokens` with enough memory, fastest first."""
SPARE = 0.1
"""Share of a GPU's memory that must be left beside `headroom`. Without fused kernels, which a run does not use if they fail, the
same passes take up to a fifth more."""


def fitted(plan: Memory, names: Collection[str]) -> Memory:
    """Returns the plan with the mildest measures with which the run fits, and then with the fastest update.

    Changes only the settings in `names` (`section.key`). If nothing fits, returns the plan that exceeds the memory least.
    """
    settings = plan.settings
    if settings.is_for_verl:
        return plan
    on_gpu = settings.device == "gpu"
    logits = logits_sizes(settings.memory_bytes) if on_gpu and "training.logits_mib" in names else ()
    measures = [measure for measure in (ON_ONE_GPU if on_gpu else ON_ONE_CPU) if measure.setting in names]
    plan = _mildest(_changed(plan, {"logits_mib": logits[0]} if logits else {}, names), measures, names)
    return fastest_update(plan, names) if is_enough(plan) else plan


def _mildest(plan: Memory, measures: Sequence[Measure], names: Collection[str]) -> Memory:
    """Returns the plan with the mildest of all combinations of measures, which are sorted by their harm, that fits; if there is
    none, the one that lacks least. Tries all, because a measure may save nothing alone, or take memory beside another."""
    if not measures or is_enough(plan):
        return plan
    *milder, harshest = measures
    best = _mildest(plan, milder, names)
    while not is_enough(best) and (changes := harshest.changes(plan)) is not None:
        plan = _changed(plan, changes, names)
        best = min(best, _mildest(plan, milder, names), key=_lack)
    return best


def _changed(plan: Memory, changes: Changes, names: Collection[str]) -> Memory:
    """Returns the plan with these arguments, and with an engine's share of the memory that is what is free if it is `auto`."""
    plan = Memory(plan.shape, plan.settings.model_copy(update=changes))
    if "inference.gpu_memory_utilization" not in names or not plan.settings.in_process:
        return plan
    return Memory(plan.shape, plan.settings.model_copy(update={"gpu_memory_utilization": share_for_engine(plan)}))


def is_enough(plan: Memory) -> bool:
    """Whether the run fits. vLLM in this process also needs a cache for enough sequences."""
    return _lack(plan) == (False, 0)


def _lack(plan: Memory) -> tuple[bool, int]:
    """Returns whether vLLM in this process lacks a cache for enough sequences, and the bytes beyond the limit."""
    return plan.settings.in_process and not plan.has_enough_sequences, excess(plan)


def most_bytes(plan: Memory) -> int:
    """Returns the bytes that the largest phase needs."""
    return max(plan.totals.values())


def fastest_update(plan: Memory, names: Collection[str]) -> Memory:
    """Returns the plan of the fastest update that fits, on a GPU with memory to spare; `plan` if there is none.

    Recomputed layers cost a third more compute, and smaller micro-batches less than this, so layers are recomputed only if no
    size fits without. The engine's memory does not change: its KV cache is not there while the learner works.
    """
    settings = plan.settings
    on_gpu, recomputed = settings.device == "gpu", settings.gradient_checkpointing
    sizes = (
        MICRO_BATCH_TOKENS[settings.device]
        if "training.micro_batch_tokens" in names
        else (settings.micro_batch_tokens,)
    )
    ways = (False, True) if recomputed and "training.gradient_checkpointing" in names else (recomputed,)
    for is_recomputed, size in product(ways, sizes):
        changes = {"gradient_checkpointing": is_recomputed, "micro_batch_tokens": size}
        tried = Memory(plan.shape, settings.model_copy(update=changes))
        if tried.totals["learning"] <= tried.limit - on_gpu * SPARE * settings.memory_bytes:
            return tried
    return plan
