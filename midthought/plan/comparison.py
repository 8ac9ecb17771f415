"""Compares the plan of a run with its measurements, phase by phase: `midthought plan --against RUN`. Reads no files."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midthought.errors import SettingsError
from midthought.plan.difference_causes import memory_cause, seconds_cause
from midthought.plan.hardware import GIB
from midthought.plan.memory import MIB, Memory
from midthought.plan.phases import TITLES, as_run, bytes_by_phase, seconds_by_phase

MEMORY_LIMIT, SECONDS_LIMIT = 0.1, 0.3
"""Differences beyond these shares of the measured figure are marked."""
SECONDS_OF_PHASE = {
    "sampling": "time/rollout_seconds",
    "scoring": "time/scoring_seconds",
    "update": "time/update_seconds",
    "weight_update": "time/weight_update_seconds",
}
"""Metrics of an iteration that hold the seconds of a phase."""
HELD = "weight_update"
"""The phase with the least memory: what is held all the time, without activations and, on a GPU, without a KV cache."""
BEYOND = {"update": "update, less what is held", "sampling": "sampling, less what is held"}
NAME_WIDTH = 34


@dataclass(frozen=True, slots=True)
class Row:
    """A planned and a measured figure, in bytes or seconds."""

    part: str
    planned: float | None
    measured: float | None
    limit: float
    cause: str = ""
    """Likely cause of a marked difference, as one sentence."""

    @property
    def difference(self) -> float | None:
        """Planned less measured, as a share of the measured figure. None: one of them is not known."""
        if self.planned is None or not self.measured:
            return None
        return self.planned / self.measured - 1.0

    @property
    def is_marked(self) -> bool:
        return self.difference is not None and abs(self.difference) > self.limit


@dataclass(frozen=True)
class Comparison:
    """The plan and the measurements of one run. `record`: its `plan.json`; `metrics`: its rows of `metrics.jsonl`."""

    record: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]

    @property
    def planned(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.record["planned"]
        return found

    @property
    def measured(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.record["measured"]
        return found

    @property
    def is_on_gpu(self) -> bool:
        return bool(self.measured["memory"] == "allocated")

    # -- memory ----------------------------------------------------------------------------------------------------

    @property
    def memory(self) -> list[Row]:
        """Peak memory of each phase; on a GPU also what two phases take beyond what is held. Resident memory does not show this,
        because the C library keeps pages of earlier phases."""
        taken, planned, again = self._taken, self._sums(self.planned["bytes"]), self._sums(self.bytes_as_run)
        rows = [(TITLES[phase], planned.get(phase), taken.get(phase), phase, again.get(phase)) for phase in TITLES]
        for phase, title in BEYOND.items() if self.is_on_gpu else ():
            parts = [_less(figures, phase) for figures in (planned, taken, again)]
            rows.append((title, parts[0], parts[1], phase, parts[2]))
        return [self._memory_row(*row) for row in rows]

    def _memory_row(
        self, part: str, planned: float | None, measured: float | None, phase: str, again: float | None
    ) -> Row:
        row = Row(part, planned, measured, MEMORY_LIMIT)
        if not row.is_marked:
            return row
        assert measured is not None
        with_lengths = Row(part, again, measured, MEMORY_LIMIT)
        parts = (self.planned["bytes"] or {}).get(phase, {})
        cause = memory_cause(
            row.planned or 0, measured, with_lengths.planned, fits_again=not with_lengths.is_marked, parts=parts,
            measurements=self.measured, phase=phase, num_halved=self._num_halved, lengths=self._lengths,
        )  # fmt: skip
        return Row(part, planned, measured, MEMORY_LIMIT, cause)

    @property
    def _taken(self) -> dict[str, float]:
        base = 0 if self.is_on_gpu else self.measured["base_bytes"]
        return {phase: max(0, found["peak_bytes"] - base) for phase, found in self.measured["phases"].items()}

    @property
    def _num_halved(self) -> int:
        return int(sum(row.get("num_halved_micro_batches") or 0 for row in self.metrics))

    @staticmethod
    def _sums(parts: Mapping[str, Mapping[str, int]] | None) -> dict[str, float]:
        return {phase: sum(sizes.values()) for phase, sizes in (parts or {}).items()}

    @property
    def bytes_as_run(self) -> dict[str, dict[str, int]] | None:
        """The plan's bytes with the lengths of the run's episodes. None: not known."""
        memory = self.plan_as_run
        return None if memory is None else bytes_by_phase(memory)

    @property
    def plan_as_run(self) -> Memory | None:
        """The plan with the lengths of the run's episodes. None: not known."""
        try:
            return as_run(self.planned, self.measured["episodes"])
        except (SettingsError, TypeError):  # written by a version with other settings
            return None

    @property
    def _lengths(self) -> str:
        episodes = self.measured["episodes"]
        if not episodes["count"]:
            return "no episodes"
        mean = episodes["tokens"] / episodes["count"]
        return f"episodes of {mean:.0f} tokens on average and {episodes['longest']} at most"

    # -- seconds ---------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> list[Row]:
        """Seconds of each phase in an iteration: the median of the iterations, without the first if there are several."""
        planned = self.planned["seconds"] or {}
        memory = self.plan_as_run if planned else None
        again = {} if memory is None else seconds_by_phase(memory)
        rows = []
        for phase, metric in SECONDS_OF_PHASE.items():
            row = Row(TITLES[phase], planned.get(phase), self._median(metric), SECONDS_LIMIT)
            if row.is_marked:
                with_lengths = Row("", again.get(phase), row.measured, SECONDS_LIMIT)
                cause = seconds_cause(
                    phase, row.planned or 0, row.measured or 0, with_lengths.planned,
                    fits_again=not with_lengths.is_marked, lengths=self._lengths, settings=self.planned["settings"],
                    tool_seconds=self._median("time/episode/tool_seconds"),
                )  # fmt: skip
                row = Row(row.part, row.planned, row.measured, row.limit, cause)
            rows.append(row)
        return rows + [self._seconds_per_call(phase) for phase in ("validation", "saving")]

    def _seconds_per_call(self, phase: str) -> Row:
        found = self.measured["phases"].get(phase)
        measured = found["seconds"] / found["calls"] if found and found["calls"] else None
        return Row(f"{TITLES[phase]}, each time", None, measured, SECONDS_LIMIT)

    def _median(self, metric: str) -> float | None:
        found = [row[metric] for row in self.metrics if row.get(metric) is not None]
        return statistics.median(found[1:] or found) if found else None


