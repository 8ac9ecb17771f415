"""Asynchronous training: the place of the learner, the seconds of each stage, and whether sampling and learning overlap."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch

from midthought.config import Auto, RecipeConfig
from midthought.errors import SettingsError
from midthought.learning.remote_learner import AnyLearner, RemoteLearner
from midthought.rollout.in_flight import InFlightEpisodes

MIN_GAIN = 1.05
"""Gain from which sampling and learning overlap."""
NUM_IN_TURN, NUM_AT_ONCE = 2, 3
"""Batches that are measured."""
Metrics = Mapping[str, float]


def beside_engine(policy: Any, config: RecipeConfig) -> Literal["here", "apart"] | None:
    """Returns where the learner works while the engine samples (`inference.overlap`): `here`, in this process, if the servers are
    given; `apart`, in a process of its own on other cores or another GPU. None: sampling and learning do not overlap.

    Raises SettingsError if overlap is requested, and both would have to share one core or GPU.
    """
    inference, requested = config.inference, config.inference.overlap
    if not config.training.max_staleness or inference.deterministic or requested is False:
        return None
    if inference.base_url:
        return "here"
    is_on_cpu = next(iter(policy.parameters())).device.type == "cpu"
    number, what = (num_cores(), "CPU core") if is_on_cpu else (torch.cuda.device_count(), "GPU")
    if number < 2 and requested is True:
        raise SettingsError(
            f"inference.overlap=true with {number} {what}: engine and learner would take turns on it; set inference.overlap to "
            "false (tools run on while it learns), or give the run another one"
        )
    return "apart" if number >= 2 else None


def num_cores() -> int:
    """Returns the number of cores that this process may use, a container's quota included."""
    number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("utf-8").split()
        return max(1, min(number, int(quota) // int(period)))
    except (OSError, ValueError):  # no control groups, or no quota ("max")
        return number


class Stages:
    """Measures sampling and learning of every batch.

    `overlaps` auto: they work in turn for two batches, each with all cores, and overlap in three. Then `forecast` decides; `tell`
    is called with its sentence.
    """

    def __init__(
        self, stream: InFlightEpisodes, learner: AnyLearner, overlaps: bool | Auto, tell: Callable[[str], None]
    ) -> None:
        self._stream, self._learner, self._tell = stream, learner, tell
        self._overlaps: bool | Auto | None = None
        self._batches: list[Metrics] | None = None
        """Metrics of the batches on which the forecast depends; None: there is none, or it was made."""
        self.follow(overlaps)
        self.start()

    def follow(self, overlaps: bool | Auto) -> None:
        """Lets both overlap or not. An unchanged `auto` does not measure again."""
        if overlaps != self._overlaps:
            self._overlaps, self._batches = overlaps, [] if overlaps == "auto" else None
            self._set(overlaps is True)

    def start(self) -> None:
        """Starts the clock of the next batch."""
        engine = self._stream.engine
        self._last = time.perf_counter(), engine.busy_seconds, engine.num_tokens

    def end_batch(self, metrics: Metrics) -> dict[str, float]:
        """Returns the seconds since the last batch, those in which engine or learner was idle, and the engine's tokens per second
        of sampling. `metrics`: of the batch, whose weights the engine has by now."""
        before = self._last
        self.start()
        wall, sampling, num_tokens = (now - then for now, then in zip(self._last, before, strict=True))
        learning = metrics.get("time/scoring_seconds", 0.0) + metrics.get("time/update_seconds", 0.0)
        found = {
            "time/wall": wall,
            "time/idle_engine": max(0.0, wall - sampling),
            "time/idle_learner": wall - learning,
            "time/engine_tokens_per_second": num_tokens / sampling if sampling else 0.0,
        }
        if self._batches is not None and num_tokens and learning and not self._stream.is_restored:
            self._batches.append({**metrics, **found})
            self._choose(self._batches)
        return found

    def _choose(self, batches: Sequence[Metrics]) -> None:
        overlaps = len(batches) >= NUM_IN_TURN
        if len(batches) == NUM_IN_TURN + NUM_AT_ONCE:
            self._batches, (gain, sentence) = None, forecast(batches[:NUM_IN_TURN], batches[NUM_IN_TURN:])
            overlaps = gain >= MIN_GAIN
            self._tell(f"{sentence}: they {'overlap' if overlaps else 'work in turn'} (inference.overlap=auto)")
        self._set(overlaps)

    def _set(self, overlaps: bool) -> None:
        """Lets the stream sample while the learner works, or in turn. A learner in a process of its own and the engine then have
        half of the cores each, or all of them."""
        from midthought.cluster.child import ChildGroup

        self._stream.overlaps = overlaps
        if isinstance(self._learner, RemoteLearner) and isinstance(self._learner.workers, ChildGroup):
            num_threads = torch.get_num_threads()
            if overlaps:
                num_threads = max(1, min(num_threads, num_cores() // 2))
            self._learner.workers.num_threads = num_threads
            self._stream.use_threads(num_threads)


def forecast(in_turn: Sequence[Metrics], at_once: Sequence[Metrics]) -> tuple[float, str]:
    """Returns the gain of overlap (seconds of a batch in turn ÷ at the same time), and a sentence about it.

    The seconds in turn are predicted: the first batches sample ahead, so sampling is counted per token, and the learner's first
    batch includes its start. Those at the same time are measured: both slow each other down on one machine, and the engine may
    have nothing to sample while the learner works.
    """
    turn = in_turn[-1]
    num_tokens = fmean(map(_num_tokens, (turn, *at_once)))
    sampling = num_tokens / fmean(batch["time/engine_tokens_per_second"] for batch in in_turn)
    learning = num_tokens / _num_tokens(turn) * _learning(turn)
    waiting = fmean(batch.get("time/waiting", 0.0) for batch in in_turn)  # none: of other episodes than the stream's
    rest = turn["time/seconds"] - turn["time/rollout_seconds"] - _learning(turn)
    before, now = sampling + learning + waiting + rest, fmean(batch["time/seconds"] for batch in at_once)
    busy = fmean(batch["time/wall"] - batch["time/idle_engine"] for batch in at_once), fmean(map(_learning, at_once))
    return before / now, (
        f"a batch takes {before:.2g} s if sampling ({sampling:.2g} s), learning ({learning:.2g} s) and waiting ({waiting:.2g} s) "
        f"are in turn, {now:.2g} s if they overlap ({busy[0]:.2g} s, {busy[1]:.2g} s), gain {before / now:.2f}"
    )


def _num_tokens(batch: Metrics) -> float:
    return batch["episode/policy_tokens"] * batch["episode/count"]


def _learning(batch: Metrics) -> float:
    return batch["time/wall"] - batch["time/idle_learner"]
