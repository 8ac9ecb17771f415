"""GRPO with a tool call in the thought, all of it on one page: what `Trainer.fit` does, without its settings, checks and files.

python examples/grpo_one_file.py               # a small model that begins with random weights; CPU, about a minute

The questions ask for words that only the tool knows. Half of the demonstrations call it, the others guess; then the reward
alone teaches the policy to call. To change the algorithm, change `credit` or `loss_of`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from midthought import Task, Trajectory, compute_grpo_advantage, compute_policy_loss, tool
from midthought.config import InferenceConfig
from midthought.engines.local.engine import LocalEngine
from midthought.env.episode import QuestionEnvironment
from midthought.env.rewards import combine_rewards, correct
from midthought.learning.batch import TokenBatch
from midthought.learning.forward import ModelInputs, policy_forward
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.rollout.demonstration import demonstration
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry

NUM_GROUPS, GROUP_SIZE, MINI_BATCH = 8, 8, 32
CLIP, GRADIENT_NORM = 0.2, 1.0
CODES = {
    "door": "apple", "boat": "river", "lamp": "stone", "coat": "candle",
    "bell": "winter", "wall": "garden", "ship": "silver", "tree": "pepper",
    "king": "button", "farm": "castle", "lake": "meadow", "moon": "rocket",
    "bird": "ladder", "road": "violin", "book": "marble", "ring": "basket",
}  # fmt: skip


@tool
def code_of(thing: str) -> str:
    """Returns the code word of a thing."""
    return CODES[thing]


def make_tasks() -> list[Task]:
    return [
        Task(task_id=thing, prompt=f'What is the code word of "{thing}"?', answer=code) for thing, code in CODES.items()
    ]


def shown(task: Task, draw: random.Random) -> list[dict]:
    """Messages of a demonstration: it calls the tool, or guesses."""
    if draw.random() < 0.5:
        return [{"role": "assistant", "content": draw.choice([*CODES.values()])}]
    call = {"function": {"name": "code_of", "arguments": {"thing": task.task_id}}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": task.answer},
        {"role": "assistant", "content": task.answer},
    ]


# -- one iteration: rollout, credit, loss, step ------------------------------------------------------------------------


def rollout(parts: RolloutParts, tasks: Sequence[Task], seed: int) -> list[Trajectory]:
    """Plays `GROUP_SIZE` episodes of each task, all at once."""
    starts = [
        EpisodeStart(task=task, group=group, seed=seed * 1_000_003 + group * GROUP_SIZE + number)
        for group, task in enumerate(tasks)
        for number in range(GROUP_SIZE)
    ]
    return asyncio.run(run_episodes(parts, starts))


def credit(batch: TokenBatch) -> Tensor:
    """Returns the advantage of each token, [N]: the group's standardized reward at every policy token of the episode."""
    rewards, mask = batch.by_episode(batch.rewards), batch.by_episode(batch.loss_mask)
    advantages, _ = compute_grpo_advantage(rewards, mask, batch.of_episodes(batch.groups))
    return batch.by_token(advantages)


def logprobs_of(policy: torch.nn.Module, batch: TokenBatch) -> Tensor:
    """Returns the log-probabilities of the policy tokens, [N] of `batch.loss_mask`. Results of tools are read, not scored."""
    outputs, _ = policy_forward(policy, ModelInputs.of(batch))
    return outputs.logprobs


def loss_of(policy: torch.nn.Module, mini: TokenBatch) -> Tensor:
    """Returns PPO's clipped loss, averaged over the policy tokens."""
    mask = mini.loss_mask
    assert mini.old_logprobs is not None and mini.advantages is not None
    loss, _ = compute_policy_loss(
        mini.old_logprobs[mask],
        logprobs_of(policy, mini),
        mini.advantages[mask],
        torch.ones(int(mask.sum()), dtype=torch.bool),
        clip_ratio=CLIP,
    )
    return loss


def train_step(
    policy: torch.nn.Module, optimizer: torch.optim.Optimizer, episodes: Sequence[Trajectory], seed: int
) -> list[tuple[float, float]]:
    """Learns from one rollout. Returns the loss and the norm of the gradient of each optimizer step."""
    batch = TokenBatch.from_trajectories(episodes)
    old = torch.zeros(batch.num_tokens)
    with torch.no_grad():
        old[batch.loss_mask] = logprobs_of(policy, batch)
    batch = batch.with_fields(old_logprobs=old, advantages=credit(batch))
    taken = []
    for mini in batch.mini_batches(MINI_BATCH, torch.Generator().manual_seed(seed)):
        optimizer.zero_grad()
        loss = loss_of(policy, mini)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), GRADIENT_NORM)
        optimizer.step()
        taken.append((float(loss.detach()), float(norm)))
    return taken


# -- the program -------------------------------------------------------------------------------------------------------


def supervise(policy: torch.nn.Module, records: Sequence[Trajectory], num_steps: int, seed: int) -> None:
    """Minimizes the cross-entropy of what the demonstrations show the policy to write."""
    optimizer, draw = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0.0), random.Random(seed)
    for _ in range(num_steps):
        batch = TokenBatch.from_trajectories(draw.sample(records, 16), demonstrations=True)
        optimizer.zero_grad()
        (-logprobs_of(policy, batch).mean()).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), GRADIENT_NORM)
        optimizer.step()


def main(arguments: Sequence[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--sft-steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    draw, tasks = random.Random(options.seed), make_tasks()

    registry, call_format = ToolRegistry([code_of]), InThoughtFormat()
    texts = [
        f'{task.prompt}\n{task.answer}\n#call code_of {{"thing": "{task.task_id}"}}\n#code_of_result:' for task in tasks
    ]
    tokenizer = make_tokenizer(texts, vocab_size=420)
    policy = make_policy(
        tokenizer, hidden_size=128, num_layers=2, num_heads=2, max_length=512, seed=options.seed
    ).eval()
    renderer = Renderer(tokenizer)
    engine = LocalEngine(policy, eos_token_ids=renderer.eos_token_ids, max_num_seqs=64, max_seq_len=512)
    parts = RolloutParts(
        engine=engine,
        renderer=renderer,
        call_format=call_format,
        executor=ToolExecutor(registry),
        messages=lambda task: task.messages("", ""),
        environment=lambda task: QuestionEnvironment(combine_rewards([correct])),
        inference=InferenceConfig(max_tokens=64),
    )

    records = [
        demonstration(task, [*task.messages("", ""), *shown(task, draw)], renderer, call_format)
        for task in tasks
        for _ in range(10)
    ]
    supervise(policy, records, options.sft_steps, options.seed)
    engine.update_weights()

    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4, weight_decay=0.0)
    history = []
    for iteration in range(options.iterations):
        episodes = rollout(parts, draw.sample(tasks, NUM_GROUPS), seed=options.seed + iteration)
        steps = train_step(policy, optimizer, episodes, seed=iteration)
        engine.update_weights()
        rewards = [episode.reward.total for episode in episodes if episode.reward is not None]
        calls = sum(len(episode.tool_events) for episode in episodes) / len(episodes)
        history.append(sum(rewards) / len(rewards))
        print(f"iteration {iteration + 1}: mean reward {history[-1]:.2f}, calls {calls:.2f}, loss {steps[0][0]:+.3f}")
    engine.shutdown()
    return history


if __name__ == "__main__":
    main()
