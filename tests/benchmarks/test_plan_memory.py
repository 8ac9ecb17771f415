"""A learner takes at most what a plan foresees, for a small model in every way that it can be trained."""

import pytest

from benchmarks.memory import STATUS
from benchmarks.plan import LEAST, QUICK_SIZE, WAYS, memory_of, take

(SIZE,) = QUICK_SIZE.values()
MORE_WAYS = {
    "block by block": "dtype=float32 logits_mib=4",
    "tied, without norms of queries": "dtype=float32 tie_embeddings=true qk_norm=false",
    "in bfloat16 with float32 masters": "dtype=bfloat16",
    "in bfloat16 with LoRA": "dtype=bfloat16 lora_rank=8",
    "with a critic, layers computed again": "dtype=float32 critic=separate gradient_checkpointing=true",
}
LONG = (
    "plain",
    "with LoRA",
    "with LoRA and gradient checkpointing",
    "with gradient checkpointing",
    "block by block",
    "in bfloat16 with LoRA",
    "in bfloat16 with float32 masters",
    "with a critic, layers computed again",
)


@pytest.mark.skipif(not STATUS.exists(), reason="measured under Linux")
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.slow) if way in LONG else way for way in (*WAYS, *MORE_WAYS)]
)
def test_a_learner_takes_at_most_the_planned_memory(way):
    plan = memory_of(SIZE, {**WAYS, **MORE_WAYS}[way])
    taken = take(plan).allocated
    assert LEAST * taken <= plan.learner <= 1.6 * taken
