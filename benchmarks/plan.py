"""Part `plan`: memory that a plan predicts against what a learner takes, for three sizes and several settings.

Each learner runs one iteration in a separate process: scoring, advantages, and two optimizer steps of several micro-batches,
so that moments and gradients exist when the later ones compute. Its memory is the peak over all allocations and releases of
PyTorch's allocator, as the profiler records them: models, batch and temporary tensors inside of operations, like
`torch.cuda.max_memory_allocated` on a GPU. The rise of resident memory is also reported; it includes pages that the C library
keeps for later use. CPU and Linux only.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.memory import STATUS
from benchmarks.options import Options
from benchmarks.table import Row
from benchmarks.timing import Spread
from midthought.config import parse_assignments
from midthought.plan.memory import Memory
from midthought.plan.shape import Shape, find_shape

PART = "plan"
LEAST = 0.98
"""Planned bytes as a multiple of those taken: a plan is an upper bound."""
WORK = "device=cpu prompt_tokens=128 max_tokens=384 micro_batch_tokens=512 batch_size=4"
SIZES = {
    "38 M": "hidden_size=384 num_layers=8 num_heads=6 num_kv_heads=2 head_dim=64 intermediate_size=1152 vocab_size=32000",
    "57 M": "hidden_size=512 num_layers=10 num_heads=8 num_kv_heads=4 head_dim=64 intermediate_size=1536 vocab_size=50000 "
    "tie_embeddings=true",
    "159 M": "hidden_size=768 num_layers=12 num_heads=12 num_kv_heads=4 head_dim=64 intermediate_size=2304 vocab_size=50000",
}
SHARED = "num_sharing=8 prompt_tokens=400 max_tokens=64 micro_batch_tokens=1319 batch_size=16"
WAYS = {
    "plain": "dtype=float32",
    "with gradient checkpointing": "dtype=float32 gradient_checkpointing=true",
    "with LoRA": "dtype=float32 lora_rank=16",
    "with LoRA and gradient checkpointing": "dtype=float32 lora_rank=16 gradient_checkpointing=true",
    "with a critic and a reference": "dtype=float32 critic=separate reference=true",
    "with a shared prompt": f"dtype=float32 {SHARED}",
}
"""bfloat16 is left to the tests' small model: this is a CPU."""
SIZE_KEYS = {field.name for field in fields(Shape)}
SMALLEST = "hidden_size=32 num_layers=1 num_heads=2 vocab_size=100 dtype=float32"
QUICK_SIZE = {
    "1 M": "hidden_size=64 num_layers=4 num_heads=2 num_kv_heads=1 head_dim=32 intermediate_size=192 vocab_size=4000"
}


@dataclass(frozen=True, slots=True)
class Taken:
    """What a learner took at most, in bytes."""

    allocated: int
    resident: int


TRAINING = {
    "optimizer": "adamw",
    "offload": "none",
    "gradient_checkpointing": False,
    "logits_mib": 64,
    "micro_batch_tokens": 16_384,
    "batch_size": 256,
}
"""Settings of `training` that the words do not name."""


def measure(options: Options) -> Iterator[Row]:
    if options.device != "cpu" or not STATUS.exists():
        print("plan: left out, it is measured on the CPU under Linux", file=sys.stderr)
        return
    sizes, ways = (QUICK_SIZE, ("plain", "with LoRA")) if options.quick else (SIZES, tuple(WAYS))
    for size, words in sizes.items():
        for way in ways:
            plan = memory_of(words, WAYS[way])
            taken = take_apart(plan)
            setting = (
                f"{size} parameters {way}, passes of {plan.micro_batch_tokens} tokens: planned {_mib(plan.learner)}"
            )
            yield Row(
                part=PART,
                setting=f"{setting}, taken {_mib(taken.allocated)}, resident {_mib(taken.resident)}",
                figure="planned memory, a multiple of what was taken",
                value=Spread.of([plan.learner / taken.allocated]),
                at_least=LEAST,
            )


