"""What the trainer's tests train on: a policy that was taught to answer in one word, a tool, worlds easy, hostile and slow."""

import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from midthought import BaseEnvironment, Reward, Task, Trainer, TrainerCallback, Trajectory, create_default_config, tool
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.models.small_model import make_policy
from midthought.tokenization import Renderer
from midthought.tools.parsers import find_call_format
from midthought.tools.registry import ToolRegistry
from midthought.trainer.sources import PromptBuilder

COLOURS = ("red", "blue", "green")
PAID = {"red": 1.0, "blue": 0.25}
QUESTIONS = [{"question": f"Say a colour, {place}.", "answer": "red"} for place in ("first", "second", "third")]


class Colours(BaseEnvironment):
    """Two turns; each pays by the colour that was said."""

    def reset(self, seed: int = 0) -> str:
        self.num_turns = 0
        return QUESTIONS[seed % 3]["question"]

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        self.num_turns += 1
        return "Again.", PAID.get(action, 0.0), self.num_turns == 2, {"success": action == "red"}


class AsyncColours(Colours):
    async def reset(self, seed: int = 0) -> str:
        return Colours.reset(self, seed)

    async def step(self, action: str) -> tuple[str, float, bool, dict]:
        return Colours.step(self, action)


class Raising(Colours):
    def step(self, action: str) -> tuple[str, float, bool, dict]:
        raise RuntimeError("the world broke")


class Hanging(Colours):
    def step(self, action: str) -> tuple[str, float, bool, dict]:
        time.sleep(0.3)
        return super().step(action)


class OnStep(TrainerCallback):
    """Calls `act(trainer)` once after each of these iterations, when it is logged and not yet validated and saved."""

    def __init__(self, act: Callable[[Trainer], object], *iterations: int) -> None:
        self._act, self._left = act, list(iterations)

    def on_step(self, trainer: Trainer, metrics: Any) -> None:
        if trainer.iteration in self._left:
            self._left.remove(trainer.iteration)
            self._act(trainer)


def power_cut(trainer: Trainer) -> None:
    raise RuntimeError("power cut")


@tool
def twice(word: str) -> str:
    """Says it twice.

    Args:
        word: what to say
    """
    return f"{word} {word}"


def settings(estimator: str = "gae", *, max_tokens: int = 40, **training: Any) -> Any:
    defaults = {"batch_size": 4, "mini_batch_size": 4, "num_train_iters": 2, "validate_every": 0}
    defaults |= {"num_validation_questions": 3, "learning_rate": 1e-3}
    defaults |= {"group_size": 4} if estimator.startswith("grpo") else {}
    return create_default_config(
        model={"hidden_size": 64, "num_layers": 2, "vocab_size": 400},
        inference={"max_tokens": max_tokens, "deterministic": True},
        training={"adv_estimator": estimator, **defaults, **training},
    )


def taught(renderer: Renderer, episodes: list[Trajectory], num_steps: int = 60) -> Any:
    policy = make_policy(renderer.tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=512, seed=0)
    training = create_default_config(preset="tiny", training={"learning_rate": 3e-3, "warmup_steps": 0}).training
    learner = Learner(policy, None, None, training)
    batch = TokenBatch.from_trajectories(episodes, demonstrations=True)
    for _ in range(num_steps):
        learner.sft_step(batch)
    return policy


def weights(trainer: Trainer) -> torch.Tensor:
    """A copy of all weights of the policy, flat."""
    return torch.cat([parameter.detach().flatten().clone() for parameter in trainer.model.parameters()])


def lines(file: Path) -> list[dict[str, Any]]:
    """The records of a JSONL file."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def numbered(episodes: Iterable[Trajectory]) -> list[Trajectory]:
    """Gives the episodes the rewards 0, 1, …"""
    given = list(episodes)
    for number, trajectory in enumerate(given):
        trajectory.reward = Reward(parts={"mine": float(number)})
    return given


def without_clocks(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of metrics without times."""
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


def demonstration(
    renderer: Renderer, prompts: PromptBuilder, row: dict[str, Any], *parts: list[int] | str
) -> Trajectory:
    """An episode of a row: texts are what the policy writes, ids are context that it reads."""
    task = Task(task_id="t", prompt=row["question"], answer="red")
    trajectory = Trajectory(task, renderer.prompt(prompts.messages(task)))
    for part in parts:
        if isinstance(part, str):
            trajectory.add_demonstrated(renderer.control(part))
        else:
            trajectory.add_reply(part)
    return trajectory


def make_talker(renderer: Renderer) -> Any:
    """A model that says a colour in every turn."""
    draw = random.Random(0)
    prompts = PromptBuilder("", ToolRegistry(), find_call_format("in_thought"))
    reply = renderer.following([{"role": "user", "content": "Again."}])
    said = [[_said(draw.choice(COLOURS)) for _ in range(2)] for _ in range(12)]
    rows = zip(QUESTIONS * 4, said, strict=True)
    return taught(renderer, [demonstration(renderer, prompts, row, first, reply, last) for row, (first, last) in rows])


def _said(colour: str) -> str:
    return f"</think>{colour}<|im_end|>"


def make_caller(renderer: Renderer, call_format_name: str) -> Any:
    """A model that calls `twice` and then answers, in this call format."""
    call_format = find_call_format(call_format_name)
    prompts = PromptBuilder("", ToolRegistry([twice]), call_format)
    call = call_format.render_call("twice", {"word": "red"})
    if call_format.stops_at_call:
        result = renderer.foreign("\n#twice_result:\nred red\n\n")
    else:
        call = f"</think>{call}<|im_end|>"
        result = renderer.following([{"role": "tool", "content": "red red"}])
    return taught(renderer, [demonstration(renderer, prompts, QUESTIONS[0], call, result, _said("red"))])
