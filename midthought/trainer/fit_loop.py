"""The iterations of `Trainer.fit`: rollout, training step, validation, checks and checkpoints, in this order."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from midthought.errors import TrainingStoppedError
from midthought.learning.stopping import StopRequest
from midthought.report.console import Console
from midthought.report.progress import Progress
from midthought.trainer.learning_parts import LearningParts
from midthought.trainer.run_checks import RunChecks
from midthought.trainer.run_writer import RunStage, RunWriter
from midthought.trainer.tasks import TrainingTasks
from midthought.trainer.trainer_state import TrainerState

_log = logging.getLogger(__name__)


class FitLoop:
    """One call of `Trainer.fit`. Call `start`, then `run`."""

    def __init__(
        self,
        trainer: Any,
        parts: LearningParts,
        state: TrainerState,
        checks: RunChecks,
        tasks: TrainingTasks,
        writer: RunWriter | None,
        *,
        max_seconds: float | None,
    ) -> None:
        """`trainer`: a `Trainer`, whose methods a subclass may override. `max_seconds`: as in `Trainer.fit`."""
        self._trainer, self._parts, self._state, self._checks = trainer, parts, state, checks
        self._tasks, self._writer, self._max_seconds = tasks, writer, max_seconds
        self.num_iters = 0
        """The number of the last iteration. With `max_seconds` it changes after each iteration."""

    def start(self, num_iters: int) -> None:
        """Applies the settings, and starts the checks and the schedule of the learning rate."""
        config = self._trainer.config
        self._checks.restart(config, self._logged(), self._writer.run.path if self._writer is not None else None)
        self._parts.config = config.frozen()
        self._end_schedule(num_iters)

    def run(self, console: Console, stage: RunStage | None) -> Path | None:
        """Runs the iterations that are left. Then saves the policy and writes the report, unless the owner of a larger run does.

        Returns the folder of the policy. A requested stop takes effect after an iteration and its checkpoint. If a check stops
        the run, the report is written, too.
        """
        if self._state.iteration >= self.num_iters:
            _log.warning(
                "nothing is left to train: %d of %d iterations are done", self._state.iteration, self.num_iters
            )
        training = self._parts.config.training
        title = stage.title if stage is not None else f"Training ({training.algorithm or training.adv_estimator})"
        stop = stage.stop if stage is not None else StopRequest()
        path = self._writer.policy_path if self._writer is not None else None
        with stop, console.stage(title, total=self.num_iters, unit="iterations") as bar:
            try:
                self._run_iterations(bar, stop)
            except TrainingStoppedError:
                if self._writer is not None:
                    self._writer.report()
                raise
            if self._writer is not None and path is not None:
                self._parts.save_model(path, self._trainer.meter, in_run=True)
                self._writer.finish(self._state.metrics_history)
        return path

    def _run_iterations(self, bar: Progress, stop: StopRequest) -> None:
        bar.start_at(self._state.iteration)
        while self._state.iteration < self.num_iters:
            is_best = self._iterate(bar)
            self._save(is_needed=is_best or stop.requested)
            stop.check()

    def _iterate(self, bar: Progress) -> bool:
        """Runs an iteration, and its validation if it is due. Returns True if the validation is the best so far."""
        data = self._trainer.rollout()
        metrics = self._trainer.train_step(data)
        self._checks.after_iteration(self._state.iteration, metrics, data.trajectories)
        bar.advance(1, reward=metrics["reward/mean"], calls=metrics["episode/calls"])
        if self._max_seconds is not None:
            self._end_schedule(self.num_iters)
            bar.total = self.num_iters
        return self._validate()

    def _validate(self) -> bool:
        """Evaluates if it is due. Returns True if the metric `best_by` of the tasks is the best so far."""
        every = self._trainer.config.training.validate_every
        if not every or self._state.iteration % every or not self._tasks.has_held_out:
            return False
        metrics = self._trainer.evaluate()
        self._checks.after_validation(self._state.iteration, metrics)
        return self._state.is_best(metrics[self._tasks.best_by])

    def _save(self, *, is_needed: bool) -> None:
        """Saves a checkpoint if it is needed or due."""
        if self._writer is None:
            return
        iteration = self._state.iteration
        if is_needed or iteration == self.num_iters or self._writer.checkpoints.is_due(iteration):
            self._trainer.save_checkpoint()

    def _end_schedule(self, num_iters: int) -> None:
        """Ends the schedule with iteration `num_iters`, or with the one that is expected to be the last within `max_seconds`."""
        self.num_iters = self._state.last_iteration(num_iters, self._max_seconds)
        self._parts.end_schedule(self.num_iters)

    def _logged(self) -> Iterable[Mapping[str, Any]]:
        """Returns what the run has logged so far, as rows of `metrics.jsonl`."""
        if self._writer is not None:
            return self._writer.run.metrics.read()
        return ({"stage": "ppo", "step": row["iteration"], **row} for row in self._state.metrics_history)
