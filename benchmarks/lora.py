"""Part `lora`: sampling with LoRA adapters against sampling without, and bfloat16 against float32."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from benchmarks.options import Options
from benchmarks.reciter import Reciter
from benchmarks.systems import OurSampling
from benchmarks.table import Row
from benchmarks.timing import System, compare
from benchmarks.work import Shape, Work
from midthought.engines.local.engine import LocalEngine

PART = "lora"
RANK = 16


def measure(options: Options) -> Iterator[Row]:
    shape = Shape(num_episodes=4, num_prompt=40, num_span=12, num_result=24) if options.quick else Shape()
    for size in options.sizes:
        yield from sampling(options, size, shape)


def sampling(options: Options, size: str, shape: Shape) -> Iterator[Row]:
    """One model, sampled without adapters, with them in two ways, and in bfloat16."""
    reciter = options.reciter(size, num_span=shape.num_span)
    half = replace(options, dtype=torch.bfloat16).reciter(size, num_span=shape.num_span)
    adapted = with_adapters(reciter.model)
    systems: dict[str, System] = {
        "without": OurSampling(reciter, engine_of(reciter, reciter.model, shape)),
        "merged": OurSampling(reciter, engine_of(reciter, adapted, shape)),
        "beside the weights": OurSampling(reciter, engine_of(reciter, adapted, shape, merge_adapters=False)),
        "bfloat16": OurSampling(half, engine_of(half, half.model, shape)),
    }
    timings = compare(systems, lambda _, seed: Work(reciter, shape, seed), options.num_rounds)
    for figure, system, at_least in (
        ("tokens/s with merged adapters against without", "merged", 0.95),
        ("tokens/s with adapters beside the weights against without", "beside the weights", None),
        ("tokens/s in bfloat16 against float32", "bfloat16", None),
    ):
        yield Row(
            part=PART,
            setting=f"{shape.describe(size)}, rank {RANK}",
            figure=figure,
            value=timings.ratio("without", system),
            at_least=at_least,
            seconds=timings.medians("without", system),
        )


def engine_of(reciter: Reciter, model: Any, shape: Shape, *, merge_adapters: bool = True) -> LocalEngine:
    return LocalEngine(
        model,
        eos_token_ids=reciter.renderer.eos_token_ids,
        max_num_seqs=max(128, shape.num_episodes),
        max_seq_len=shape.length + 1,
        merge_adapters=merge_adapters,
    )


def with_adapters(model: Any) -> Any:
    """The same model with adapters on all linear layers but the output layer, which change nothing: it still recites."""
    import peft

    config = peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules="all-linear")
    return peft.get_peft_model(copy.deepcopy(model), config).eval()
