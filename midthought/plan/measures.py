"""The measures that save memory, least harmful first: `auto` applies them until a run fits, and an error names the first one.

Computes no sizes itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

from midthought.plan.activations import logits_sizes
from midthought.plan.memory import ENOUGH_SEQUENCES, Memory

MICRO_BATCH_TOKENS = {"gpu": (16384, 8192, 4096), "cpu": (4096, 2048, 1024)}
"""Values of `training.micro_batch_tokens` with enough memory, fastest first."""
SPARE = 0.1
"""Share of a GPU's memory that must be left beside what is not planned. Without fused kernels, which a run does not use if they
fail, the same passes take up to a fifth more."""
LARGEST_SHARE = 0.9
"""Largest share of a GPU's memory that vLLM gets: its own default."""
SMALLEST_SHARE = 0.05


def measures(memory: Memory) -> list[tuple[str, Any, Any]]:
    """Returns every measure, least harm first: the setting, its new value, and whether it is a change that applies to this plan.

    Their costs are in docs/scaling.md, "If a run does not fit".
    """
    plan, on_gpu = memory.settings, memory.settings.device == "gpu"
    is_local, has_adapters = plan.backend == "local", plan.lora_rank > 0
    learns_weights = not has_adapters or plan.critic == "separate"  # the optimizer's states of adapters are small
    smaller = max(plan.micro_batch_tokens // 2, plan.tokens_of_episode, 1024)
    fewer, few = max(ENOUGH_SEQUENCES, memory.num_sequences // 2), ENOUGH_SEQUENCES // 2
    smaller_passes = ("training.micro_batch_tokens", smaller, smaller < plan.micro_batch_tokens)
    share = share_for_engine(memory)
    return [
        ("training.gradient_checkpointing", True, not plan.gradient_checkpointing),
        ("training.logits_mib", 64, not 0 < plan.logits_mib <= 64),
        smaller_passes,
        ("training.gradient_checkpointing", "offload", on_gpu and plan.gradient_checkpointing is True),
        ("training.offload_reference", True, on_gpu and memory.reference and not plan.offload_reference),
        ("inference.merge_adapters", False, has_adapters and memory.copied_weights),
        ("inference.max_num_seqs", fewer, is_local and memory.num_sequences > ENOUGH_SEQUENCES),
        ("inference.gpu_memory_utilization", share, plan.backend == "vllm" and share < plan.gpu_memory_utilization),
        ("inference.backend", "local", plan.backend == "vllm"),
        ("model.critic", "shared", plan.critic == "separate"),
        ("model.dtype", "bfloat16", plan.dtype == "float32"),
        ("training.optimizer", "adamw_8bit", learns_weights and plan.optimizer == "adamw"),
        ("training.offload_optimizer", True, on_gpu and learns_weights and not plan.offload_optimizer),
        ("model.lora_rank", 32, not has_adapters),
        ("inference.max_tokens", plan.max_tokens // 2, plan.max_tokens >= 1024),
        smaller_passes,
        ("inference.max_num_seqs", few, plan.backend != "apart" and plan.max_num_seqs > few),
        # What the following save is little, or is saved only if a model is small or has one layer.
        ("training.logits_mib", 16, not 0 < plan.logits_mib <= 16),
        ("model.dtype", "float32", plan.dtype == "bfloat16"),
        ("model.lora_rank", 0, plan.lora_rank == 32),
        ("training.gradient_checkpointing", False, plan.gradient_checkpointing),
    ]


def taken(memory: Memory, number: int) -> Memory | None:
    """Returns the plan with the measure of this number in `measures`; None if it does not apply."""
    name, value, applies = measures(memory)[number]
    return memory.changed({name.partition(".")[2]: value}) if applies else None


def remedy(memory: Memory) -> dict[str, Any]:
    """Returns the first setting with which the plan fits; if none suffices alone, the mildest ones that do together.

    `section.key` → value; empty if nothing makes the plan fit.
    """
    every = range(len(measures(memory)))
    for number in every:
        values, tried = _applied(memory, [number])
        if tried.fits:
            return values
    kept = list(every)
    if not _applied(memory, kept)[1].fits:
        return {}
    for number in reversed(every):
        others = [each for each in kept if each != number]
        if _applied(memory, others)[1].fits:
            kept = others
    return _applied(memory, kept)[0]


def _applied(memory: Memory, numbers: Sequence[int]) -> tuple[dict[str, Any], Memory]:
    """Takes measures in their order until the plan fits; omits those that save nothing."""
    values: dict[str, Any] = {}
    for number in numbers:
        while not memory.fits and (tried := taken(memory, number)) is not None:
            if tried.lack >= memory.lack and tried.kv_room <= memory.kv_room:
                break
            name, value, _ = measures(memory)[number]
            memory, values[name] = tried, value
    return values, memory


# -- auto ------------------------------------------------------------------------------------------------------------


def fitted(plan: Memory, names: Collection[str]) -> Memory:
    """Returns the plan with the mildest measures with which the run fits, and then with the fastest update.

    Changes only the settings in `names` (`section.key`). If nothing fits, returns the plan that exceeds the memory least.
    """
    has_sizes = plan.settings.device == "gpu" and "training.logits_mib" in names
    if has_sizes and (logits := logits_sizes(plan.settings.memory_bytes)):
        plan = plan.changed({"logits_mib": logits[0]})
    numbers = [number for number, (name, *_) in enumerate(measures(plan)) if name in names]
    plan = _mildest(_shared(plan, names), numbers, names)
    return fastest_update(plan, names) if plan.fits else plan


def _mildest(plan: Memory, numbers: Sequence[int], names: Collection[str]) -> Memory:
    """Returns the plan with the mildest of all combinations of measures, which are sorted by their harm, that fits; if there is
    none, the one that lacks least. Tries all, because a measure may save nothing alone, or take memory beside another."""
    if not numbers or plan.fits:
        return plan
    *milder, harshest = numbers
    best = _mildest(plan, milder, names)
    while not best.fits and (changed := taken(plan, harshest)) is not None:
        plan = _shared(changed, names)
        best = min(best, _mildest(plan, milder, names), key=lambda plan: plan.lack)
    return best


def _shared(plan: Memory, names: Collection[str]) -> Memory:
    """Gives vLLM what is free, if its share of the memory is `auto`."""
    if "inference.gpu_memory_utilization" not in names or plan.settings.backend != "vllm":
        return plan
    return plan.changed({"gpu_memory_utilization": share_for_engine(plan)})


def share_for_engine(plan: Memory) -> float:
    """Returns the share of the GPU's memory that is free while vLLM is awake, rounded down to hundredths."""
    stays = sum(plan.states.values()) + plan.engine["weight-sync buckets"]
    return min(LARGEST_SHARE, max(SMALLEST_SHARE, int(100 * (plan.limit - stays) / plan.settings.memory_bytes) / 100))


def fastest_update(plan: Memory, names: Collection[str]) -> Memory:
    """Returns the plan of the fastest update that fits, on a GPU with memory to spare; `plan` if there is none.

    Recomputed layers cost a third more compute, and smaller micro-batches less than this, so layers are recomputed only if no
    size fits without. The engine's memory does not change: its KV cache is not there while the learner works.
    """
    settings = plan.settings
    spare = SPARE * settings.memory_bytes if settings.device == "gpu" else 0.0
    may_change_size = "training.micro_batch_tokens" in names
    sizes = MICRO_BATCH_TOKENS[settings.device] if may_change_size else (settings.micro_batch_tokens,)
    recomputed = settings.gradient_checkpointing
    ways = (False, recomputed) if recomputed and "training.gradient_checkpointing" in names else (recomputed,)
    for is_recomputed, size in product(ways, sizes):
        tried = plan.changed({"gradient_checkpointing": is_recomputed, "micro_batch_tokens": size})
        if tried.totals["learning"] <= tried.limit - spare:
            return tried
    return plan
