"""What a trainer gives its user: the metrics of all steps, with a table, and callbacks. It does not train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from midthought.errors import SettingsError

MAX_SHOWN_ROWS = 10


class TrainingResult(list[dict[str, float]]):
    """The metrics of every iteration, in order, as in `Trainer.metrics_history`.

    >>> result = TrainingResult([{"iteration": 1, "reward/mean": 0.0}, {"iteration": 2, "reward/mean": 1.0}])
    >>> result.metrics["reward/mean"]
    1.0
    >>> result.show()
    iteration  reward/mean
            1        0.000
            2        1.000
    """

    columns: ClassVar[tuple[str, ...]] = ("iteration", "reward/mean", "episode/calls", "entropy")
    """Columns of the table, if a row has them."""

    def __init__(self, rows: Iterable[dict[str, float]] = (), policy_path: Path | None = None) -> None:
        super().__init__(rows)
        self.policy_path = policy_path
        """Folder of the trained policy; None without a run folder."""

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last iteration; empty if there was none."""
        return self[-1] if self else {}

    def show(self) -> None:
        """Prints a table of at most `MAX_SHOWN_ROWS` iterations, evenly spaced."""
        if not self:
            print(f"no {self.columns[0]} was trained")
            return
        names = [name for name in self.columns if any(name in row for row in self)]
        print("  ".join(names))
        for row in _evenly(self, MAX_SHOWN_ROWS):
            print("  ".join((_cell(name, row[name]) if name in row else "–").rjust(len(name)) for name in names))


class SupervisedResult(TrainingResult):
    """The metrics of every supervised step, in order.

    >>> SupervisedResult([{"step": 1, "loss": 2.5}, {"step": 2, "loss": 0.5}]).losses
    [2.5, 0.5]
    """

    columns = ("step", "loss", "learning_rate")

    @property
    def losses(self) -> list[float]:
        """Mean negative log-likelihood of a policy token, in nats, per step."""
        return [row["loss"] for row in self]


def history_row(iteration: int, row: Mapping[str, float | None], iters_per_epoch: int) -> dict[str, float]:
    """Returns the metrics with what every row of `Trainer.metrics_history` has. Null, as in a checkpoint, is NaN."""
    metrics = {name: math.nan if value is None else value for name, value in row.items()}
    epoch = (iteration - 1) // max(iters_per_epoch, 1) + 1
    losses = {"total_loss": metrics.get("loss", 0.0), "policy_loss": 0.0, "value_loss": 0.0}
    return {"iteration": iteration, "epoch": epoch, **losses, **metrics}


def _cell(name: str, value: float) -> str:
    if name in ("iteration", "step"):
        return str(int(value))
    return f"{value:.2e}" if name == "learning_rate" else f"{value:z.3f}"


def _evenly(rows: list[dict[str, float]], count: int) -> list[dict[str, float]]:
    """Returns at most `count` rows, the first and the last among them."""
    if len(rows) <= count:
        return rows
    return [rows[round(i * (len(rows) - 1) / (count - 1))] for i in range(count)]


class TrainerCallback:
    """Called during training: after a step, then after its validation, then after its checkpoint.

    Extend it and override what you need; each method receives the `Trainer`. An exception, KeyboardInterrupt included, ends
    `fit` between two iterations, after the checkpoint of the iteration if one is due. What other callbacks raise in that
    iteration is added to it as notes.
    """

    def on_step(self, trainer: Any, metrics: Mapping[str, float]) -> None:
        """Called after an iteration; `trainer.iteration` is the number of iterations done."""

    def on_evaluation(self, trainer: Any, metrics: Mapping[str, float]) -> None:
        """Called after an evaluation."""

    def on_save(self, trainer: Any, path: Path) -> None:
        """Called after a checkpoint was written to `path`."""


def checked_callbacks(callbacks: Any) -> list[TrainerCallback]:
    """Returns one or several callbacks as a list; None: none. Raises `SettingsError` for anything else."""
    one = () if callbacks is None else (callbacks,)
    given = list(callbacks if isinstance(callbacks, Iterable) else one)
    for callback in given:
        if not isinstance(callback, TrainerCallback):
            raise SettingsError(
                f"callbacks: {callback!r:.80} is no TrainerCallback; extend it (on_step, on_evaluation, on_save), and give "
                "an object, not a class"
            )
        if unknown := [name for name in dir(callback) if name.startswith("on_") and not hasattr(TrainerCallback, name)]:
            raise SettingsError(
                f"callbacks: {type(callback).__name__}.{unknown[0]} is never called; a callback has on_step, on_evaluation and "
                "on_save; write what comes before or after training beside fit()"
            )
    return given
