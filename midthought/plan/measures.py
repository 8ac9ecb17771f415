"""The measures that save memory, least harmful first: `auto` applies them until a run fits, and an error names the first one.

Computes no sizes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from midthought.plan.activations import logits_sizes
from midthought.plan.engine_choice import share_for_engine
from midthought.plan.memory import ENOUGH_SEQUENCES, Memory
from midthought.plan.settings import PlanSettings

Changes = dict[str, Any]
MICRO_BATCH_TOKENS = {"gpu": (16384, 8192, 4096), "cpu": (4096, 2048, 1024)}
"""Values of `training.micro_batch_tokens` with enough memory, fastest first."""
SPARE = 0.1
"""Share of a GPU's memory that must be left beside `headroom`. Without fused kernels, which a run does not use if they fail, the
same passes take up to a fifth more."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A change of settings that saves memory."""

    words: str
    """The change as `section.key=value`, with arguments of the plan in braces."""
    changes: Callable[[Memory], Changes | None]
    """Returns the changed arguments of the plan; None if the measure is already in use or does not apply."""

    @property
    def setting(self) -> str:
        """The changed setting, `section.key`."""
        return self.words.partition("=")[0]


def _if(applies: Callable[[PlanSettings], bool], **changes: Any) -> Callable[[Memory], Changes | None]:
    """Returns fixed changes that apply to some plans."""
    return lambda memory: changes if applies(memory.settings) else None


def _trains_weights_alone(plan: PlanSettings) -> bool:
    """Whether one process trains whole weights; states of adapters are small."""
    trains_weights = not plan.lora_rank or plan.critic == "separate"
    return trains_weights and plan.num_shards == 1 and not plan.is_for_verl


def _offloads_activations(plan: PlanSettings) -> bool:
    may_offload = plan.device == "gpu" and plan.gradient_checkpointing
    return may_offload and not plan.offload_activations and not plan.is_for_verl


def _offloads_reference(plan: PlanSettings) -> bool:
    is_held = plan.reference and not plan.lora_rank and plan.num_shards == 1 and plan.device == "gpu"
    return is_held and not plan.offload_reference


def _offloads_optimizer(plan: PlanSettings) -> bool:
    return plan.device == "gpu" and not plan.offload_optimizer and _trains_weights_alone(plan)


def _blocks(mib: int) -> Callable[[Memory], Changes | None]:
    return _if(lambda plan: not 0 < plan.logits_mib <= mib, logits_mib=mib)


