"""The guard of a policy that its updates do not change; and the settings that prevent a change, which the doctor reads, too."""

from __future__ import annotations

import math
from collections.abc import Iterator

from midthought.guards.finding import Finding, by_evidence
from midthought.guards.history import History, Row, step_of, value
from midthought.guards.registry import LOWER_LEARNING_RATE, guard

MIN_CHANGE = 5e-8
"""Relative change of the weights per step. The smallest learning rates in use, 1e-7, change them by 4e-7 to 5e-6."""
MAX_CHANGE = 0.1
MIN_STEP = 1e-3
"""Change of a weight per step, relative to the peak learning rate. AdamW's is 0.1 to 1."""
USUAL_WEIGHT = 0.02
"""Size of a trained matrix' weights, if it is not known."""
NUM_ITERS = 5
MIN_ITERS = 3
"""The same in a run that has ended."""


@guard("policy_unchanged")
def policy_unchanged(history: History) -> Iterator[Finding]:
    """None of the updates so far has changed the policy, although the rewards differ."""
    rows = [row for row in history.iterations if "weight_change" in row and value(row, "reward/std") > 0]
    if len(rows) < (MIN_ITERS if history.is_over else NUM_ITERS) or not all(_is_still(row) for row in rows):
        return
    change, size = (max(value(row, name) for row in rows) for name in ("weight_change", "step_size"))
    yield Finding(
        observation=f"none of the {len(rows)} updates so far has changed the policy: a step changes its weights by "
        f"{change:.2g} of their size, and by {size:.2g} of the learning rate (usual: 0.1 to 1)",
        start_step=step_of(rows[0]),
        causes=hindrances(history, value(rows[-1], "learning_rate")),
        action="Change the setting that the first cause names; weight_change (usual: 1e-6 to 1e-2) and step_size in the metrics "
        "show whether it helps",
    )


@guard("steps_too_large", rollback=LOWER_LEARNING_RATE)
def steps_too_large(history: History) -> Iterator[Finding]:
    """One step changes a tenth of the weights' size, which no pretrained policy survives. Adapters, which begin with factors of 0
    and are small beside the weights that they change, are not judged."""
    row = history.iterations[-1]
    if not history.setting("model.lora_rank", 0) and value(row, "weight_change") > MAX_CHANGE:
        rate = history.setting("training.learning_rate", value(row, "learning_rate"))
        yield Finding(
            observation=f"a step changes the weights by {value(row, 'weight_change'):.2g} of their size (usual: 1e-6 to 1e-2)",
            start_step=step_of(row),
            causes=(f"steps that are too large: training.learning_rate={rate:g}",),
            action="Lower training.learning_rate, and start again or from a checkpoint before",
        )


def _is_still(row: Row) -> bool:
    return value(row, "weight_change") < MIN_CHANGE or value(row, "step_size") < MIN_STEP


def hindrances(history: History, rate: float, num_weights: float = 1e6, *, is_planned: bool = False) -> tuple[str, ...]:
    """Returns the settings that keep the policy as it is, the most likely first.

    `rate`: the mean learning rate, after its schedule. `num_weights`: the trained ones. `is_planned`: only the causes for which a
    setting is evidence, before a run.
    """
    peak = history.setting("training.learning_rate", rate)
    limit, epsilon = history.setting("training.max_grad_norm", 1.0), history.setting("training.adam_epsilon", 1e-8)
    gradient = min(limit, 1.0) / math.sqrt(num_weights)
    is_lost = gradient / (gradient + epsilon) < MIN_STEP
    is_half = history.setting("model.dtype", "float32") != "float32" and not history.setting(
        "training.master_weights", True
    )
    schedule = history.setting("training.lr_schedule", "constant")
    return by_evidence(
        (peak / USUAL_WEIGHT < MIN_CHANGE, f"the learning rate is too small: training.learning_rate={peak:g}"),
        (
            rate < 0.05 * peak,
            f"the schedule keeps the learning rate near 0: training.warmup_steps={history.setting('training.warmup_steps', 0)}, "
            f"training.lr_schedule={schedule}",
        ),
        (is_lost and epsilon <= 1e-6, f"gradients are clipped to nothing: training.max_grad_norm={limit:g}"),
        (is_lost and epsilon > 1e-6, f"gradients are far below AdamW's epsilon: training.adam_epsilon={epsilon:g}"),
        (is_half and not is_planned, "steps are lost in rounding: training.master_weights=false in half precision"),
        (
            False if is_planned else None,
            "the trained weights do not reach the answer: frozen parameters (requires_grad=False), a trained part that the "
            "model does not use, adapters with scale 0",
        ),
    )
