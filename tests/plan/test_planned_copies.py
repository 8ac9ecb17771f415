"""Copies of weights that the local engine makes, against what tensors are allocated."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from benchmarks.plan import make_policy
from benchmarks.plan import memory_of as plan_of
from midthought.engines.local.runner_selection import make_runner
from midthought.learning.model import add_adapters
from midthought.plan.memory import Memory

SIZE = "hidden_size=256 num_layers=4 num_heads=8 num_kv_heads=4 head_dim=32 intermediate_size=768 vocab_size=4000"
TABLE_OF_TURNS = 1024 * 2 * 32
"""Numbers of the sines and cosines that the engine keeps, not planned."""


def memory_of(*words: str) -> Memory:
    return plan_of(SIZE, "device=cpu", *words)


def model_of(memory: Memory) -> Any:
    policy = make_policy(memory.shape, getattr(torch, memory.dtype))
    return add_adapters(policy, memory.lora_rank, 16) if memory.lora_rank else policy


def alive_bytes() -> int:
    """Bytes of all tensors that Python can reach, without those that a compiler keeps in place of real ones."""
    gc.collect()
    plain = (torch.Tensor, torch.nn.Parameter)
    tensors = [each for each in gc.get_objects() if type(each) in plain and not each.is_meta]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


@pytest.mark.parametrize(
    ("dtype", "lora_rank"),
    [
        ("float32", 0),
        ("bfloat16", 8),
        pytest.param("bfloat16", 0, marks=pytest.mark.slow),
        pytest.param("float32", 8, marks=pytest.mark.slow),
    ],
)
def test_the_engines_copies_have_the_planned_size(dtype, lora_rank):
    memory = memory_of(f"dtype={dtype}", f"lora_rank={lora_rank}")
    model = model_of(memory)
    with torch.no_grad():
        before = alive_bytes()
        runner = make_runner(model.get_base_model() if lora_rank else model)
        copied = alive_bytes() - before - runner.cache.num_bytes - memory.width * TABLE_OF_TURNS
    assert memory.copied_weights > 0
    assert memory.copied_weights == pytest.approx(copied, rel=0.01)
