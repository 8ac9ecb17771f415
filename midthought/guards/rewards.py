"""Guards of the rewards: no variance, collapse, and a reward that rises while held-out answers get worse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from midthought.guards.finding import Finding, by_evidence
from midthought.guards.history import (
    History,
    Row,
    broke_down,
    episodes_per_task,
    last_names,
    mean_of,
    step_of,
    too_hot,
    total,
    value,
)
from midthought.guards.registry import LOWER_LEARNING_RATE, guard

MIN_EQUAL_ITERS = 3
"""Iterations with equal rewards after which a run that has ended is called collapsed."""
MIN_MATCH_DROP = 0.1
"""Smallest fall of the held-out exact match that is reported, if the number of questions does not require a larger one."""
MATCH_ERRORS = 3.0
"""And the smallest one in standard errors of the difference of two exact matches."""
MAX_NOISE = 1e-6
"""Rewards that differ less, relative to their size or to 1, are equal: a judge's rounding errors teach nothing."""
TOO_LARGE = "Lower training.learning_rate or training.max_grad_norm, and resume from the last checkpoint"
MIN_FAILED_SHARE = 0.1
"""From this share on, failing episodes are named as the first cause of equal rewards."""
_NULL = "training.no_signal_iters=null disables this check"


@guard("no_reward_variance", policy="stop")
def no_reward_variance(history: History) -> Iterator[Finding]:
    """None of the first `training.no_signal_iters` iterations had anything to learn from; at the end of a run, none of fewer."""
    rows = history.iterations
    limit = history.setting("training.no_signal_iters", 10)
    is_short = history.is_over and len(rows) < (limit or 0)
    if limit is None or (len(rows) < limit and not is_short) or value(rows[-1], "episode/failed") == 1:
        return
    if any(_has_signal(history, number) for number in range(len(rows))):
        return
    means = [value(row, "reward/mean") for row in rows]
    is_one = all(_is_flat(row) for row in rows) and all(_equal(mean, means[0]) for mean in means)
    temperature = history.setting("inference.temperature", 1.0)
    both = [row for row in rows if {"episode/reward_if_right", "episode/reward_if_wrong"} <= row.keys()]
    rewards = f"all rewards were {means[0]:g}" if is_one else "all rewards were equal within every group"
    yield Finding(
        observation=f"none of the {len(rows)} iterations so far had anything to learn from: {rewards} (mean reward of the best "
        f"iteration: {best_reward(rows):g})",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            (
                mean_of(rows, "episode/failed") >= MIN_FAILED_SHARE,
                "episodes fail, and have no reward that could differ; the most frequent error: "
                f"{history.error or 'see trajectories.jsonl'}",
            ),
            too_hot(history, rows),
            (
                bool(both)
                and all(_equal(row["episode/reward_if_right"], row["episode/reward_if_wrong"]) for row in both),
                "the reward does not tell right answers from wrong ones: it compares another text or with another answer",
            ),
            *never_right(history, rows),
            (temperature < 0.5, f"too little exploration: inference.temperature={temperature:g}"),
            (
                None,
                "the reward does not tell these episodes apart, or the tasks are too hard or too easy for the policy",
            ),
            (None, "too few episodes per group (training.group_size)"),
            (None if temperature >= 0.5 else False, "too little exploration (inference.temperature)"),
        ),
        action="Give tasks of another difficulty, a longer warm-up (the policy never gets a better reward by chance), a reward "
        "that tells episodes apart, more episodes per group (training.group_size), or a temperature above 0 "
        f"(inference.temperature). {_NULL}",
        at_most="warn" if is_short else "rollback",
    )


def never_right(history: History, rows: Sequence[Row]) -> tuple[tuple[bool, str], ...]:
    """Returns causes for few right answers, with the evidence."""
    count, num_right = total(rows, "episode/count"), total(rows, "episode/count", "episode/right")
    by_chance = total(rows, "episode/count", "episode/right_by_chance")
    return (
        (
            not num_right and total(rows, "episode/count", "episode/nearly_right") > 0.2 * count,
            "answers hold the gold answer, or are a part of it, and do not count as right: a unit, a sentence, another form in "
            "the answer column",
        ),
        (
            by_chance - num_right > MATCH_ERRORS * math.sqrt(by_chance * episodes_per_task(history)),
            "answers are right for other tasks: gold answers belong to other rows (a shifted or sorted column)",
        ),
    )


