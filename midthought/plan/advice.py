"""Measures that save memory, least harmful first, and the settings with which a plan fits. Computes no sizes itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from midthought.errors import SettingsError
from midthought.plan.engine_choice import share_for_engine
from midthought.plan.memory import ENOUGH_SEQUENCES, Memory
from midthought.plan.settings import PlanSettings

Changes = dict[str, Any]
SERVER_FLAGS = {
    "vllm": ("--gpu-memory-utilization", "--tensor-parallel-size"),
    "sglang": ("--mem-fraction-static", "--tp-size"),
}


@dataclass(frozen=True, slots=True)
class Measure:
    """A change of settings that saves memory."""

    settings: str
    """The change as settings of a run, with arguments of the plan and of `_engine_words` in braces."""
    changes: Callable[[Memory], Changes | None]
    """Returns the changed arguments of the plan; None if the measure is already in use or does not apply."""

    @property
    def setting(self) -> str:
        """The changed setting, `section.key`."""
        return self.settings.partition("=")[0]


def _swap(key: str, before: Any, after: Any) -> Callable[[Memory], Changes | None]:
    """Returns the change of one argument of the plan, which applies if its value is `before`."""
    return lambda memory: {key: after} if getattr(memory.settings, key) == before else None


def _offload_activations(memory: Memory) -> Changes | None:
    plan = memory.settings
    applies = plan.gradient_checkpointing and not plan.offload_activations and not plan.is_for_verl
    return {"offload_activations": True} if applies else None


def _moments_of_8_bits(memory: Memory) -> Changes | None:
    plan = memory.settings
    return {"optimizer": "adamw_8bit"} if plan.optimizer == "adamw" and _trains_weights_alone(plan) else None


def _offload_optimizer(memory: Memory) -> Changes | None:
    plan = memory.settings
    return {"offload_optimizer": True} if not plan.offload_optimizer and _trains_weights_alone(plan) else None


def _trains_weights_alone(plan: PlanSettings) -> bool:
    """Whether one process trains whole weights; states of adapters are small."""
    trains_weights = not plan.lora_rank or plan.critic == "separate"
    return trains_weights and plan.num_shards == 1 and not plan.is_for_verl


def _blocks(mib: int) -> Callable[[Memory], Changes | None]:
    return lambda memory: None if 0 < memory.settings.logits_mib <= mib else {"logits_mib": mib}


def _smaller_passes(memory: Memory) -> Changes | None:
    """Half as many tokens per micro-batch, at least one episode."""
    plan = memory.settings
    smaller = max(plan.micro_batch_tokens // 2, plan.tokens_of_episode, 1024)
    return {"micro_batch_tokens": smaller} if plan.micro_batch_tokens > smaller else None


def _sleep(memory: Memory) -> Changes | None:
    plan = memory.settings
    if plan.is_split or plan.engine == "local" or plan.engine_sleeps:
        return None
    return {"engine_sleeps": True, "offload": True}


def _less_cache(memory: Memory) -> Changes | None:
    plan = memory.settings
    if plan.in_process:
        share = share_for_engine(memory)
        return {"gpu_memory_utilization": share} if share < plan.gpu_memory_utilization else None
    stays = not plan.is_split and not plan.engine_sleeps and plan.engine != "local"
    is_large = stays and plan.gpu_memory_utilization > 0.3
    return {"gpu_memory_utilization": 0.3} if is_large else None


def _fewer_sequences(memory: Memory) -> Changes | None:
    now = memory.num_sequences
    applies = memory.settings.engine == "local" and now > ENOUGH_SEQUENCES
    return {"max_num_seqs": max(ENOUGH_SEQUENCES, now // 2)} if applies else None


def _few_sequences(memory: Memory) -> Changes | None:
    plan, few = memory.settings, ENOUGH_SEQUENCES // 2
    return {"max_num_seqs": few} if (plan.engine == "local" or plan.in_process) and plan.max_num_seqs > few else None


def _whole_cache(memory: Memory) -> Changes | None:
    plan = memory.settings
    has_room = plan.is_split or plan.engine_sleeps
    return {"gpu_memory_utilization": 0.85} if has_room and plan.gpu_memory_utilization != 0.85 else None


def _tensor_parallel(memory: Memory) -> Changes | None:
    plan = memory.settings
    more = 2 * plan.tensor_parallel
    possible = plan.engine != "local" and more <= min(plan.gpus_per_node, plan.sampling_gpus)
    return {"tensor_parallel": more} if possible and plan.sampling_gpus % more == 0 else None


def _offload_reference(memory: Memory) -> Changes | None:
    plan = memory.settings
    apart = plan.reference and not plan.lora_rank and not plan.offload_reference and plan.num_shards == 1
    return {"offload_reference": True} if apart else None


def _adapters_apart(memory: Memory) -> Changes | None:
    return {"merge_adapters": False} if memory.merged_adapters else None


def _shorter(memory: Memory) -> Changes | None:
    plan = memory.settings
    half = plan.response_tokens // 2
    return {"response_tokens": half, "micro_batch_tokens": plan.prompt_tokens + half} if half >= 512 else None


def _more_gpus(memory: Memory) -> Changes | None:
    plan = memory.settings
    if plan.gpus >= 1024:
        return None
    return {
        "gpus": 2 * plan.gpus,
        "shard": 2 * plan.num_shards,
        "engine_gpus": plan.engine_gpus and 2 * plan.engine_gpus,
    }


def _local_engine(memory: Memory) -> Changes | None:
    changes = {"engine": "local", "in_process": False, "engine_sleeps": False, "gpu_memory_utilization": 0.5}
    return changes if memory.settings.in_process else None


_OFFLOAD_REFERENCE = Measure("training.offload_reference=true", _offload_reference)
_OFFLOAD_ACTIVATIONS = Measure("training.gradient_checkpointing=offload", _offload_activations)
_OFFLOAD_OPTIMIZER = Measure("training.offload_optimizer=true", _offload_optimizer)
_MORE_GPUS = Measure(
    "verl.num_nodes, verl.gpus_per_node, or ray.num_learners and ray.num_actors: {gpus} GPUs", _more_gpus
)
MEASURES = (
    Measure("training.gradient_checkpointing=true", _swap("gradient_checkpointing", False, True)),
    Measure("training.logits_mib=64", _blocks(64)),
    Measure("training.micro_batch_tokens={micro_batch_tokens}", _smaller_passes),
    _OFFLOAD_ACTIVATIONS,
    _OFFLOAD_REFERENCE,
    Measure("inference.merge_adapters=false", _adapters_apart),
    Measure("inference.max_num_seqs={max_num_seqs}", _fewer_sequences),
    Measure("{share}", _less_cache),
    Measure("--engine verl verl.offload=true (its engine sleeps while it learns)", _sleep),
    Measure("{share}", _whole_cache),
    Measure("inference.backend=local", _local_engine),
    Measure("{together}", _tensor_parallel),
    Measure("model.critic=shared", _swap("critic", "separate", "shared")),
    Measure("model.dtype=bfloat16", _swap("dtype", "float32", "bfloat16")),
    Measure("training.optimizer=adamw_8bit", _moments_of_8_bits),
    _OFFLOAD_OPTIMIZER,
    Measure("model.lora_rank=32", _swap("lora_rank", 0, 32)),
    Measure("training.adv_estimator=grpo", _swap("critic", "separate", "none")),
    Measure("inference.max_tokens={response_tokens}", _shorter),
    Measure("inference.max_num_seqs={max_num_seqs}", _few_sequences),
    _MORE_GPUS,
)
"""Least harm first; their costs are in docs/scaling.md, "If a run does not fit"."""
_OF_SMALL_MODELS = (
    Measure("training.logits_mib=16", _blocks(16)),
    Measure("model.dtype=float32", _swap("dtype", "bfloat16", "float32")),
    Measure("model.lora_rank=0", _swap("lora_rank", 32, 0)),
    Measure("training.gradient_checkpointing=false", _swap("gradient_checkpointing", True, False)),
)
"""What they save is little, or is saved only if a model is small or has one layer."""
ON_ONE_GPU = (*(measure for measure in MEASURES if measure is not _MORE_GPUS), *_OF_SMALL_MODELS)
_TO_CPU_MEMORY = (_OFFLOAD_REFERENCE, _OFFLOAD_ACTIVATIONS, _OFFLOAD_OPTIMIZER)
ON_ONE_CPU = tuple(measure for measure in ON_ONE_GPU if measure not in _TO_CPU_MEMORY)
"""On a CPU everything is in its memory in any case."""


def remedy(memory: Memory, measures: Sequence[Measure] = MEASURES) -> tuple[dict[str, str], Memory]:
    """Returns the first setting with which the plan fits; if none suffices alone, the mildest ones that do together.

    The keys are what `Measure.setting` returns. The second value is the plan with these settings. If it does not fit, nothing
    does.
    """
    for measure in measures:
        words, tried = applied(memory, [measure])
        if tried.fits:
            return words, tried
    kept = list(measures)
    for measure in reversed(measures):
        others = [each for each in kept if each is not measure]
        if applied(memory, others)[1].fits:
            kept = others
    return applied(memory, kept)


def applied(memory: Memory, measures: Sequence[Measure] = MEASURES) -> tuple[dict[str, str], Memory]:
    """Applies measures in their order until the plan fits; omits those that save nothing. Returns as `remedy` does."""
    words: dict[str, str] = {}
    for measure in measures:
        while not memory.fits and (changes := measure.changes(memory)) is not None:
            tried = _tried(memory, {**memory.settings.model_dump(), **changes})
            if tried is None or not _helps(tried, memory):
                break
            memory = tried
            words[measure.setting] = measure.settings.format(
                **memory.settings.model_dump(), **_engine_words(memory.settings)
            )
    return words, memory


def _engine_words(plan: PlanSettings) -> dict[str, str]:
    """Returns the engine's memory share and tensor parallelism as settings: verl's if it sleeps, else server flags."""
    share, together = plan.gpu_memory_utilization, plan.tensor_parallel
    if plan.in_process:
        return {"share": f"inference.gpu_memory_utilization={share}", "together": ""}
    if plan.engine_sleeps:
        return {"share": f"verl.gpu_memory_utilization={share}", "together": f"verl.tensor_parallel={together}"}
    of_share, of_together = SERVER_FLAGS.get(plan.engine, SERVER_FLAGS["vllm"])
    return {
        "share": f'inference.server_flags=[{of_share}, "{share}"]',
        "together": f'inference.server_flags=[{of_together}, "{together}"]',
    }


def _tried(memory: Memory, values: Changes) -> Memory | None:
    try:
        return Memory(memory.shape, PlanSettings(**values))
    except SettingsError:
        return None


def _helps(tried: Memory, memory: Memory) -> bool:
    """Whether memory is reduced if it is exceeded, or more sequences fit if there are too few."""
    more_room = tried.kv_room * tried.settings.tensor_parallel > memory.kv_room * memory.settings.tensor_parallel
    return excess(tried) < excess(memory) or (more_room and not memory.has_enough_sequences)


def excess(memory: Memory) -> int:
    """Returns the bytes that all phases need beyond the limit."""
    return sum(max(0, total - memory.limit) for total in memory.totals.values())