def _smaller_passes(memory: Memory) -> Changes | None:
    """Half as many tokens per micro-batch, at least one episode."""
    plan = memory.settings
    smaller = max(plan.micro_batch_tokens // 2, plan.tokens_of_episode, 1024)
    return {"micro_batch_tokens": smaller} if plan.micro_batch_tokens > smaller else None


def _less_cache(memory: Memory) -> Changes | None:
    if not memory.settings.in_process:
        return None
    share = share_for_engine(memory)
    return {"gpu_memory_utilization": share} if share < memory.settings.gpu_memory_utilization else None


def _fewer_sequences(memory: Memory) -> Changes | None:
    now = memory.num_sequences
    applies = memory.settings.engine == "local" and now > ENOUGH_SEQUENCES
    return {"max_num_seqs": max(ENOUGH_SEQUENCES, now // 2)} if applies else None


def _few_sequences(memory: Memory) -> Changes | None:
    plan, few = memory.settings, ENOUGH_SEQUENCES // 2
    return {"max_num_seqs": few} if (plan.engine == "local" or plan.in_process) and plan.max_num_seqs > few else None


def _shorter(memory: Memory) -> Changes | None:
    plan = memory.settings
    half = plan.response_tokens // 2
    return {"response_tokens": half, "micro_batch_tokens": plan.prompt_tokens + half} if half >= 512 else None


_LOCAL_ENGINE = {"engine": "local", "in_process": False, "engine_sleeps": False, "gpu_memory_utilization": 0.5}
# fmt: off
MEASURES = (
    Measure("training.gradient_checkpointing=true",
            _if(lambda plan: not plan.gradient_checkpointing, gradient_checkpointing=True)),
    Measure("training.logits_mib=64", _blocks(64)),
    Measure("training.micro_batch_tokens={micro_batch_tokens}", _smaller_passes),
    Measure("training.gradient_checkpointing=offload", _if(_offloads_activations, offload_activations=True)),
    Measure("training.offload_reference=true", _if(_offloads_reference, offload_reference=True)),
    Measure("inference.merge_adapters=false",
            lambda memory: {"merge_adapters": False} if memory.merged_adapters else None),
    Measure("inference.max_num_seqs={max_num_seqs}", _fewer_sequences),
    Measure("inference.gpu_memory_utilization={gpu_memory_utilization}", _less_cache),
    Measure("inference.backend=local", _if(lambda plan: plan.in_process, **_LOCAL_ENGINE)),
    Measure("model.critic=shared", _if(lambda plan: plan.critic == "separate", critic="shared")),
    Measure("model.dtype=bfloat16", _if(lambda plan: plan.dtype == "float32", dtype="bfloat16")),
    Measure("training.optimizer=adamw_8bit",
            _if(lambda plan: plan.optimizer == "adamw" and _trains_weights_alone(plan), optimizer="adamw_8bit")),
    Measure("training.offload_optimizer=true", _if(_offloads_optimizer, offload_optimizer=True)),
    Measure("model.lora_rank=32", _if(lambda plan: plan.lora_rank == 0, lora_rank=32)),
    Measure("training.adv_estimator=grpo", _if(lambda plan: plan.critic == "separate", critic="none")),
    Measure("inference.max_tokens={response_tokens}", _shorter),
    Measure("inference.max_num_seqs={max_num_seqs}", _few_sequences),
    # What the following save is little, or is saved only if a model is small or has one layer.
    Measure("training.logits_mib=16", _blocks(16)),
    Measure("model.dtype=float32", _if(lambda plan: plan.dtype == "bfloat16", dtype="float32")),
    Measure("model.lora_rank=0", _if(lambda plan: plan.lora_rank == 32, lora_rank=0)),
    Measure("training.gradient_checkpointing=false",
            _if(lambda plan: plan.gradient_checkpointing, gradient_checkpointing=False)),
)
"""Least harm first; their costs are in docs/scaling.md, "If a run does not fit"."""
# fmt: on


def remedy(memory: Memory) -> dict[str, str]:
    """Returns the first setting with which the plan fits; if none suffices alone, the mildest ones that do together.

    `section.key` → `section.key=value`; empty if nothing makes the plan fit.
    """
    for measure in MEASURES:
        words, tried = _applied(memory, [measure])
        if tried.fits:
            return words
    kept = list(MEASURES)
    if not _applied(memory, kept)[1].fits:
        return {}
    for measure in reversed(MEASURES):
        others = [each for each in kept if each is not measure]
        if _applied(memory, others)[1].fits:
            kept = others
    return _applied(memory, kept)[0]


def _applied(memory: Memory, measures: Sequence[Measure]) -> tuple[dict[str, str], Memory]:
    """Applies measures in their order until the plan fits; omits those that save nothing."""
    words: dict[str, str] = {}
    for measure in measures:
        while not memory.fits and (changes := measure.changes(memory)) is not None:
            tried = memory.changed(changes)
            has_more_room = tried.kv_room > memory.kv_room and not memory.has_enough_sequences
            if tried.excess >= memory.excess and not has_more_room:
                break
            memory = tried
            words[measure.setting] = measure.words.format(**memory.settings.model_dump())
    return words, memory


# -- auto ------------------------------------------------------------------------------------------------------------


def fitted(plan: Memory, names: Collection[str]) -> Memory:
    """Returns the plan with the mildest measures with which the run fits, and then with the fastest update.

    Changes only the settings in `names` (`section.key`). If nothing fits, returns the plan that exceeds the memory least.
    """
    settings = plan.settings
    if settings.is_for_verl:
        return plan
    has_sizes = settings.device == "gpu" and "training.logits_mib" in names
    logits = logits_sizes(settings.memory_bytes) if has_sizes else ()
    measures = [measure for measure in MEASURES if measure.setting in names]
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
    plan = plan.changed(changes)
    if "inference.gpu_memory_utilization" not in names or not plan.settings.in_process:
        return plan
    return plan.changed({"gpu_memory_utilization": share_for_engine(plan)})


def is_enough(plan: Memory) -> bool:
    """Whether the run fits. vLLM in this process also needs a cache for enough sequences."""
    return _lack(plan) == (False, 0)


def _lack(plan: Memory) -> tuple[bool, int]:
    """Returns whether vLLM in this process lacks a cache for enough sequences, and the bytes beyond the limit."""
    return plan.settings.in_process and not plan.has_enough_sequences, plan.excess


def fastest_update(plan: Memory, names: Collection[str]) -> Memory:
    """Returns the plan of the fastest update that fits, on a GPU with memory to spare; `plan` if there is none.

    Recomputed layers cost a third more compute, and smaller micro-batches less than this, so layers are recomputed only if no
    size fits without. The engine's memory does not change: its KV cache is not there while the learner works.
    """
    settings = plan.settings
    on_gpu, recomputed = settings.device == "gpu", settings.gradient_checkpointing
    may_change_size = "training.micro_batch_tokens" in names
    sizes = MICRO_BATCH_TOKENS[settings.device] if may_change_size else (settings.micro_batch_tokens,)
    ways = (False, True) if recomputed and "training.gradient_checkpointing" in names else (recomputed,)
    for is_recomputed, size in product(ways, sizes):
        tried = plan.changed({"gradient_checkpointing": is_recomputed, "micro_batch_tokens": size})
        if tried.totals["learning"] <= tried.limit - on_gpu * SPARE * settings.memory_bytes:
            return tried
    return plan
