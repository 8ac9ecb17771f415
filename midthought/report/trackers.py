"""Trackers: programs that also get the metrics of a run, by name. They do not read metrics back.

`Trackers` gives metrics to several of them; one that fails is left out and does not stop the run.
"""

from __future__ import annotations

import logging
import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from midthought.config.references import optional
from midthought.errors import SettingsError, near_names

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run of a tracker."""

    path: Path
    """The run folder. It need not exist before the first metric."""
    project: str
    """Project, of W&B for example."""

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return self.path.resolve().name

    @property
    def run_id(self) -> str:
        """Identifies the run in all trackers; a resumed run has the same. Written to `tracker_run_id` in the run folder."""
        file = self.path / "tracker_run_id"
        if not file.is_file():
            self.path.mkdir(parents=True, exist_ok=True)
            file.write_text(uuid.uuid4().hex[:12] + "\n", encoding="utf-8")
        return file.read_text(encoding="utf-8").strip()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run, by section; empty if the run folder has none."""
        file = self.path / "config.yaml"
        return yaml.safe_load(file.read_text(encoding="utf-8")) or {} if file.is_file() else {}


class Tracker(ABC):
    """Gets the metrics of one run. A subclass gets a name in `TRACKERS`.

    The constructor imports the tracker's package, or raises `MissingExtraError`; it writes and sends nothing. After an exception
    of a method the tracker gets no more metrics, and the run continues.
    """

    def __init__(self, run: TrackedRun) -> None:
        self.run = run

    @abstractmethod
    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of a step of a stage, all finite. The name of a metric is `stage/name`."""

    def restart_from(self, next_steps: Mapping[str, int]) -> None:  # noqa: B027
        """Called if a run continues from a checkpoint: the next step of every stage. A stage without one restarts at 0."""

    def close(self) -> None:  # noqa: B027
        """Writes what is left."""


class TensorBoardTracker(Tracker):
    """One TensorBoard run per stage, a folder in `tensorboard/` of the run folder, created when first needed."""

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._path = run.path / "tensorboard"
        self._writers: dict[str, Any] = {}

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if stage not in self._writers:
            self._open(stage)
        for name, value in metrics.items():
            self._writers[stage].add_scalar(name, value, step)
        self._writers[stage].flush()

    def restart_from(self, next_steps: Mapping[str, int]) -> None:
        self.close()
        for folder in sorted(self._path.iterdir()) if self._path.exists() else ():
            if folder.is_dir():
                self._open(folder.name, next_steps.get(folder.name, 0))  # TensorBoard drops this step and later ones

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _open(self, stage: str, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writers[stage] = SummaryWriter(str(self._path / stage), purge_step=purge_step)


class WandbTracker(Tracker):
    """One W&B run per run folder, started by the first metric; the x-axis of a stage's charts is its own step (`ppo/step`).

    W&B's own settings decide whether and where data is sent (`WANDB_MODE=offline` keeps it in the run folder). Its history cannot
    be cut: a step that a resumed run repeats has both values, at the same place of the chart.
    """

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._wandb = optional("wandb", "wandb")
        self._opened: Any = None
        self._stages: set[str] = set()

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if self._opened is None:
            run, self._stages = self.run, set()
            names = {"project": run.project, "name": run.name, "id": run.run_id, "dir": str(run.path)}
            self._opened = self._wandb.init(**names, config=run.settings, resume="allow")
        if stage not in self._stages:
            self._stages.add(stage)
            self._opened.define_metric(f"{stage}/step")
            self._opened.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        self._opened.log({**{f"{stage}/{name}": value for name, value in metrics.items()}, f"{stage}/step": step})

    def close(self) -> None:
        if self._opened is not None:
            self._opened.finish()
            self._opened = None


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoardTracker, "wandb": WandbTracker}
"""All trackers, by name."""


class Trackers:
    """Gives the same record to every tracker.

    Raises `SettingsError` for an unknown name, and `MissingExtraError` if a tracker's package is not installed.
    """

    def __init__(self, names: Iterable[str], run: TrackedRun) -> None:
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            if name not in TRACKERS:
                raise SettingsError(f"checkpoint.trackers: there is no tracker {name!r}. {near_names(name, TRACKERS)}")
            self._trackers[name] = TRACKERS[name](run)

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Gives the finite metrics to every tracker."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._each(lambda tracker: tracker.log(stage, step, finite))

    def restart_from(self, next_steps: Mapping[str, int]) -> None:
        """Says at which step each stage of a resumed run continues."""
        self._each(lambda tracker: tracker.restart_from(next_steps))

    def close(self) -> None:
        """Writes what is left. A later `log` opens them again."""
        self._each(lambda tracker: tracker.close())

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:
                del self._trackers[name]
                reason = " ".join(str(error).split()) or type(error).__name__
                _log.warning(
                    "the tracker %s failed and gets no more metrics of this run: %.300s. metrics.jsonl has all of them",
                    name,
                    reason,
                )
