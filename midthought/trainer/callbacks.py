"""`TrainerCallback`: what a user may do between the steps of a trainer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from midthought.errors import SettingsError


class TrainerCallback:
    """Called during training: after a step, then after its validation, then after its checkpoint.

    Extend it and override what you need; each method receives the `Trainer`. An exception, KeyboardInterrupt included, ends
    `fit` between two iterations.
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
