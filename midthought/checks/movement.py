"""Whether updates change the policy: by the settings before a run, and by the change of the weights during it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

from midthought.checks.monitor import History, step_of, value
from midthought.checks.registry import Finding, check
from midthought.checks.setup import Setup
from midthought.learning.lr_schedule import TrainingSchedule, learning_rate_factor

MIN_TRAINED_SHARE, MAX_KL_COEF = 1e-3, 1.0
"""Share of the weights that learn, without adapters (a single layer of a large model has more); coefficient of a KL penalty."""
MIN_CHANGE, MAX_CHANGE = 5e-8, 0.1
"""Relative change of the weights per step. The smallest learning rates in use, 1e-7, change them by 4e-7 to 5e-6; a tenth no
pretrained policy survives. Adapters, which are small beside the weights that they change, are not judged by the latter."""
MIN_STEP, USUAL_WEIGHT = 1e-3, 0.02
"""Change of a weight per step, relative to the peak learning rate (AdamW's is 0.1 to 1); size of a trained matrix' weights."""


@check("movement", "fit")
def movement(setup: Setup) -> Iterator[Finding]:
    """Learning rate, schedule, clipping and KL penalty let the policy change, and its weights learn."""
    training, policy = setup.config.training, setup.parts.model
    weights = [(p.numel(), p.requires_grad) for p in policy.parameters()] if hasattr(policy, "parameters") else []
    trained, total = sum(number for number, learns in weights if learns), sum(number for number, _ in weights)
    schedule = TrainingSchedule.from_config(training, training.num_iters(len(setup.all_tasks) or None))
    steps = range(0, schedule.total_steps or 1, max(1, (schedule.total_steps or 1) // 100))
    factor = fmean(learning_rate_factor(step, training, schedule.total_steps) for step in steps)
    history = History(setup.config.to_dict())
    if name := hindrance(history, factor * training.peak_learning_rate, max(trained, 1)):
        observation = f"{name}={history.setting(name)} keeps the policy as it is in all {schedule.total_steps} steps"
        yield Finding(observation, f"leave {name} at its default")
    if trained < MIN_TRAINED_SHARE * total and not hasattr(policy, "peft_config"):
        remedy = "call model.requires_grad_(True), or train adapters (model.lora_rank)"
        yield Finding(f"{trained:,} of the {total:,} weights of the policy learn", remedy, "frozen")
    for name in ("kl_coef", "kl_loss_coef"):
        if (coefficient := getattr(training, name)) > MAX_KL_COEF:
            yield Finding(
                f"training.{name}={coefficient:g}, and usual are 0.001 to 0.1", f"lower training.{name}", name
            )


@check("policy_unchanged", "iteration")
def policy_unchanged(history: History) -> Iterator[Finding]:
    """Updates change the policy if the rewards differ, and not by a tenth of its size."""
    last = history.iterations[-1]
    if not history.setting("model.lora_rank", 0) and value(last, "weight_change") > MAX_CHANGE:
        observation = f"a step changes the weights by {value(last, 'weight_change'):.2g} of their size"
        yield Finding(
            observation, "lower training.learning_rate, and start again", "large steps", start_step=step_of(last)
        )
    rows = [row for row in history.iterations if "weight_change" in row and value(row, "reward/std") > 0]
    if len(rows) < 5:
        return
    if all(value(row, "weight_change") < MIN_CHANGE or value(row, "step_size") < MIN_STEP for row in rows):
        name = hindrance(history, value(rows[-1], "learning_rate"))
        observation = f"none of the {len(rows)} updates so far has changed the policy"
        observation += f": {name}={history.setting(name)}" if name else ""
        remedy = f"leave {name} at its default" if name else "train weights that the answer depends on (requires_grad)"
        yield Finding(observation, remedy, start_step=step_of(rows[0]))


def hindrance(history: History, rate: float, num_weights: float = 1e6) -> str:
    """Returns the setting that keeps the policy as it is; empty if none does.

    `rate`: the mean learning rate, after its schedule. `num_weights`: the trained ones.
    """
    peak = history.setting("training.learning_rate", rate)
    limit, epsilon = history.setting("training.max_grad_norm", 1.0), history.setting("training.adam_epsilon", 1e-8)
    gradient = min(limit, 1.0) / math.sqrt(num_weights)
    if peak / USUAL_WEIGHT < MIN_CHANGE:
        return "training.learning_rate"
    if rate < 0.05 * peak:
        return "training.warmup_steps"
    is_lost = gradient / (gradient + epsilon) < MIN_STEP
    return ("training.max_grad_norm" if epsilon <= 1e-6 else "training.adam_epsilon") if is_lost else ""