@guard("policy_collapsed", policy="stop", rollback=LOWER_LEARNING_RATE)
def policy_collapsed(history: History) -> Iterator[Finding]:
    """All rewards of the last `training.no_signal_iters` iterations are equal and lower than before; at the end of a run, of the
    last `MIN_EQUAL_ITERS`.

    At least half of the earlier iterations must have had something to learn from, because rare rewards in small batches are often
    all equal by chance.
    """
    rows = history.iterations
    limit = history.setting("training.no_signal_iters", 10)
    if limit is None:
        return
    constant = value(rows[-1], "reward/mean")
    equal = history.streak(lambda row: _is_flat(row) and _equal(value(row, "reward/mean"), constant))
    is_short = history.is_over and MIN_EQUAL_ITERS <= len(equal) < limit
    if len(equal) < limit and not is_short:
        return
    best, num_before = best_reward(rows), len(rows) - len(equal)
    num_signal = sum(_has_signal(history, number) for number in range(len(rows)))
    if num_signal and constant < best and not math.isclose(constant, best) and 2 * num_signal >= num_before:
        yield Finding(
            observation=f"all episodes of the last {len(equal)} iterations have the same reward, {constant:g}; the best "
            f"iteration had {best:g} on average: the policy has collapsed",
            start_step=step_of(equal[0]),
            causes=by_evidence(
                too_hot(history, equal),
                *never_right(history, rows),
                (
                    _is_unchanged(history, equal[0]) and not too_hot(history, equal)[0],
                    "the reward function has failed, for example a judge that returns 0 for every error: the policy itself did "
                    f"not change in iteration {step_of(equal[0])}",
                ),
                (None, broke_down(history, equal)[1]),
                (
                    None,
                    "a reward that one constant answer gets, without a bonus for entropy (training.entropy_coef)",
                ),
            ),
            action=f"{TOO_LARGE} or from the best one. {_NULL}",
            at_most="warn" if is_short else "rollback",
        )


def _is_unchanged(history: History, row: Row) -> bool:
    """Whether the episodes of an iteration are as long as before it, and its policy as uncertain."""
    number = history.iterations.index(row)
    before = history.iterations[max(0, number - 5) : number]
    return all(
        abs(value(row, name) - mean_of(before, name)) <= 0.25 * mean_of(before, name)
        for name in ("episode/policy_tokens", "entropy")
    )


@guard("reward_hacking")
def reward_hacking(history: History) -> Iterator[Finding]:
    """The reward of training rises while the held-out exact match falls."""
    judged = [row for row in history.validations if math.isfinite(value(row, "exact_match"))]
    if len(judged) < 2:
        return
    best, last = max(judged[:-1], key=lambda row: row["exact_match"]), judged[-1]
    high, low = best["exact_match"], last["exact_match"]
    count = history.setting("training.num_validation_questions", 100)
    errors = math.sqrt((high * (1 - high) + low * (1 - low)) / count)
    before, now = _around(history, best), _around(history, last)
    rise = mean_of(now, "reward/mean") - mean_of(before, "reward/mean")
    if high - low < max(MIN_MATCH_DROP, MATCH_ERRORS * errors) or not rise > 0:
        return
    risen = {name: mean_of(now, name) - mean_of(before, name) for name in parts_of(now)}
    name = max(risen, key=lambda key: risen[key], default="reward/mean")
    yield Finding(
        observation=f"the mean reward rose by {rise:.3g} from iteration {step_of(best)} to {step_of(last)}, while the held-out "
        f"exact match fell from {high:.3g} to {low:.3g}",
        start_step=step_of(best),
        causes=(
            f"the reward can be earned without a right answer: {name} rose most, by {risen.get(name, rise):.3g}",
            "the policy learns the training tasks by heart: too few of them, or too many epochs",
            "held-out questions are of another kind than the training tasks",
        ),
        action=f"Read episodes with a high reward and a wrong answer (trajectories.jsonl); lower the weight of "
        f"{name.removeprefix('reward/')}, pay it only with a right answer, and go on from the checkpoint of iteration "
        f"{step_of(best)} or before",
    )


def parts_of(rows: Sequence[Row]) -> list[str]:
    """Returns the metrics of the parts of the reward."""
    whole = ("reward/mean", "reward/std")
    names = [name for name in last_names(rows) if name.startswith("reward/") and name not in whole]
    return [name for name in names if math.isfinite(value(rows[-1], name))]


def _around(history: History, validation: Row, count: int = 5) -> list[Row]:
    """Returns up to `count` iterations before a validation; if it was before the first iteration, that one, which has the same
    weights."""
    return [row for row in history.iterations if step_of(row) <= max(step_of(validation), 1)][-count:]


def _has_signal(history: History, number: int) -> bool:
    """Whether iteration `number` (from 0) had something to learn from: episodes, a gradient, and rewards that differ, in it or
    from the rewards of the iteration before."""
    rows = history.iterations
    row = rows[number]
    is_constant = _is_flat(row)
    if is_constant and number:
        before = rows[number - 1]
        is_constant = _is_flat(before) and _equal(value(row, "reward/mean"), value(before, "reward/mean"))
    by_time = row.keys() & {"reward/turns", "reward/per_call"} and history.setting("training.gamma", 1.0) < 1
    has_gradient = row.get("grad_norm") != 0
    return bool(row.get("batch/num_episodes", 1)) and has_gradient and (not is_constant or bool(by_time))


def _is_flat(row: Row) -> bool:
    """Whether all rewards of an iteration are equal, and no teacher gives another signal."""
    mean, std = value(row, "reward/mean"), value(row, "reward/std")
    return std <= MAX_NOISE * max(1.0, abs(mean)) and "kl_teacher" not in row


def _equal(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=MAX_NOISE, abs_tol=MAX_NOISE)


def best_reward(rows: Sequence[Row]) -> float:
    """Returns the highest mean reward of an iteration."""
    return max((mean for row in rows if not math.isnan(mean := value(row, "reward/mean"))), default=-math.inf)
