"""Writes `plan.json` of a run folder: what was planned for the run, and what each phase took.

Peaks are the largest of all processes of the run, seconds and calls their sums. Seconds per iteration are in `metrics.jsonl`
(`time/…_seconds`). Does not compute a plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from midthought.learning.phase_meter import Measured, Phase, PhaseMeter
from midthought.regular_files import read_json_object
from midthought.report.json_lines import json_value
from midthought.report.run_folder import RunFolder
from midthought.types import Trajectory

OF_THE_MOMENT = ("gpu_memory_gib", "gpu_memory_utilization")
"""Settings of a plan that follow the free memory at the start of a process."""


@dataclass(slots=True)
class EpisodeTokens:
    """Tokens of the training episodes, prompts included."""

    count: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    longest: int = 0
    longest_prompt: int = 0

    def add(self, trajectory: Trajectory) -> None:
        """Counts an episode."""
        num_tokens = sum(len(segment.token_ids) for segment in trajectory.segments)
        prompt = trajectory.segments[0].spans[0].end
        self.count += 1
        self.tokens += num_tokens
        self.prompt_tokens += prompt
        self.longest = max(self.longest, len(trajectory.token_ids))
        self.longest_prompt = max(self.longest_prompt, prompt)


class PlanRecord:
    """The plan of a run and its measurements. A resumed run with the same plan adds to the earlier measurements."""

    def __init__(self, run: RunFolder, stage: str, planned: Mapping[str, Any], meter: PhaseMeter) -> None:
        """`planned`: what `plan.phases.plan_record` returns. `stage`: the rows of `metrics.jsonl` that belong to it."""
        self._run, self._path = run, run.plan_path
        self._stage = stage
        self._planned = json_value(dict(planned))
        self._meter = meter
        self._episodes = EpisodeTokens()
        self._earlier = self._read()

    @property
    def has_measurements(self) -> bool:
        """Whether this process has measured a phase."""
        return bool(self._meter.measured)

    def add_episodes(self, trajectories: Iterable[Trajectory]) -> None:
        """Counts the tokens of training episodes."""
        for trajectory in trajectories:
            self._episodes.add(trajectory)

    def write(self) -> None:
        """Writes the file atomically."""
        self._run.require_present()
        meter = self._meter
        measured = {
            "memory": "allocated" if meter.is_cuda else "resident",
            "is_peak_of_phase": meter.is_resettable,
            "base_bytes": meter.base_bytes,
            "episodes": asdict(self._episodes),
            "phases": {phase: asdict(found) for phase, found in self._together().items()},
        }
        record = {"stage": self._stage, "planned": self._planned, "measured": measured}
        self._run.write_result(self._path.name, json.dumps(json_value(record), indent=1, allow_nan=False) + "\n")

    def _together(self) -> dict[Phase, Measured]:
        found = dict(self._earlier)
        for phase, measured in self._meter.measured.items():
            found[phase] = found.get(phase, Measured()) + measured
        return found

    def _read(self) -> dict[Phase, Measured]:
        """Returns the measurements of earlier processes; none if they had another plan, or their file cannot be read."""
        try:
            record = read_json_object(self._path)
            if _lasting(record["planned"]) != _lasting(self._planned):
                return {}
            self._episodes = EpisodeTokens(**record["measured"]["episodes"])
            shift = self._meter.base_bytes - record["measured"]["base_bytes"]
            return {phase: _shifted(Measured(**found), shift) for phase, found in record["measured"]["phases"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def _shifted(found: Measured, num_bytes: int) -> Measured:
    """Returns the measurement as a process with a larger base would have made it."""
    return Measured(found.calls, found.seconds, max(0, found.peak_bytes + num_bytes), found.reserved_bytes)


def _lasting(planned: Mapping[str, Any]) -> dict[str, Any] | None:
    settings = planned["settings"]
    return None if settings is None else {key: settings[key] for key in settings if key not in OF_THE_MOMENT}
