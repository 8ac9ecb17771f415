"""Control arms: variants of a run whose policies learn otherwise and are evaluated in the same way, and the table of all
results. Trains nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from midthought.config import RecipeConfig
from midthought.errors import SettingsError, near_names
from midthought.report.console import Console
from midthought.report.html import ARMS
from midthought.report.run_folder import RunFolder

AnyConfig = TypeVar("AnyConfig", bound=RecipeConfig)
_KEPT = ("gamma", "overlong_buffer_tokens", "mask_truncated_episodes")
"""Settings of the section `training` that an algorithm's preset would replace, although they belong to the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlArm:
    """A variant of a run. Its policy starts from the run's warm-up and learns with the run's `Trainer`, or, if `is_supervised`,
    starts from the run's initial model and learns only from demonstrations."""

    name: str
    title: str
    """What it is, for the console."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that differ from the run's, by section."""
    same_seconds: bool = False
    """Whether it trains for as many seconds as the run did, instead of as many iterations. A supervised arm always does, and
    the seconds of the warm-up count."""
    is_supervised: bool = False

    @property
    def key(self) -> str:
        """Prefix of its metrics in `summary.json`, and the name of its stage."""
        return f"arms.{self.name}"

    def settings(self, config: AnyConfig) -> AnyConfig:
        """Returns the settings of the arm. Rewards and the episodes that count stay the run's, also if the arm has another
        `training.algorithm`. Raises `SettingsError` if the settings contradict each other."""
        kept = {key: getattr(config.training, key) for key in _KEPT}
        try:
            return config.merged({**self.changes, "training": {**kept, **self.changes.get("training", {})}})
        except SettingsError as error:
            raise SettingsError(f"control arm {self.name!r}: {error}") from None


_AS_RFT = {"training": {"algorithm": "rft", "teacher": ""}}
_RFT = "rejection-sampling fine-tuning, as many"
RFT_ARMS = (
    ControlArm(name="rft", title=f"{_RFT} episodes", changes=_AS_RFT),
    ControlArm(name="rft_seconds", title=f"{_RFT} seconds", changes=_AS_RFT, same_seconds=True),
)
"""Rejection-sampling fine-tuning (preset `rft`, arXiv 2304.06767) from the same warm-up. Every recipe has these arms."""


def effort(run: RunFolder, stage: str, unit: str = "num_iters") -> dict[str, float]:
    """Returns `train_seconds` and the number of iterations or steps (`unit`) of a stage, without validation and checkpoints."""
    return {"train_seconds": run.num_seconds(stage), unit: sum(row["stage"] == stage for row in run.metrics.read())}


def clean_arm(section: str, habits: Mapping[str, Any]) -> ControlArm:
    """Returns the arm that learns only from clean demonstrations: the warm-up's, with these settings of `section`."""
    return ControlArm(name="clean", title="clean demonstrations, no RL", changes={section: habits}, is_supervised=True)


def chosen_arms(
    names: Sequence[str], known: Sequence[ControlArm], config: RecipeConfig, has_own_warmup: bool
) -> list[ControlArm]:
    """Returns the arms of these names, each once, in this order.

    Raises `SettingsError` for an unknown name, with the names that exist; for an arm whose settings contradict each other; and
    for a supervised arm in a run without a warm-up of its own, whose seconds it would train for.
    """
    by_name = {arm.name: arm for arm in known}
    for name in names:
        if name not in by_name:
            raise SettingsError(f"evaluation.control_arms: unknown arm {name!r}. {near_names(name, by_name)}")
        if by_name[name].is_supervised and not has_own_warmup:
            raise SettingsError(
                f"evaluation.control_arms: {name!r} starts before the warm-up and trains for its seconds, too, and this run has "
                "no warm-up; leave the arm out, or use --stage all with steps of supervised learning"
            )
        by_name[name].settings(config)
    return [by_name[name] for name in dict.fromkeys(names)]


def print_results(console: Console, summary: Mapping[str, Any], arms: Sequence[str]) -> None:
    """Prints the metrics that were measured, in per cent; nothing if nothing was evaluated. `arms`: names of control arms."""
    columns = {"before": "before RL", "after": "after RL" if "before.exact_match" in summary else "this policy"}
    columns |= {f"arms.{name}": name for name in arms}
    measured = [prefix for prefix in columns if f"{prefix}.exact_match" in summary]
    lines = [
        (label, *(_cell(summary.get(f"{prefix}.{metric}")) for prefix in measured))
        for metric, label, _ in ARMS
        if any(f"{prefix}.{metric}" in summary for prefix in measured)
    ]
    if lines:
        console.table("Held-out questions", ("", *(columns[prefix] for prefix in measured)), lines)


def _cell(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.1%}"
