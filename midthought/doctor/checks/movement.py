"""Check of the settings and of the weights that learn: an update changes the policy. It takes no step."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from midthought.doctor.registry import check
from midthought.doctor.setup import Setup
from midthought.guards.finding import Finding
from midthought.guards.history import History
from midthought.guards.movement import hindrances
from midthought.learning.lr_schedule import TrainingSchedule, learning_rate_factor

MIN_TRAINED_SHARE = 1e-3
"""Share of the weights that learn, without adapters. A single layer of a large model has more."""
MAX_KL_COEF = 1.0
"""The usual ones are 0.001 to 0.1."""


@check("movement", is_fast=True)
def movement(setup: Setup) -> Iterator[Finding]:
    """Learning rate, schedule, clipping and adapters let the policy change, and its weights learn."""
    training = setup.config.training
    weights = _weights_of(setup.parts.model)
    trained = sum(number for number, learns in weights if learns)
    num_iters = training.num_iters(len(setup.all_tasks) or None)
    schedule = TrainingSchedule.from_config(training, num_iters)
    steps = range(0, schedule.total_steps or 1, max(1, (schedule.total_steps or 1) // 100))
    factor = fmean(learning_rate_factor(step, training, schedule.total_steps) for step in steps)
    history = History(setup.config.to_dict())
    causes = hindrances(history, factor * training.peak_learning_rate, max(trained, 1), is_planned=True)
    if causes:
        yield Finding(
            observation=f"the policy cannot change in the {schedule.total_steps} steps of this run",
            causes=causes,
            action="change the setting that the first cause names; the defaults train (docs/settings.md)",
        )
    total = sum(number for number, _ in weights)
    if trained < MIN_TRAINED_SHARE * total and not hasattr(setup.parts.model, "peft_config"):
        yield Finding(
            subject="frozen",
            observation=f"{trained:,} of the {total:,} weights of the policy learn ({trained / total:.2g} of them)",
            causes=("frozen parameters (requires_grad=False)",),
            action="model.requires_grad_(True), or adapters: model.lora_rank",
        )
    for name in ("kl_coef", "kl_loss_coef"):
        if (coefficient := getattr(training, name)) > MAX_KL_COEF:
            yield Finding(
                subject=name,
                observation=f"with training.{name}={coefficient:g}, a KL divergence of 0.1 nats per token costs "
                f"{0.1 * coefficient:g} per token, which holds the policy at the reference",
                causes=(f"training.{name} is too large (usual: 0.001 to 0.1)",),
                action=f"lower training.{name}",
            )


def _weights_of(policy: Any) -> list[tuple[int, bool]]:
    """Returns number of weights and whether they learn, for each parameter; none if the policy is not in this process."""
    return [(each.numel(), each.requires_grad) for each in policy.parameters()] if hasattr(policy, "parameters") else []
