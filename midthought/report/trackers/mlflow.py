"""MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from midthought.config.references import optional
from midthought.report.trackers import TrackedRun, Tracker

_RUN_TAG = "midthought.run_id"
_MAX_PARAMS = 100
"""Most parameters in one request."""
_MAX_PARAM_LENGTH = 500


class MlflowTracker(Tracker):
    """One MLflow run per run folder, in the experiment `project`, started by the first metric.

    MLflow's own settings choose the storage (`MLFLOW_TRACKING_URI`; without it `mlflow.db` of the working directory). A
    character that MLflow does not allow in a name becomes `_`.
    """

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._mlflow = optional("mlflow", "mlflow")
        self._client: Any = None
        self._id = ""

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if self._client is None:
            self._client = self._mlflow.MlflowClient()
            self._id = self._find() or self._create()
        now = int(time.time() * 1000)
        names = {name: re.sub(r"[^/\w.\- ]", "_", f"{stage}/{name}") for name in metrics}
        values = [self._mlflow.entities.Metric(names[name], value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=values)

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id)
            self._client = None

    def _find(self) -> str:
        """Returns the run that this run folder has started before, which then runs again; empty if there is none."""
        experiment = self._client.get_experiment_by_name(self.run.project)
        if experiment is None:
            return ""
        tagged = f"tags.`{_RUN_TAG}` = '{self.run.run_id}'"
        for found in self._client.search_runs([experiment.experiment_id], filter_string=tagged, max_results=1):
            self._client.update_run(found.info.run_id, status="RUNNING")
            return str(found.info.run_id)
        return ""

    def _create(self) -> str:
        experiment = self._client.get_experiment_by_name(self.run.project)
        number = self._client.create_experiment(self.run.project) if experiment is None else experiment.experiment_id
        created = self._client.create_run(number, run_name=self.run.name, tags={_RUN_TAG: self.run.run_id})
        params = [
            self._mlflow.entities.Param(f"{section}.{key}", str(value)[:_MAX_PARAM_LENGTH])
            for section, values in self.run.settings.items()
            for key, value in values.items()
        ]
        for first in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(created.info.run_id, params=params[first : first + _MAX_PARAMS])
        return str(created.info.run_id)
