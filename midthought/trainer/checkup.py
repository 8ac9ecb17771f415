"""`Trainer.check`: describes a trainer that has not started as a `Setup`, and examines it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from midthought.checks.before import MAX_TASKS, Setup, examine
from midthought.config import RecipeConfig
from midthought.plan.choices import Choice
from midthought.rollout.local_rollouts import Rollouts
from midthought.rollout.rollout_batch import ShuffledTasks
from midthought.rollout.written import PolicyParts
from midthought.trainer.initial_policy import TrainedPolicy
from midthought.trainer.tasks import EnvironmentTasks, TrainingTasks
from midthought.types import Task

_log = logging.getLogger(__name__)

UNTAUGHT = "the model has random weights and no supervised steps behind it; call check() after sft()"


def setup_of(
    config: RecipeConfig,
    tasks: TrainingTasks,
    policy: TrainedPolicy,
    *,
    max_seq_len: int,
    choice: Choice,
    path: Path | None,
    source: Rollouts | None = None,
    why_not_sampled: str = "",
) -> Setup:
    """Returns what the checks examine."""

    def draw(count: int) -> Sequence[Task]:
        return tasks.stream.draw(0, count)

    known = tasks.stream.tasks if isinstance(tasks.stream, ShuffledTasks) else []
    step = max(1, len(known) // MAX_TASKS)
    return Setup(
        config=config,
        choice=choice,
        path=path,
        tasks=known[::step][:MAX_TASKS],
        all_tasks=known,
        held_out=tasks.held_out(MAX_TASKS) if known and tasks.has_held_out else (),
        draw=draw,
        has_replies=isinstance(tasks, EnvironmentTasks),
        source=source,
        why_not_sampled=why_not_sampled,
        policy=PolicyParts(
            model=policy.model,
            renderer=policy.renderer,
            call_format=policy.prompts.call_format,
            registry=policy.prompts.registry,
            messages=policy.prompts.messages,
            episode=tasks.episode,
            max_seq_len=max_seq_len,
        ),
    )


def examine_before_start(setup: Setup) -> None:
    """Runs the fast checks. Logs warnings; raises `SettingsError` for a finding with which the run cannot work."""
    report = examine(setup, fast_only=True)
    for finding in report.findings:
        if finding.policy != "stop":
            _log.warning("%s: %s", finding.check, finding)
    report.require_possible()
