"""Trackers: programs that also get the metrics of a run, each in one file, by name. They do not read metrics back.

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

from midthought.config.references import load
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
    """Gets the metrics of one run. A subclass is named as `module:name`, or gets a name in `TRACKERS`.

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


TRACKERS: dict[str, type[Tracker] | str] = {
    "tensorboard": "midthought.report.trackers.tensorboard:TensorBoardTracker",
    "wandb": "midthought.report.trackers.wandb:WandbTracker",
}
"""All trackers, by name; `module:name` until it is used."""


def find_tracker(name: str) -> type[Tracker]:
    """Returns a tracker by its name, or your own as `module:name`. Raises `SettingsError` if there is none."""
    if ":" not in name and name not in TRACKERS:
        raise SettingsError(f"checkpoint.trackers: there is no tracker {name!r}. {near_names(name, TRACKERS)}")
    found = TRACKERS.get(name, name)
    found = load(found) if isinstance(found, str) else found
    if not (isinstance(found, type) and issubclass(found, Tracker)):
        raise SettingsError(f"checkpoint.trackers: {name} is no subclass of midthought.report.trackers.Tracker")
    return found


class Trackers:
    """Gives the same record to every tracker.

    Raises `SettingsError` for an unknown name, and `MissingExtraError` if a tracker's package is not installed.
    """

    def __init__(self, names: Iterable[str], run: TrackedRun) -> None:
        self._trackers = {name: find_tracker(name)(run) for name in names}

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
