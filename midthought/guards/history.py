"""What a run has logged so far: the only input of a guard. Does not depend on the run's model, engine or task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midthought.config import TrainingConfig

Row = Mapping[str, float]
"""Metrics of an iteration or a validation, with `step`; a value that is not finite is NaN."""

ITERATION, VALIDATION = "ppo", "validation"
"""Stages of the rows in `metrics.jsonl`."""


class History:
    """Rows of `metrics.jsonl` in order, and the settings as nested plain values (`config.yaml`)."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self.iterations: list[Row] = []
        self.validations: list[Row] = []
        self.error: str | None = None
        """The most frequent error of the last iteration's failed episodes, if it is known."""
        self.is_over = False
        """Whether the run has ended; guards that wait for many iterations then judge fewer."""

    def add(self, row: Mapping[str, Any], error: str | None = None) -> bool:
        """Appends a row; returns False, and ignores it, if it is of another stage (supervised steps)."""
        numbers = {name: math.nan if value is None else value for name, value in row.items() if name != "stage"}
        if row["stage"] == ITERATION:
            self.iterations.append(numbers)
            self.error = error
        elif row["stage"] == VALIDATION:
            self.validations.append(numbers)
        return row["stage"] in (ITERATION, VALIDATION)

    @property
    def step(self) -> int:
        """Number of the last iteration; 0 before the first."""
        return step_of(self.iterations[-1]) if self.iterations else 0

    def setting(self, name: str, otherwise: Any = None) -> Any:
        """Returns the setting `section.key`; `otherwise` if it was not recorded or is `auto`."""
        section, _, key = name.partition(".")
        value = self._settings.get(section, {}).get(key, otherwise)
        return otherwise if value == "auto" else value

    def streak(self, holds: Callable[[Row], bool]) -> list[Row]:
        """Returns the last iterations in a row for which `holds`."""
        count = 0
        for row in reversed(self.iterations):
            if not holds(row):
                break
            count += 1
        return self.iterations[len(self.iterations) - count :]

    def early(self, name: str, count: int = 3) -> float:
        """Returns the mean of a metric over the first `count` iterations; NaN if they did not log it."""
        return mean_of(self.iterations[:count], name)

    def recent(self, name: str, count: int = 3) -> float:
        """Returns the mean of a metric over the last `count` iterations; NaN if they did not log it."""
        return mean_of(self.iterations[-count:], name)


def episodes_per_task(history: History) -> int:
    """Returns `training.group_size`, or the default of the estimator. The samples of a task are no independent ones."""
    needs = TrainingConfig.estimator_needs.get(history.setting("training.adv_estimator", "gae"), ())
    return history.setting("training.group_size") or (8 if "groups" in needs else 1)


def step_of(row: Row) -> int:
    """Returns the iteration of a row."""
    return int(row["step"])


def value(row: Row, name: str) -> float:
    """Returns a metric; NaN, which satisfies no comparison, if it was not logged."""
    return row.get(name, math.nan)


def mean_of(rows: Sequence[Row], name: str) -> float:
    """Returns the mean of a metric over the rows in which it is finite; NaN if there are none."""
    values = [found for row in rows if math.isfinite(found := value(row, name))]
    return math.fsum(values) / len(values) if values else math.nan


def total(rows: Sequence[Row], *names: str) -> float:
    """Returns the sum over the rows of the product of these metrics, without rows in which one is missing or not finite."""
    products = (math.prod(value(row, name) for name in names) for row in rows)
    return math.fsum(filter(math.isfinite, products))


def last_names(rows: Sequence[Row]) -> list[str]:
    """Returns the names of the metrics of the last row."""
    return list(rows[-1]) if rows else []


def fell(history: History, rows: Sequence[Row]) -> bool:
    """Whether the mean reward of the last iterations `rows` is below that of the iterations before them, by more than half of its
    standard deviation there, or to equal rewards, or if the entropy has fallen below a hundredth."""
    before = history.iterations[: len(history.iterations) - len(rows)][-20:]
    fall = mean_of(before, "reward/mean") - mean_of(rows, "reward/mean")
    if mean_of(rows, "entropy") < 0.01 * mean_of(before, "entropy"):
        return True
    is_equal = mean_of(rows, "reward/std") < 1e-9
    return fall > (1e-9 if is_equal else 0.5 * mean_of(before, "reward/std"))


def broke_down(history: History, rows: Sequence[Row]) -> tuple[bool, str]:
    """Returns whether the reward `fell` in the last iterations `rows`, and the likely cause if it did."""
    cause = "steps that are too large (training.learning_rate)"
    coef = history.setting("training.entropy_coef", 0.0)
    now, first = (
        [nats for row in part if math.isfinite(nats := uncertainty(row))] for part in (rows, history.iterations[:3])
    )
    if coef and now and first and math.fsum(now) / len(now) > 1.5 * math.fsum(first) / len(first):
        cause = f"a bonus for entropy that outweighs the reward (training.entropy_coef={coef:g})"
    return fell(history, rows), f"the policy broke down, see the reward: {cause}"


RANDOM_ENTROPY = 4.0
"""Nats per token. The samples are then as random as if 55 tokens were equally likely, which is no text."""
HIGH_TEMPERATURE = 1.3
"""From here on, the temperature is the first suspect if samples are random from the start. An untrained model's are at 1, too."""


def uncertainty(row: Row) -> float:
    """Returns the entropy of the policy that sampled, in nats per token: as the learner computed it, else as the samples show it
    (without a gradient there is no learner's); NaN if neither was logged."""
    logged = value(row, "entropy")
    return logged if math.isfinite(logged) else value(row, "episode/sampled_nats")


def too_hot(history: History, rows: Sequence[Row]) -> tuple[bool, str]:
    """Returns whether the samples of these iterations are random at a high temperature, and the cause in words."""
    temperature = history.setting("inference.temperature", 1.0)
    found = [nats for row in rows if math.isfinite(nats := uncertainty(row))]
    is_hot = temperature >= HIGH_TEMPERATURE and bool(found) and math.fsum(found) / len(found) > RANDOM_ENTROPY
    return is_hot, f"the temperature makes the samples random: inference.temperature={temperature:g}"
