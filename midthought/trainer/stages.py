"""Seconds of sampling and learning in asynchronous training, and whether both overlap (`inference.overlap=auto`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from midthought.config import Auto
from midthought.learning.distributed.remote_learner import AnyLearner
from midthought.rollout.in_flight import InFlightEpisodes
from midthought.trainer.learners import set_overlap

MIN_GAIN = 1.05
"""Predicted gain from which sampling and learning overlap."""
Metrics = Mapping[str, float]


class Stages:
    """Measures sampling and learning of every batch.

    `overlaps` auto: they work in turn for two batches, each with all cores, and overlap in the third. Then `forecast` decides;
    `tell` is called with its sentence.
    """

    def __init__(
        self, stream: InFlightEpisodes, learner: AnyLearner, overlaps: bool | Auto, tell: Callable[[str], None]
    ) -> None:
        self._stream, self._learner, self._tell = stream, learner, tell
        self._batches: list[Metrics] | None = [] if overlaps == "auto" else None
        """Metrics of the batches on which the forecast depends; None: there is none, or it was made."""
        set_overlap(stream, learner, overlaps is True)
        self.start()

    def start(self) -> None:
        """Starts the clock of the next batch."""
        self._last = time.perf_counter(), self._stream.busy_seconds, self._stream.num_tokens

    def end_batch(self, metrics: Metrics) -> dict[str, float]:
        """Returns the seconds since the last batch, those of them in which nothing was sampled or nothing was learned, and the
        engine's tokens per second of sampling. `metrics`: of the batch, whose weights the engine has by now."""
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
        if self._batches is not None and num_tokens and learning:
            self._batches.append({**metrics, **found})
            self._choose(self._batches)
        return found

    def _choose(self, batches: Sequence[Metrics]) -> None:
        overlaps = len(batches) == 2
        if len(batches) == 3:
            self._batches, (gain, sentence) = None, forecast(batches[:2], batches[2])
            overlaps = gain >= MIN_GAIN
            self._tell(f"{sentence}: they {'overlap' if overlaps else 'work in turn'} (inference.overlap=auto)")
        set_overlap(self._stream, self._learner, overlaps)


def forecast(in_turn: Sequence[Metrics], at_once: Metrics) -> tuple[float, str]:
    """Returns the predicted gain of overlap (seconds of a batch in turn ÷ those of the larger stage), and a sentence about it.

    Sampling is counted per token, because the first batches sample ahead. The learner's first batch includes its start, and is
    not counted.
    """
    batches = (in_turn[-1], at_once)
    num_tokens = [batch["episode/policy_tokens"] * batch["episode/count"] for batch in batches]
    mean = fmean(num_tokens)
    rates = fmean(batch["time/engine_tokens_per_second"] for batch in in_turn), at_once["time/engine_tokens_per_second"]
    sampling = [mean / rate for rate in rates]
    learning = [
        mean / number * (batch["time/wall"] - batch["time/idle_learner"])
        for number, batch in zip(num_tokens, batches, strict=True)
    ]
    publishing = fmean(batch["time/weight_update_seconds"] for batch in batches)
    waiting = fmean(batch["time/waiting"] for batch in in_turn)
    gain = (sampling[0] + learning[0] + waiting + publishing) / (max(sampling[1], learning[1]) + publishing)
    return gain, (
        f"a batch takes {sampling[0]:.2g} s of sampling, {learning[0]:.2g} s of learning and {waiting:.2g} s of waiting in turn, "
        f"{sampling[1]:.2g} s and {learning[1]:.2g} s at the same time: predicted gain {gain:.2f}"
    )
