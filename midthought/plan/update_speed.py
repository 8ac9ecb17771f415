"""Chooses the fastest update that fits with memory to spare: layers that are not recomputed, larger micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TypeVar

from midthought.config import RecipeConfig
from midthought.plan.memory import Memory

MICRO_BATCH_TOKENS = (16384, 8192, 4096)
"""Values of `training.micro_batch_tokens` on a GPU with enough memory, fastest first."""
SPARE = 0.1
"""Share of a GPU's memory that must be left beside `headroom`. Without fused kernels, which a run does not use if they fail, the
same passes take up to a fifth more."""
AnyConfig = TypeVar("AnyConfig", bound=RecipeConfig)


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
