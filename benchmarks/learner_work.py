"""Work for learners: episodes of the recipe, and random ones whose lengths have a long tail, each with a model."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.reciter import SIZES, STYLES, make_model, make_tokenizer
from midthought.learning.batch import TokenBatch, boundaries
from midthought.learning.model import PPOBatch
from midthought.recipes.podcast.demonstrations import Demonstrator, make_small_policy
from midthought.recipes.podcast.settings import PodcastConfig
from midthought.recipes.podcast.tasks import prepare_data, read_recipe_transcripts
from midthought.tokenization import Renderer
from midthought.types import Completion, Finish, Reward, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory

GROUP_SIZE = 4
LONG_TAIL = (5.2, 0.8)
"""Of an episode's tokens after the prompt: mean and deviation of the logarithm, so half are below 180, one in 20 above 680."""


@dataclass(frozen=True)
class LearnerWork:
    """One optimizer step's episodes, and the model that learns from them."""

    name: str
    model: Any
    tokenizer: Any
    trajectories: list[Trajectory]

    def batch(self) -> TokenBatch:
        return TokenBatch.from_trajectories(self.trajectories)

    def describe(self) -> str:
        batch = self.batch()
        return (
            f"{self.name}, {len(batch)} episodes of {int(batch.lengths.min())} to {int(batch.lengths.max())} tokens, "
            f"{batch.num_tokens:,} in all, padded {padded_ratio(batch):.2f} times as many"
        )


def extended_rows(batch: TokenBatch) -> TokenBatch:
    """The same rows as most trainers split them: each as long as the longest, so that micro-batches keep their order."""
    padded, lengths = PPOBatch(batch), torch.full_like(batch.lengths, int(batch.lengths.max()))
    values = [(field.name, getattr(padded, field.name)) for field in fields(batch)]
    of_tokens = {name: value.flatten() for name, value in values if isinstance(value, Tensor) and value.dim() == 2}
    return batch.with_fields(**of_tokens, cu_seqlens=boundaries(lengths))


def padded_ratio(batch: TokenBatch) -> float:
    """Padded over real tokens."""
    return len(batch) * int(batch.lengths.max()) / batch.num_tokens


def recipe_work(num_episodes: int) -> LearnerWork:
    """The podcast recipe's small model, episodes like those of its first rollouts, and random rewards."""
    config = PodcastConfig()
    with tempfile.TemporaryDirectory(prefix="bench-learner-") as folder:
        data = prepare_data(config, read_recipe_transcripts(config), Path(folder))
    policy, tokenizer = make_small_policy(config, data.chunks["train"])
    demonstrator = Demonstrator(
        chunks=data.chunks["train"],
        renderer=Renderer(tokenizer),
        plan=data.plan,
        settings=config.warmup,
        num_results=config.memory.k,
        max_result_tokens=config.inference.max_result_tokens,
    )
    draw = random.Random(0)
    parts = [_parts(demonstrator.write(draw)) for _ in range(num_episodes)]
    return LearnerWork("podcast recipe", policy, tokenizer, _episodes(parts, draw))


def long_tailed_work(size: str, num_episodes: int) -> LearnerWork:
    """Prompts of 60 tokens, then spans of 20 to 60 sampled tokens and results of 30 to 190 in turn, ids by chance."""
    draw = random.Random(0)
    tokenizer = make_tokenizer(STYLES["hermes"].template)
    episodes = []
    for _ in range(num_episodes):
        left = min(1500, max(20, round(draw.lognormvariate(*LONG_TAIL))))
        parts = [(False, 60)]
        while left > 0:
            length = min(left, draw.randint(30, 190) if parts[-1][0] else draw.randint(20, 60))
            parts.append((not parts[-1][0], length))
            left -= length
        if not parts[-1][0]:
            parts.append((True, 10))
        episodes.append([(is_sampled, draw.choices(range(300, 900), k=length)) for is_sampled, length in parts])
    model = make_model(SIZES[size], tokenizer, 8192)
    return LearnerWork(f"{size}, long tail", model, tokenizer, _episodes(episodes, draw))


def grouped_work(size: str, num_prompt: int, group_size: int, num_sampled: int = 128) -> LearnerWork:
    """One group: a prompt, and samples of equal length, ids by chance."""
    draw = random.Random(0)
    tokenizer = make_tokenizer(STYLES["hermes"].template)
    prompt = draw.choices(range(300, 900), k=num_prompt)
    sampled = [draw.choices(range(300, 900), k=num_sampled) for _ in range(group_size)]
    episodes = _episodes([[(False, prompt), (True, each)] for each in sampled], draw)
    for episode in episodes:
        episode.group = 0
    model = make_model(SIZES[size], tokenizer, 8192)
    return LearnerWork(f"{size}, {group_size} samples of {num_sampled} tokens", model, tokenizer, episodes)


def _parts(demonstration: Trajectory) -> list[tuple[bool, list[int]]]:
    """(sampled?, token ids) of the prompt and all that follows."""
    segment = demonstration.segments[0]
    parts: list[tuple[bool, list[int]]] = []
    for token_id, is_sampled in zip(segment.token_ids, segment.loss_mask, strict=True):
        if not parts or parts[-1][0] != is_sampled:
            parts.append((is_sampled, []))
        parts[-1][1].append(token_id)
    return parts


def _episodes(episodes: Sequence[Sequence[tuple[bool, list[int]]]], draw: random.Random) -> list[Trajectory]:
    made = []
    for number, ((_, prompt_ids), *parts) in enumerate(episodes):
        trajectory = Trajectory(
            Task(task_id=str(number), prompt="?", answer="!"), prompt_ids, group=number // GROUP_SIZE
        )
        for is_sampled, token_ids in parts:
            if is_sampled:
                logprobs = (-1.0,) * len(token_ids)
                trajectory.add_sampled(
                    Completion(token_ids=tuple(token_ids), sampled_logprobs=logprobs, finish=Finish.CALL)
                )
            else:
                call = ToolCall(tool_name="look", success=True, result="")
                trajectory.add_results([ToolEvent(call=call, outcome=ToolOutcome.OK)], token_ids)
        trajectory.reward = Reward(parts={"right": float(number % GROUP_SIZE == 0 or draw.random() < 0.3)})
        made.append(trajectory)
    return made
