"""Tiny models and hand-made episodes for the learner's tests: nothing is downloaded."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from one_thread import one_thread  # noqa: F401
from tiny_config import VOCABULARY, tiny_config

from midthought.learning.batch import TokenBatch
from midthought.types import Completion, Finish, Reward, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory


def build_policy(kind: str = "Qwen3", seed: int = 0, **changes: Any) -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    policy = AutoModelForCausalLM.from_config(tiny_config(kind, **changes)).eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return policy


def build_trajectory(
    seed: int, *, reward: float | None = None, group: int = 0, num_results: int = 5, prompt: Sequence[int] = ()
) -> Trajectory:
    """Prompt, sampled, tool result, sampled; lengths drawn from the seed; log-probabilities of no model at all."""
    draw = random.Random(seed)

    def ids(low: int, high: int) -> list[int]:
        return [draw.randrange(3, VOCABULARY) for _ in range(draw.randint(low, high))]

    def sampled(finish: Finish) -> Completion:
        token_ids = ids(2, 7)
        return Completion(
            token_ids=tuple(token_ids), sampled_logprobs=tuple(-draw.random() for _ in token_ids), finish=finish
        )

    trajectory = Trajectory(Task(task_id=f"t{seed}", prompt="?", answer="!"), prompt or ids(3, 6), group=group)
    trajectory.add_sampled(sampled(Finish.CALL))
    event = ToolEvent(call=ToolCall(tool_name="look", success=True, result="so"), outcome=ToolOutcome.OK)
    trajectory.add_results([event], ids(num_results, num_results))
    trajectory.add_sampled(sampled(Finish.END))
    trajectory.reward = Reward(parts={"right": float(seed % 2) if reward is None else reward})
    return trajectory


@pytest.fixture(scope="module")
def ranks() -> Iterator[Any]:
    """Two learner ranks, whose processes serve all learners of a file, one after another."""
    from process_workers import ProcessWorkers

    workers = ProcessWorkers()
    yield workers
    workers.end()


@pytest.fixture
def batch() -> TokenBatch:
    """Four groups of two episodes."""
    return TokenBatch.from_trajectories([build_trajectory(seed, group=seed // 2) for seed in range(8)])


@pytest.fixture
def make_policy() -> Callable[..., Any]:
    return build_policy


@pytest.fixture
def make_trajectory() -> Callable[..., Trajectory]:
    return build_trajectory
