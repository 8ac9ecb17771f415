"""Chooses the sizes of a run by the memory of its GPU: micro-batches, logits, sequences at once, recomputed layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeVar

from midthought.config import RecipeConfig
from midthought.plan.activations import logits_sizes
from midthought.plan.engine_choice import share_for_engine
from midthought.plan.memory import Memory

SIZES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("training", "micro_batch_tokens", (4096, 2048, 1024)),
    ("inference", "max_num_seqs", (128, 64, 32, 16, 8)),
    ("training", "logits_mib", (64, 32, 16)),
)
"""Section, key and values of settings that affect only memory and speed, largest first. On a GPU, the first that fits is used;
if the first fits, `with_fastest_update` chooses the micro-batches."""
MICRO_BATCH_TOKENS = (16384, 8192, 4096)
"""Values of `training.micro_batch_tokens` on a GPU with enough memory, fastest first."""
SPARE = 0.1
"""Share of a GPU's memory that must be left beside `headroom`. Without fused kernels, which a run does not use if they fail, the
same passes take up to a fifth more."""
AnyConfig = TypeVar("AnyConfig", bound=RecipeConfig)


def largest_sizes(
    config: RecipeConfig, settled: AnyConfig, planned: Callable[[AnyConfig], Memory], on_gpu: bool
) -> tuple[AnyConfig, Memory]:
    """Makes the sizes that are `auto` in `config` smaller until the run fits, and gives the engine what is free. If the first
    sizes fit, chooses the fastest update. Without a GPU, `settled` stays. `planned` returns the plan of settled settings.

    A size stays if a smaller one does not help, because another phase is too large.
    """
    plan = _with_share(settled, planned(settled))
    if not on_gpu:
        return settled, plan
    logits = logits_sizes(plan.settings.machine.memory_bytes)
    if logits and config.training.logits_mib == "auto":
        settled = settled.merged({"training": {"logits_mib": logits[0]}})
        plan = _with_share(settled, planned(settled))
    for section, key, sizes in (("training", "logits_mib", logits), *SIZES):
        for size in sizes[1:] if getattr(getattr(config, section), key) == "auto" else ():
            if is_enough(plan):
                break
            smaller = settled.merged({section: {key: size}})
            tried = _with_share(smaller, planned(smaller))
            if _excess(tried) < _excess(plan) or tried.settings.in_process:
                settled, plan = smaller, tried
    return with_fastest_update(config, settled, plan) if is_enough(plan) else (settled, plan)


def _with_share(settled: RecipeConfig, plan: Memory) -> Memory:
    """Returns the plan, in which the engine's share of the memory is what is free if it is `auto`."""
    is_open = settled.inference.gpu_memory_utilization == "auto"
    if not is_open or not plan.settings.in_process:
        return plan
    return Memory(plan.shape, plan.settings.model_copy(update={"gpu_memory_utilization": share_for_engine(plan)}))


def is_enough(plan: Memory) -> bool:
    """Whether the run fits. vLLM in this process also needs a cache for enough sequences."""
    return most_bytes(plan) <= plan.limit and (not plan.settings.in_process or plan.has_enough_sequences)


def _excess(plan: Memory) -> int:
    """Returns the bytes that all phases need beyond the limit."""
    return sum(max(0, total - plan.limit) for total in plan.totals.values())


def most_bytes(plan: Memory) -> int:
    """Returns the bytes that the largest phase needs."""
    return max(plan.totals.values())


def fastest_update(plan: Memory, *, may_keep_layers: bool = True, sizes: Sequence[int] = MICRO_BATCH_TOKENS) -> Memory:
    """Returns the plan of the fastest update that fits with memory to spare; `plan` if there is none.

    Recomputed layers cost a third more compute, and smaller micro-batches less than this, so layers are recomputed only if no
    size fits without. The engine's memory does not change: its KV cache is not there while the learner works.

    Args:
        may_keep_layers: layers that `plan` recomputes may be kept instead.
        sizes: allowed values of `micro_batch_tokens`, fastest first.
    """
    recomputed = plan.settings.gradient_checkpointing
    ways = (False, True) if may_keep_layers and recomputed else (recomputed,)
    for is_recomputed, size in product(ways, sizes):
        changes = {"gradient_checkpointing": is_recomputed, "micro_batch_tokens": size}
        tried = Memory(plan.shape, plan.settings.model_copy(update=changes))
        if tried.totals["learning"] <= tried.limit - SPARE * tried.settings.machine.memory_bytes:
            return tried
    return plan


def with_fastest_update(config: RecipeConfig, settled: AnyConfig, plan: Memory) -> tuple[AnyConfig, Memory]:
    """Returns settings and plan with the fastest update.

    Changes only `training.gradient_checkpointing` and `training.micro_batch_tokens`, and only if they are `auto` in `config`.
    """
    keys = ("gradient_checkpointing", "micro_batch_tokens")
    layers_are_open, size_is_open = (getattr(config.training, key) == "auto" for key in keys)
    if plan.settings.is_for_verl or not (layers_are_open or size_is_open):
        return settled, plan
    sizes = MICRO_BATCH_TOKENS if size_is_open else (plan.settings.micro_batch_tokens,)
    plan = fastest_update(plan, may_keep_layers=layers_are_open, sizes=sizes)
    changes = {key: getattr(plan.settings, key) for key in keys if getattr(config.training, key) == "auto"}
    return settled.merged({"training": changes}), plan
