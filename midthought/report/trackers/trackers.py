"""The trackers of one run. A tracker that fails is left out from then on, with one warning."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping

from midthought.report.trackers.tracker import TrackedRun, Tracker, find_tracker

_log = logging.getLogger(__name__)


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
