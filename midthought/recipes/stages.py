"""What the stages of a run have in common: each is done once, saved on the way, and gone on with after an interruption.

Knows no task, no tool and no reward; a recipe says what its stages do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midthought.config import CheckpointConfig, ModelConfig, TrainingConfig
from midthought.errors import ModelPathError
from midthought.learning.actor_critic import AnyLearner
from midthought.learning.adapters import add_adapters, has_adapters
from midthought.learning.checkpoint import keep_last, latest, load_checkpoint, save_checkpoint, step_path
from midthought.learning.learner import Learner
from midthought.learning.lr_schedule import TrainingSchedule
from midthought.learning.run_checks import require_finite
from midthought.learning.stopping import StopRequest
from midthought.peft_folders import ADAPTER_CONFIG, merge
from midthought.pretrained import load_model, load_tokenizer, save_model
from midthought.recipes.progress import RunProgress
from midthought.report.run_folder import RunFolder


@dataclass
class Stages:
    """The stages of the run in one folder. `best` is the best validation's score, and its iteration."""

    run: RunFolder
    progress: RunProgress
    checkpoint: CheckpointConfig
    resume: bool
    stop: StopRequest = field(default_factory=StopRequest)
    best: tuple[float, int] = (-1.0, 0)

    def once(self, stage: str, work: Callable[[], dict[str, Any]]) -> None:
        """Do a stage unless an earlier process finished it; lines that it half wrote then are dropped first."""
        if stage in self.progress.done:
            return
        if latest(self.run.checkpoints_path / stage) is None:  # else the checkpoint says how many lines are its own
            self.run.keep_metric_lines(self.progress.num_metric_lines)
            self.run.keep_trajectory_lines(self.progress.num_trajectory_lines)
        try:
            with self.progress.timed(stage):
                figures = work()
        except BaseException:
            self.progress.save()
            raise
        self.progress.finish(stage, figures)
        self.stop.check()

    def note_validation(self, score: float, iteration: int) -> bool:
        """True where the score is the best so far."""
        is_best = score > self.best[0]
        if is_best:
            self.best = score, iteration
        return is_best

    def save(
        self, learner: AnyLearner, tokenizer: Any, stage: str, step: int, more: Mapping[str, Any] | None = None
    ) -> None:
        """A checkpoint of the stage; older ones go, but for the best."""
        folder = self.run.checkpoints_path / stage
        state = {
            "stage": stage,
            "step": step,
            "num_metric_lines": self.run.num_metric_lines,
            "num_trajectory_lines": self.run.num_trajectory_lines,
            "best": self.best,
            **(more or {}),
        }
        save_checkpoint(step_path(folder, step), learner, tokenizer=tokenizer, state=state)
        best = step_path(folder, self.best[1]) if self.checkpoint.keep_best and self.best[1] else None
        keep_last(folder, self.checkpoint.keep_last_n, best)

    def go_on(self, learner: AnyLearner, stage: str) -> tuple[int, dict[str, Any]]:
        """Take the learner to the stage's newest checkpoint, if there is one; the steps it had taken, and all of its state."""
        self.best = (-1.0, 0)
        newest = latest(self.run.checkpoints_path / stage) if self.resume else None
        if newest is None:
            return 0, {}
        checkpoint = load_checkpoint(newest)
        checkpoint.restore(learner)
        self.run.keep_metric_lines(checkpoint.state["num_metric_lines"])
        self.run.keep_trajectory_lines(checkpoint.state["num_trajectory_lines"])
        self.best = tuple(checkpoint.state["best"])
        return int(checkpoint.state["step"]), checkpoint.state

    def export(self, name: str, policy: Any, tokenizer: Any, learner: AnyLearner | None = None) -> None:
        """The policy as a Hugging Face folder in the run folder; adapters that a stage learned become part of it."""
        require_finite(policy, f"{self.run.path / name}")
        if learner is not None and has_adapters(learner.policy):
            merge(learner.policy)
        save_model(policy, tokenizer, self.run.path / name, in_run=True)
        policy.name_or_path = str(self.run.path / name)  # what adapters of the next stage name as their base


def supervised_learner(
    policy: Any,
    model: ModelConfig,
    training: TrainingConfig,
    *,
    learning_rate: float,
    warmup_steps: int,
    num_steps: int,
) -> Learner:
    """A learner for demonstrations, whose learning rate falls to 0 at `num_steps`: no critic, no reference; adapters where
    the settings ask for them."""
    learned = add_adapters(policy, model.adapter_rank, model.lora_alpha) if model.adapter_rank else policy
    own = training.changed(
        learning_rate=learning_rate, warmup_steps=warmup_steps, lr_schedule="linear", min_learning_rate_ratio=0.0
    )
    return Learner(learned, None, None, own.freeze(), TrainingSchedule(total_steps=num_steps))


def load_policy_and_tokenizer(path: str, dtype: str) -> tuple[Any, Any]:
    """A Hugging Face causal LM with its tokenizer. Raises ModelPathError naming the path and the remedy."""
    policy = load_model(path, dtype)
    return policy, load_tokenizer(path)


def find_policy(path: Path, *, before_rl: bool) -> Path:
    """The Hugging Face folder that `--from PATH` means: one itself, a checkpoint's, or a run's.

    Of a run's two policies, the warmed-up one where reinforcement learning is to begin (`before_rl`), else the last one.
    """
    in_run = (path / "warmup", path / "policy") if before_rl else (path / "policy", path / "warmup")
    for candidate in (path, *in_run):
        if any((candidate / name).is_file() for name in ("config.json", ADAPTER_CONFIG)):
            return candidate
    raise ModelPathError(f"{path} holds no policy; give a run folder, a checkpoint, or a folder with config.json")