def _less(figures: Mapping[str, float], phase: str) -> float | None:
    if phase not in figures or HELD not in figures:
        return None
    return figures[phase] - figures[HELD]


# -- output --------------------------------------------------------------------------------------------------------


def to_lines(comparison: Comparison, name: str) -> Iterator[str]:
    """Yields the lines that `midthought plan --against` prints."""
    planned, measured = comparison.planned, comparison.measured
    yield f"{name}: planned and measured on {planned['hardware']}"
    if planned["unknown"]:
        yield f"There is no plan of this run: {planned['unknown']}"
    yield from _memory_note(comparison)
    rows = comparison.memory
    highest = max((figure for row in rows for figure in (row.planned, row.measured) if figure), default=0)
    unit, size = ("GiB", GIB) if highest >= GIB else ("MiB", MIB)
    yield ""
    yield from _table(f"{unit} at the peak", rows, size)
    if not measured["is_peak_of_phase"]:
        yield "This system does not reset the peak of a process: each phase shows the largest peak so far."
    yield ""
    yield from _table("seconds per iteration", comparison.seconds, 1.0)
    if planned["seconds"] is None and not planned["unknown"]:
        yield f"No seconds are planned: {planned['seconds_unknown']}."


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """Returns the same as values, in bytes and seconds."""

    def values(rows: Sequence[Row]) -> list[dict[str, Any]]:
        return [
            {
                "part": row.part,
                "planned": row.planned,
                "measured": row.measured,
                "difference": row.difference,
                "is_marked": row.is_marked,
                "cause": row.cause,
            }
            for row in rows
        ]

    return {
        "hardware": comparison.planned["hardware"],
        "unknown": comparison.planned["unknown"],
        "seconds_unknown": comparison.planned["seconds_unknown"],
        "bytes": values(comparison.memory),
        "seconds": values(comparison.seconds),
    }


def _memory_note(comparison: Comparison) -> Iterator[str]:
    base = comparison.measured["base_bytes"] / MIB
    if comparison.is_on_gpu:
        yield "Memory: what PyTorch's allocator holds in the training process; CUDA itself takes about 1 GiB more."
    else:
        yield f"Memory: resident memory of the training process, less {base:.0f} MiB that it held before the model."


def _table(title: str, rows: Sequence[Row], unit: float) -> Iterator[str]:
    yield f"{title:<{NAME_WIDTH}}{'planned':>10}{'measured':>10}{'difference':>12}"
    for row in rows:
        if row.planned is None and row.measured is None:
            continue
        difference = "–" if row.difference is None else f"{row.difference:+.0%}"
        mark = "  *" if row.is_marked else ""
        figures = f"{_figure(row.planned, unit):>10}{_figure(row.measured, unit):>10}"
        yield f"  {row.part:<{NAME_WIDTH - 2}}{figures}{difference:>12}{mark}"
    marked = [row for row in rows if row.is_marked]
    if marked:
        yield f"* more than {marked[0].limit:.0%} from the measurement:"
        yield from (f"  {row.part}: {row.cause}" for row in marked)


def _figure(value: float | None, unit: float) -> str:
    if value is None:
        return "–"
    shown = value / unit
    return f"{shown:.1f}" if unit != 1.0 or shown >= 10 else f"{shown:.3g}"
