"""The PPO loop on one page: roll out, score, credit, update, validate, keep. Knows no engine, no tool and no task by name."""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from midthought.learning.batch import PPOBatch
from midthought.learning.learner import Learner
from midthought.types import RolloutData, StopReason, Task, Trajectory


class RolloutSource(Protocol):
    """Where trajectories come from: this process, or a cluster."""

    def rollout(self, tasks: Sequence[Task], *, iteration: int, group_size: int) -> RolloutData:
        """One episode per task, scored; every `group_size` in a row are one group."""
        ...

    def update_weights(self) -> None:
        """The learner has changed the policy; sample from the new one from now on."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOPlan:
    """How long to train and on what."""

    num_iters: int
    batch_size: int
    group_size: int
    seed: int
    pad_token_id: int
    critic_warmup_iters: int = 0


OnIteration = Callable[[int, Mapping[str, float], RolloutData], None]


def run_ppo(
    source: RolloutSource,
    learner: Learner,
    tasks: Sequence[Task],
    plan: PPOPlan,
    *,
    start: int,
    on_iteration: OnIteration,
) -> None:
    """Iterations `start` to `plan.num_iters`; `on_iteration(iterations done, metrics, data)` after each.

    What an iteration does follows from the seed, its number and the learner's state alone, so a run that is resumed
    from a checkpoint goes on as if it had never stopped.
    """
    for iteration in range(start, plan.num_iters):
        began = time.perf_counter()
        data = source.rollout(draw_tasks(tasks, plan, iteration), iteration=iteration, group_size=plan.group_size)
        usable = [trajectory for trajectory in data.trajectories if trajectory.reward is not None]
        metrics = {**rollout_metrics(data.trajectories), "time/rollout_seconds": data.seconds}
        if usable:
            batch = PPOBatch.from_trajectories(usable, pad_token_id=plan.pad_token_id)
            metrics |= improve(learner, batch, critic_only=iteration < plan.critic_warmup_iters)
            metrics["batch/num_unscored_tokens"] = batch.num_unscored
            source.update_weights()
        seconds = time.perf_counter() - began
        metrics["time/seconds"] = seconds
        metrics["time/tokens_per_second"] = sum(len(t.token_ids) for t in data.trajectories) / seconds
        on_iteration(iteration + 1, metrics, data)


def improve(learner: Learner, batch: PPOBatch, *, critic_only: bool = False) -> dict[str, float]:
    """Score, credit, update: one iteration's learning."""
    batch, health = learner.score(batch)
    batch, credit = learner.credit(batch)
    return {**health, **credit, **learner.update(batch, critic_only=critic_only)}


def draw_tasks(tasks: Sequence[Task], plan: PPOPlan, iteration: int) -> list[Task]:
    """The tasks of an iteration: pass after pass over all of them, each pass in an order of its own; groups in a row."""
    num_groups = plan.batch_size // plan.group_size
    drawn: list[Task] = []
    for position in range(iteration * num_groups, (iteration + 1) * num_groups):
        epoch, index = divmod(position, len(tasks))
        drawn += [tasks[_order(len(tasks), plan.seed, epoch)[index]]] * plan.group_size
    return drawn


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means over the episodes: reward and its parts, calls, lengths, how they ended. Failed episodes count in the shares."""
    judged = [trajectory for trajectory in trajectories if trajectory.reward is not None]
    totals = [trajectory.reward.total for trajectory in judged if trajectory.reward]
    mean = sum(totals) / len(totals) if totals else math.nan
    metrics = {
        "reward/mean": mean,
        "reward/std": math.sqrt(sum((total - mean) ** 2 for total in totals) / len(totals)) if totals else math.nan,
    }
    names = list(judged[0].reward.parts) if judged and judged[0].reward else []
    for name in names:
        metrics[f"reward/{name}"] = sum(t.reward.parts[name] for t in judged if t.reward) / len(judged)
    count = len(trajectories)
    metrics["episode/calls"] = sum(trajectory.num_calls for trajectory in trajectories) / count
    metrics["episode/policy_tokens"] = sum(trajectory.num_sampled for trajectory in trajectories) / count
    metrics["episode/response_tokens"] = sum(trajectory.num_response for trajectory in trajectories) / count
    for reason in (StopReason.ANSWERED, StopReason.LENGTH, StopReason.FAILED):
        metrics[f"episode/{reason.value}"] = sum(t.stop_reason is reason for t in trajectories) / count
    return metrics


@functools.lru_cache(maxsize=2)
def _order(num_tasks: int, seed: int, epoch: int) -> list[int]:
    return random.Random(f"tasks-{seed}-{epoch}").sample(range(num_tasks), num_tasks)
