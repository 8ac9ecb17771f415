"""The measures that save memory, least harmful first: `auto` applies them until a run fits, and an error names the first one.

Computes no sizes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
Change = Callable[[Memory], Any]
"""Returns the new value of a setting; None if the measure is already in use or does not apply."""


def _trains_weights(memory: Memory) -> bool:
    """Whether whole weights learn; the optimizer's states of adapters are small."""
    return not memory.settings.lora_rank or memory.settings.critic == "separate"


def _on_gpu(memory: Memory) -> bool:
    return memory.settings.device == "gpu"


def _when(key: str, value: Any, applies: Callable[[Memory], Any] = lambda memory: True) -> Change:
    """Returns a change to `value`, from another one, if it applies."""
    return lambda memory: value if getattr(memory.settings, key) != value and applies(memory) else None


def _smaller_passes(memory: Memory) -> int | None:
    """Half as many tokens per micro-batch, at least one episode."""
    plan = memory.settings
    smaller = max(plan.micro_batch_tokens // 2, plan.tokens_of_episode, 1024)
    return smaller if plan.micro_batch_tokens > smaller else None


def _fewer_sequences(memory: Memory) -> int | None:
    now = memory.num_sequences
    return max(ENOUGH_SEQUENCES, now // 2) if memory.settings.backend == "local" and now > ENOUGH_SEQUENCES else None


def _few_sequences(memory: Memory) -> int | None:
    few = ENOUGH_SEQUENCES // 2
    return few if memory.settings.backend != "apart" and memory.settings.max_num_seqs > few else None


def _less_cache(memory: Memory) -> float | None:
    share = share_for_engine(memory)
    is_less = share < memory.settings.gpu_memory_utilization
    return share if memory.settings.backend == "vllm" and is_less else None


def _shorter(memory: Memory) -> int | None:
    half = memory.settings.max_tokens // 2
    return half if half >= 512 else None


def _blocks(mib: int) -> Change:
    return _when("logits_mib", mib, lambda memory: not 0 < memory.settings.logits_mib < mib)


# fmt: off
MEASURES: tuple[tuple[str, Change], ...] = (
    ("training.gradient_checkpointing",
     _when("gradient_checkpointing", True, lambda memory: not memory.settings.gradient_checkpointing)),
    ("training.logits_mib", _blocks(64)),
    ("training.micro_batch_tokens", _smaller_passes),
    ("training.gradient_checkpointing",
     _when("gradient_checkpointing", "offload", lambda memory: _on_gpu(memory) and memory.settings.gradient_checkpointing)),
    ("training.offload_reference", _when("offload_reference", True, lambda memory: _on_gpu(memory) and memory.reference)),
    ("inference.merge_adapters",
     _when("merge_adapters", False, lambda memory: memory.settings.lora_rank and memory.copied_weights)),
    ("inference.max_num_seqs", _fewer_sequences),
    ("inference.gpu_memory_utilization", _less_cache),
    ("inference.backend", _when("backend", "local", lambda memory: memory.settings.backend == "vllm")),
    ("model.critic", _when("critic", "shared", lambda memory: memory.settings.critic == "separate")),
    ("model.dtype", _when("dtype", "bfloat16")),
    ("training.optimizer", _when("optimizer", "adamw_8bit", _trains_weights)),
    ("training.offload_optimizer",
     _when("offload_optimizer", True, lambda memory: _on_gpu(memory) and _trains_weights(memory))),
    ("model.lora_rank", _when("lora_rank", 32, lambda memory: not memory.settings.lora_rank)),
    ("inference.max_tokens", _shorter),
    ("training.micro_batch_tokens", _smaller_passes),
    ("inference.max_num_seqs", _few_sequences),
    # What the following save is little, or is saved only if a model is small or has one layer.
    ("training.logits_mib", _blocks(16)),
    ("model.dtype", _when("dtype", "float32")),
    ("model.lora_rank", _when("lora_rank", 0, lambda memory: memory.settings.lora_rank == 32)),
    ("training.gradient_checkpointing", _when("gradient_checkpointing", False)),
)
"""Settings and their changes, least harm first; their costs are in docs/scaling.md, "If a run does not fit"."""
# fmt: on
Measure = tuple[str, Change]


def _changed(memory: Memory, measure: Measure) -> Memory | None:
    name, change = measure
    value = change(memory)
    return None if value is None else memory.changed({name.partition(".")[2]: value})


def remedy(memory: Memory) -> dict[str, Any]:
    """Returns the first setting with which the plan fits; if none suffices alone, the mildest ones that do together.

    `section.key` → value; empty if nothing makes the plan fit.
    """
    for measure in MEASURES:
        values, tried = _applied(memory, [measure])
        if tried.fits:
            return values
    kept = list(MEASURES)
    if not _applied(memory, kept)[1].fits:
        return {}
    for measure in reversed(MEASURES):
        others = [each for each in kept if each is not measure]
        if _applied(memory, others)[1].fits:
            kept = others
    return _applied(memory, kept)[0]


def _applied(memory: Memory, measures: Sequence[Measure]) -> tuple[dict[str, Any], Memory]:
    """Applies measures in their order until the plan fits; omits those that save nothing."""
    values: dict[str, Any] = {}
    for measure in measures:
        while not memory.fits and (tried := _changed(memory, measure)) is not None:
            if tried.lack >= memory.lack and tried.kv_room <= memory.kv_room:
                break
            memory = tried
            values[measure[0]] = getattr(memory.settings, measure[0].partition(".")[2])
    return values, memory


# -- auto ------------------------------------------------------------------------------------------------------------


def fitted(plan: Memory, names: Collection[str]) -> Memory:
    """Returns the plan with the mildest measures with which the run fits, and then with the fastest update.

    Changes only the settings in `names` (`section.key`). If nothing fits, returns the plan that exceeds the memory least.
    """
    has_sizes = plan.settings.device == "gpu" and "training.logits_mib" in names
    if has_sizes and (logits := logits_sizes(plan.settings.memory_bytes)):
        plan = plan.changed({"logits_mib": logits[0]})
    plan = _mildest(_shared(plan, names), [measure for measure in MEASURES if measure[0] in names], names)
    return fastest_update(plan, names) if plan.fits else plan


def _mildest(plan: Memory, measures: Sequence[Measure], names: Collection[str]) -> Memory:
    """Returns the plan with the mildest of all combinations of measures, which are sorted by their harm, that fits; if there is
    none, the one that lacks least. Tries all, because a measure may save nothing alone, or take memory beside another."""
    if not measures or plan.fits:
        return plan
    *milder, harshest = measures
    best = _mildest(plan, milder, names)
    while not best.fits and (changed := _changed(plan, harshest)) is not None:
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
