"""Chooses the sizes of a run (micro-batches, logits, sequences at once) by the memory of its GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from midthought.config import RecipeConfig
from midthought.plan.activations import logits_sizes
from midthought.plan.engine_choice import share_for_engine
from midthought.plan.memory import Memory
from midthought.plan.update_speed import with_fastest_update

SIZES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("training", "micro_batch_tokens", (4096, 2048, 1024)),
    ("inference", "max_num_seqs", (128, 64, 32, 16, 8)),
    ("training", "logits_mib", (64, 32, 16)),
)
"""Section, key and values of settings that affect only memory and speed, largest first. On a GPU, the first that fits is used;
if the first fits, `plan.update_speed` chooses the micro-batches."""
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
