"""What a plan foresees is what a learner takes, for a small model in every way that it can be trained."""

from __future__ import annotations

import pytest

from benchmarks.memory import STATUS
from benchmarks.plan import QUICK_SIZE, TOLERANCE, WAYS, memory_of, planned_bytes, take

(SIZE,) = QUICK_SIZE.values()
MORE_WAYS = {
    "block by block": "dtype=float32 logits_mib=4",
    "padded, tied, without norms of queries": "dtype=float32 packing=false tie_embeddings=true qk_norm=false",
    "in bfloat16 with float32 masters": "dtype=bfloat16",
    "in bfloat16 with LoRA": "dtype=bfloat16 lora_rank=8",
    "with a critic, layers computed again": "dtype=float32 critic=separate gradient_checkpointing=true",
    "one pass a step": "dtype=float32 mini_batch_size=1",
}
LONG = (
    "plain",
    "with LoRA",
    "with LoRA and gradient checkpointing",
    "with gradient checkpointing",
    "block by block",
    "one pass a step",
    "in bfloat16 with LoRA",
    "in bfloat16 with float32 masters",
    "with a critic, layers computed again",
)


@pytest.mark.skipif(not STATUS.exists(), reason="measured under Linux")
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.slow) if way in LONG else way for way in (*WAYS, *MORE_WAYS)]
)
def test_planned_memory_is_what_a_learner_takes(way):
    plan = memory_of(SIZE, {**WAYS, **MORE_WAYS}[way])
    assert planned_bytes(plan) == pytest.approx(take(plan).allocated, rel=TOLERANCE)