def memory_of(*words: str) -> Memory:
    """The plan of a model (`model=FOLDER`, or its sizes) and settings, as words."""
    given = parse_assignments(" ".join((WORK, *words)).split())
    if "model" in given:
        return Memory(shape=find_shape(given.pop("model")), **{**TRAINING, **given})
    sizes = {key: given.pop(key) for key in [*given] if key in SIZE_KEYS}
    hidden, heads = sizes["hidden_size"], sizes["num_heads"]
    made = {"num_kv_heads": heads, "head_dim": hidden // heads, "intermediate_size": 3 * hidden, "qk_norm": True}
    shape = Shape(is_tied=given.pop("tie_embeddings", False), **{**made, **sizes})
    return Memory(shape=shape, **{**TRAINING, **given})


def take_apart(plan: Memory) -> Taken:
    """`take` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(take, plan).result()


def take(plan: Memory) -> Taken:
    """Run an iteration of the learner that the plan describes."""
    torch.manual_seed(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        iterate(memory_of(SMALLEST))  # what libraries load and keep is not the learner's
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        iterate(plan)
        resident = _status("VmHWM") - before
    return Taken(allocated=_peak(profiler), resident=resident)


def iterate(plan: Memory, device: str | torch.device = "cpu") -> dict[str, float]:
    """One iteration of the learner that the plan describes, with a new model; returns the update's metrics."""
    from midthought.config import TrainingConfig
    from midthought.learning.batch import TokenBatch
    from midthought.learning.learner import Learner
    from midthought.learning.model import Critic, add_adapters, frozen_copy

    shape = plan.shape
    with torch.device(device):
        policy = make_policy(shape, getattr(torch, plan.dtype))
    critic = {"none": None, "separate": Critic.separate, "shared": Critic.shared}[plan.critic]
    made = critic(policy) if critic else None
    reference = frozen_copy(policy) if plan.reference and not plan.lora_rank else None
    if plan.lora_rank:
        policy = add_adapters(policy, plan.lora_rank, 16)
        reference = policy if plan.reference else None
    learner = Learner(
        policy,
        made,
        reference,
        TrainingConfig(
            learning_rate=1e-5,
            warmup_steps=0,
            adv_estimator="gae" if made is not None else "grpo",
            mini_batch_size=plan.batch_size,
            ppo_epochs=2,
            micro_batch_tokens=plan.micro_batch_tokens,
            packing="shared" if plan.num_sharing > 1 else True,
            logits_mib=plan.logits_mib,
            gradient_checkpointing=plan.gradient_checkpointing,
            offload=plan.offload,
            kl_coef=0.01 if reference is not None else 0.0,
            entropy_coef=0.01,
        ),
    )
    batch = TokenBatch.from_trajectories(make_trajectories(plan))
    batch, _ = learner.score(batch)
    batch, _ = learner.credit(batch)
    return learner.update(batch)


def make_policy(shape: Shape, dtype: torch.dtype) -> Any:
    """A model of this shape with random weights: a Qwen3, or a Llama if queries are not normalized."""
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

    config = (Qwen3Config if shape.qk_norm else LlamaConfig)(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.is_tied,
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def make_trajectories(plan: Memory) -> Sequence[Any]:
    """Episodes of the planned lengths, tokens drawn at random; a group has one prompt, and its rewards differ."""
    from midthought.types import Completion, Finish, Reward, Task, Trajectory

    draw = random.Random(0)

    def ids(number: int) -> list[int]:
        return [draw.randrange(3, plan.shape.vocab_size) for _ in range(number)]

    size, found = max(2, plan.num_sharing), []
    prompts = [ids(plan.prompt_tokens) for _ in range(0, plan.batch_size, size)]
    for number in range(plan.batch_size):
        group = number // size
        trajectory = Trajectory(Task(task_id=f"t{number}", prompt="?", answer="!"), prompts[group], group=group)
        sampled = tuple(-10.0 for _ in range(plan.max_tokens))
        said = Completion(token_ids=tuple(ids(len(sampled))), sampled_logprobs=sampled, finish=Finish.END)
        trajectory.add_sampled(said)
        trajectory.reward = Reward(parts={"right": float(number % 2)})
        found.append(trajectory)
    return found


def peak_bytes(work: Callable[[], object]) -> int:
    """Returns the most bytes that `work` allocates at once on the CPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    return _peak(profiler)


def _peak(profiler: torch.profiler.profile) -> int:
    """Most bytes that were allocated at once."""
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak


def _status(name: str) -> int:
    line = next(line for line in STATUS.read_text("utf-8").splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"
