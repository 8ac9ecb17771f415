"""The README's training program runs as written, with a tiny model in place of the real one, and its reward rises."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from midthought import Task, ToolRegistry, Trainer, Trajectory, find_call_format
from midthought.config import create_default_config
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.small_model import make_policy, make_tokenizer
from midthought.pretrained import save_model
from midthought.tokenization import Renderer
from midthought.trainer.rollouts import PromptBuilder
from midthought.types import ToolCall, ToolEvent, ToolOutcome

README = Path(__file__).parents[2] / "README.md"
NUM_WARM_UP_STEPS = 120


def program() -> str:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.DOTALL)
    assert len(blocks) == 1
    return blocks[0]


@pytest.mark.slow
def test_the_readme_program_runs_and_its_reward_rises(tmp_path, monkeypatch):
    trainer = run(program(), tmp_path, monkeypatch)
    rewards = [metrics["reward/mean"] for metrics in trainer.metrics_history]
    assert len(rewards) == trainer.config.training.num_train_iters
    first, last = sum(rewards[:8]) / 8, sum(rewards[-8:]) / 8
    assert last > first + 0.05, rewards  # measured: 0.28 to 0.47


def test_the_readme_program_runs_and_saves_its_model(tmp_path, monkeypatch):
    shorter, num_places = re.subn("num_train_iters=.*,", "num_train_iters=2,", program())
    assert num_places == 1
    monkeypatch.setattr(f"{__name__}.NUM_WARM_UP_STEPS", 1)
    trainer = run(shorter, tmp_path, monkeypatch)
    assert [metrics["iteration"] for metrics in trainer.metrics_history] == [1, 2]
    assert (tmp_path / "multiply-model" / "config.json").exists()


def run(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """Runs the README's program in a folder, with a tiny model under the name of the real one."""
    monkeypatch.chdir(folder)
    before_training, _, training = code.partition("trainer = ")
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(before_training, "README.md", "exec"), names)
    (model,) = re.findall(r'model="(.*?)"', training)
    save_undecided_model(Path(model), names["problems"], names["multiply"])
    exec(compile(f"trainer = {training}", "README.md", "exec"), names)
    return names["trainer"]


def save_undecided_model(folder: Path, problems: list[dict[str, str]], multiply: Any) -> None:
    """Save a model that either calls the tool and answers correctly, or answers 0 at once, each about half of the time."""
    prompts = PromptBuilder("", ToolRegistry([multiply]), find_call_format("in_thought"))
    calls = [write_call(prompts, row)[0] + write_call(prompts, row)[2] for row in problems]
    tokenizer = make_tokenizer([*(row["question"] for row in problems), *calls, prompts.instructions()], 800)
    renderer = Renderer(tokenizer)
    policy = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=1024, seed=0)
    settings = create_default_config(preset="tiny", training={"learning_rate": 3e-3, "warmup_steps": 0})
    learner = Learner(policy, None, None, settings.training)
    draw = random.Random(0)
    for _ in range(NUM_WARM_UP_STEPS):
        rows = draw.sample(problems, 8)
        demonstrations = [
            demonstration(renderer, prompts, row, uses_tool=each) for row in rows for each in (True, False)
        ]
        learner.sft_step(TokenBatch.from_trajectories(demonstrations, demonstrations=True))
    save_model(policy, tokenizer, folder)


def write_call(prompts: PromptBuilder, row: dict[str, str]) -> tuple[str, ToolEvent, str]:
    """The call of a problem, its event, and the result as the model reads it."""
    a, b = re.findall(r"\d+", row["question"])
    arguments = {"a": int(a), "b": int(b)}
    done = ToolCall(tool_name="multiply", parameters=arguments, success=True, result=row["answer"])
    event = ToolEvent(call=done, outcome=ToolOutcome.OK)
    return prompts.call_format.render_call("multiply", arguments), event, prompts.call_format.render_results([event])


def demonstration(renderer: Renderer, prompts: PromptBuilder, row: dict[str, str], *, uses_tool: bool) -> Trajectory:
    task = Task(task_id="demonstration", prompt=row["question"], answer=row["answer"])
    trajectory = Trajectory(task, renderer.prompt(prompts.messages(task)))
    if uses_tool:
        call, event, result = write_call(prompts, row)
        trajectory.add_demonstrated(renderer.control(call))
        trajectory.add_results([event], renderer.foreign(result))
        trajectory.add_demonstrated(renderer.control(f"</think>{row['answer']}<|im_end|>"))
    else:
        trajectory.add_demonstrated(renderer.control("I guess.</think>0<|im_end|>"))
    return trajectory
