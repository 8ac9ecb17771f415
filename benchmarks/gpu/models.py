"""Random models in real shapes, random prompts, and what an engine or a learner is given of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.gpu.findings import Report
from benchmarks.gpu.machine import Machine
from benchmarks.plan import make_policy
from midthought.config import TrainingConfig
from midthought.engines.engine import Sampling
from midthought.engines.local.engine import LocalEngine
from midthought.engines.local.runner_selection import Deviation, float32_logprobs
from midthought.models.peft_weights import base_of
from midthought.plan.measures import LOGITS_MIB
from midthought.plan.shape import MODEL_CONFIGS, Shape
from midthought.types import Completion, Finish, Reward, Task, Trajectory

SHAPES = {size: Shape.from_config(MODEL_CONFIGS[f"Qwen/Qwen3-{size}"]) for size in ("0.6B", "1.7B", "4B", "8B")} | {
    "tiny": Shape(
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        intermediate_size=128,
        vocab_size=512,
        is_tied=True,
        qk_norm=True,
    )
}
WIDTHS = {torch.bfloat16: 2, torch.float32: 4}
LOGIT_DEVIATION = 3.0
"""Standard deviation of the logits over the vocabulary: that of a fresh model is below 1, which hides rounding errors."""
MIN_DEVIATION = 0.64
"""Of what a layer's maps give for a normalized input. Fresh models of a width of 1,024 or more have it."""
GROUP_SIZE = 4


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def make_model(machine: Machine, name: str, dtype: torch.dtype) -> Any:
    """A Qwen3 on the device, with random weights drawn there. Its layers say more than its embedding: with tied weights a
    model would otherwise repeat the last token."""
    torch.manual_seed(0)
    shape = SHAPES[name]
    with torch.device(machine.device):
        model = make_policy(shape, dtype)
    deviation = model.config.initializer_range * shape.hidden_size**0.5
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            if parameter.dim() == 2:
                parameter.mul_(max(1.0, MIN_DEVIATION / deviation))
        model.model.norm.weight.fill_(LOGIT_DEVIATION / deviation)
    return model


def has_room(machine: Machine, name: str, bytes_per_parameter: float) -> bool:
    """Whether so many bytes per parameter fit, and 2 GiB beside them."""
    needed = bytes_per_parameter * SHAPES[name].parameters + (2 << 30)
    return needed <= machine.free_bytes


def is_left_out(
    machine: Machine, report: Report, setting: str, name: str, *, bytes_per_parameter: float = 0.0, seconds: float
) -> bool:
    """Reports a part of a check as left out if the model does not fit or the time is short. `seconds`: that it takes with a
    model of 10^9 parameters; half of that does not depend on the size."""
    if not has_room(machine, name, bytes_per_parameter):
        report.left_out(setting, "the model does not fit into the free memory")
    elif not machine.has_time(seconds * (0.5 + 0.5 * SHAPES[name].parameters / 1e9)):
        report.left_out(setting, "no time is left")
    else:
        return False
    return True


def random_prompts(shape: Shape, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [draw.choices(range(shape.vocab_size), k=length) for length in lengths]


def make_engine(
    model: Any, num_seqs: int, length: int, *, cuda_graphs: bool = True, async_scheduling: bool | None = None
) -> LocalEngine:
    """Nothing ends a sequence, so every one samples as many tokens as were asked for; nothing is shared among prompts."""
    return LocalEngine(
        model,
        eos_token_ids=(),
        max_num_seqs=num_seqs,
        max_seq_len=length,
        share_prefixes=False,
        cuda_graphs=cuda_graphs,
        async_scheduling=async_scheduling,
    )


def complete(
    engine: LocalEngine, prompts: Sequence[Sequence[int]], num_tokens: int, *, temperature: float = 1.0
) -> list[Completion]:
    """All prompts at once, `num_tokens` each."""

    async def one(episode: int, prompt: Sequence[int]) -> Completion:
        sampling = Sampling(max_tokens=num_tokens, temperature=temperature, seed=episode)
        engine.open(episode)
        try:
            return await engine.sample(episode, prompt, sampling)
        finally:
            engine.close(episode)

    async def all_of_them() -> list[Completion]:
        return await asyncio.gather(*(one(episode, prompt) for episode, prompt in enumerate(prompts)))

    return asyncio.run(all_of_them())


def made_up_completions(shape: Shape, lengths: Sequence[int]) -> list[Completion]:
    """Of random tokens that no model sampled."""
    return [
        Completion(token_ids=tuple(ids), sampled_logprobs=(-10.0,) * len(ids), finish=Finish.END)
        for ids in random_prompts(shape, lengths, seed=1)
    ]


@torch.no_grad()
def own_error(policy: Any, sequences: Sequence[Sequence[int]]) -> Deviation:
    """Of the model's own forward pass against float32, over all positions: what rounding makes unavoidable."""
    model = base_of(policy)
    found: list[torch.Tensor] = []
    for ids in sequences:
        found += model(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False).logits[0]
    return Deviation.of(found, [each for logprobs in float32_logprobs(model, sequences) for each in logprobs])


def own_error_of_random_prompts(model: Any, shape: Shape) -> Deviation:
    return own_error(model, random_prompts(shape, (16, 16, 16), seed=3))


def grpo_settings(num_episodes: int, **changes: Any) -> TrainingConfig:
    """One optimizer step of GRPO on so many episodes, without other terms than the policy loss. Logits are computed in blocks of
    the size that a run chooses for a GPU."""
    return TrainingConfig(
        adv_estimator="grpo",
        warmup_steps=0,
        mini_batch_size=num_episodes,
        **{"learning_rate": 1e-5, "gradient_checkpointing": True, "logits_mib": LOGITS_MIB["gpu"], **changes},
    )


def make_episodes(prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> list[Trajectory]:
    """Groups of `GROUP_SIZE`, whose rewards differ."""
    episodes = []
    for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        task = Task(task_id=str(number), prompt="?", answer="!")
        trajectory = Trajectory(task, list(prompt), group=number // GROUP_SIZE)
        trajectory.add_sampled(completion)
        trajectory.reward = Reward(parts={"right": float(number % 2)})
        episodes.append(trajectory)
    return episodes
