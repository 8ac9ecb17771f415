"""The state of a trainer that is neither weights nor optimizer: iteration, metrics, best validation.

Also writes and reads a trainer's checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midthought.errors import CheckpointError
from midthought.learning.checkpoint import load_checkpoint, save_checkpoint
from midthought.learning.distributed.remote_learner import AnyLearner
from midthought.report.json_lines import json_value
from midthought.trainer.initial_policy import vocabulary_digest
from midthought.trainer.run_writer import RunWriter


@dataclass(slots=True)
class TrainerState:
    """What a trainer knows about its run."""

    iteration: int = 0
    """Iterations done."""
    metrics_history: list[dict[str, float]] = field(default_factory=list)
    """The metrics of every iteration (`history_row`)."""
    best: tuple[float, int] = (-math.inf, 0)
    """The best validation's metric (`TrainingTasks.best_by`), and its iteration."""

    def complete(self, metrics: Mapping[str, float], iters_per_epoch: int) -> None:
        """Counts an iteration, and adds its metrics to the history."""
        self.iteration += 1
        self.metrics_history.append(history_row(self.iteration, metrics, iters_per_epoch))

    def is_best(self, value: float) -> bool:
        """Whether a validation's metric is the best so far, which is then noted."""
        is_better = value > self.best[0]
        if is_better:
            self.best = value, self.iteration
        return is_better

    def last_iteration(self, num_iters: int, max_seconds: float | None) -> int:
        """Returns the iteration that is expected to be the last within `max_seconds`, by the mean seconds of the iterations.
        `num_iters` if `max_seconds` is None, or if there was no iteration yet."""
        seconds = [metrics["time/seconds"] for metrics in self.metrics_history]
        if max_seconds is None or not seconds:
            return num_iters
        left = max(0.0, max_seconds - math.fsum(seconds))
        return self.iteration + round(left * len(seconds) / math.fsum(seconds))

    def to_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {
            "iteration": self.iteration,
            "metrics_history": self.metrics_history,
            "best": self.best,
        }

    def restore(self, state: Mapping[str, Any], iters_per_epoch: int) -> None:
        """Takes the state of a checkpoint."""
        self.iteration, rows = int(state["iteration"]), state["metrics_history"]
        self.metrics_history = [history_row(int(row["iteration"]), _with_nan(row), iters_per_epoch) for row in rows]
        best, iteration = state["best"]
        self.best = (-math.inf if best is None else best, iteration)


def history_row(iteration: int, metrics: Mapping[str, float], iters_per_epoch: int) -> dict[str, float]:
    """Returns the metrics with what every row of `Trainer.metrics_history` has."""
    epoch = (iteration - 1) // max(iters_per_epoch, 1) + 1
    losses = {"total_loss": metrics.get("loss", 0.0), "policy_loss": 0.0, "value_loss": 0.0}
    return {"iteration": iteration, "epoch": epoch, **losses, **metrics}


def _with_nan(row: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in row.items()}


# -- checkpoints -----------------------------------------------------------------------------------------------


def write_trainer_checkpoint(
    path: Path | None,
    learner: AnyLearner,
    tokenizer: Any,
    state: TrainerState,
    parts: Mapping[str, Any],
    writer: RunWriter | None,
) -> Path:
    """Writes a checkpoint and returns its path. `path` None: into the run folder of `writer`. `parts`: `LearningParts.state`."""
    content = json_value({**state.to_dict(), **parts, "vocabulary": vocabulary_digest(tokenizer)})
    if writer is not None:
        best = state.best[1]
        return writer.checkpoints.save(learner, tokenizer, state.iteration, content, path=path, best=best)
    assert path is not None
    save_checkpoint(path, learner, tokenizer=tokenizer, state=content)
    return path


def restore_learner(
    path: str | Path, learner: AnyLearner, tokenizer: Any, writer: RunWriter | None
) -> Mapping[str, Any]:
    """Takes the learner back to a checkpoint, and returns the checkpoint's state for `TrainerState.restore`.

    If the checkpoint is in the run folder of `writer`, later metrics and trajectories are dropped there. Raises CheckpointError
    if it is damaged, was not written by a trainer, or has another model or tokenizer.
    """
    is_own = writer is not None and Path(path).resolve().is_relative_to(writer.run.path.resolve())
    own = writer if is_own else None
    checkpoint = own.checkpoints.open(Path(path)) if own is not None else load_checkpoint(path)
    state = checkpoint.state
    _require_same_tokenizer(state, tokenizer, path)
    if own is not None and "num_metric_lines" in state:
        own.run.require_logged(state)
    checkpoint.restore(learner)
    if own is not None and "num_metric_lines" in state:
        own.run.forget_after(state)
    return state


def _require_same_tokenizer(state: Mapping[str, Any], tokenizer: Any, path: str | Path) -> None:
    if "vocabulary" not in state:
        raise CheckpointError(f"checkpoint {path} was not written by a Trainer; give one of its save_checkpoint")
    if state["vocabulary"] != vocabulary_digest(tokenizer):
        raise CheckpointError(
            f"checkpoint {path} has another tokenizer than this trainer; give the trainer the one in {path}/policy"
        )
