"""Guards of the rewards: no variance, collapse, and a reward that rises while held-out answers get worse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

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
    value,
)
from midthought.guards.registry import LOWER_LEARNING_RATE, guard
from midthought.report.run_record import JUDGING_PARTS

MIN_EQUAL_ITERS = 3
"""Iterations with equal rewards after which a run that has ended is called collapsed."""
MIN_MATCH_DROP = 0.1
"""Smallest fall of the held-out exact match that is reported, if the number of questions does not require a larger one."""
MATCH_ERRORS = 3.0
"""And the smallest one in standard errors of the difference of two exact matches."""
MAX_NOISE = 1e-6
"""Rewards that differ less, relative to their size or to 1, are equal: a judge's rounding errors teach nothing."""
TOO_LARGE = "Lower training.learning_rate or training.max_grad_norm, and resume from the last checkpoint"
NUM_JUDGED, MAX_JUDGED = 5, 20
"""Iterations whose rewards are compared with the right answers: at least, at most."""
MIN_ANSWERS = 8
"""Right answers, and wrong ones, that are compared."""
TOP_SHARE = 0.9
LOST_ERRORS = 4.0
"""Smallest fall of the share of right answers in training, in standard errors. It is compared after every iteration."""
JUDGED_PARTS = {f"reward/{name}" for name in JUDGING_PARTS}
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
        f"iteration: {_best(rows):g})",
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
    best, num_before = _best(rows), len(rows) - len(equal)
    num_signal = sum(_has_signal(history, number) for number in range(len(rows)))
    if num_signal and constant < best and not math.isclose(constant, best) and 2 * num_signal >= num_before:
        yield Finding(
            observation=f"all episodes of the last {len(equal)} iterations have the same reward, {constant:g}; the best "
            f"iteration had {best:g} on average: the policy has collapsed",
            start_step=step_of(equal[0]),
            causes=by_evidence(
                too_hot(history, equal),
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
    risen = {name: mean_of(now, name) - mean_of(before, name) for name in _parts(now)}
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


@guard("reward_misjudges")
def reward_misjudges(history: History) -> Iterator[Finding]:
    """Wrong answers earn more than right ones; or from the start nearly all episodes earn the same highest reward, although many
    answers are wrong, or it is not known whether they are right."""
    rows = history.iterations[-MAX_JUDGED:]
    if len(rows) < (MIN_EQUAL_ITERS if history.is_over else NUM_JUDGED):
        return
    right, num_right = _earned(rows, "episode/reward_if_right", lambda row: value(row, "episode/right"))
    wrong, num_wrong = _earned(rows, "episode/reward_if_wrong", lambda row: 1 - value(row, "episode/right"))
    parts = ", ".join(name.removeprefix("reward/") for name in _parts(rows)) or "reward function"
    if min(num_right, num_wrong) >= MIN_ANSWERS:
        error = MATCH_ERRORS * mean_of(rows, "reward/std")
        error *= math.sqrt(episodes_per_task(history) * (1 / num_right + 1 / num_wrong))
        if wrong - right > max(error, MAX_NOISE * max(1.0, abs(wrong))):
            yield Finding(
                observation=f"wrong answers earn {wrong:.3g} ({num_wrong:.0f} of them), and right ones {right:.3g} "
                f"({num_right:.0f}), in the last {len(rows)} iterations",
                start_step=step_of(rows[0]),
                subject="wrong answers",
                causes=(
                    f"the sign of the reward: a negative weight, or a comparison that is the wrong way round ({parts})",
                    "the reward compares with another answer than the task's",
                ),
                action="Let the right answer earn the most; midthought doctor compares right and wrong answers before a run",
            )
            return
    is_paid = not num_right or (num_wrong >= MIN_ANSWERS and wrong > 0.5 * right)
    if is_paid and len(rows) == len(history.iterations) and not JUDGED_PARTS.intersection(_parts(rows)):
        yield from _content(rows, parts, num_wrong / (num_right + num_wrong) if num_right else math.nan)


def _content(rows: Sequence[Row], parts: str, wrong: float) -> Iterator[Finding]:
    """Reports a reward that is content with every answer. `wrong`: the share of wrong answers; NaN if it is not known."""
    is_top = all(mean_of(part, "episode/top_reward") >= TOP_SHARE for part in (rows[:MIN_EQUAL_ITERS], rows))
    best = _best(rows)
    if not is_top or best <= 0 or any(value(row, "reward/mean") < TOP_SHARE * best for row in rows):
        return
    is_known = math.isfinite(wrong)
    yield Finding(
        observation=f"{mean_of(rows, 'episode/top_reward'):.0%} of the episodes earn the highest reward from the first iteration "
        f"on (mean {mean_of(rows, 'reward/mean'):.3g})"
        + (f", although {wrong:.0%} of the answers are wrong" if is_known else ""),
        start_step=step_of(rows[0]),
        subject="highest reward",
        causes=by_evidence(
            (None, f"the reward, or its judge, is content with nearly every answer ({parts})"),
            (False if is_known else None, "the tasks are too easy for the policy"),
        ),
        action="Give the judge wrong answers and see that it rejects them; ask for finer grades, or compare with a known answer",
    )


@guard("right_answers_lost", rollback=LOWER_LEARNING_RATE)
def right_answers_lost(history: History) -> Iterator[Finding]:
    """Half of the right answers of training are gone, compared with the iterations before."""
    now, before = history.iterations[-NUM_JUDGED:], history.iterations[:-NUM_JUDGED][-MAX_JUDGED:]
    high, low = (mean_of(rows, "episode/right") for rows in (before, now))
    share = mean_of([*before, *now], "episode/right")
    num = [max(1.0, _count(rows) / episodes_per_task(history)) for rows in (before, now)]  # samples of a task are alike
    error = math.sqrt(share * (1 - share) * (1 / num[0] + 1 / num[1]))
    if len(before) < NUM_JUDGED or not (low < 0.5 * high and high - low > max(MIN_MATCH_DROP, LOST_ERRORS * error)):
        return
    rise = mean_of(now, "reward/mean") - mean_of(before, "reward/mean")
    is_broken, breakdown = broke_down(history, now)
    start = next((step_of(row) for row in now if value(row, "episode/right") < 0.5 * high), history.step)
    yield Finding(
        observation=f"{low:.0%} of the last {len(now)} iterations' answers are right, {high:.0%} in the {len(before)} before; "
        f"the mean reward changed by {rise:.3g}",
        start_step=start,
        causes=by_evidence(
            too_hot(history, now),
            (
                rise > 0,
                f"the reward can be earned without a right answer ({', '.join(_parts(now)) or 'reward function'})",
            ),
            (is_broken or rise <= 0, breakdown),
            (None, "later tasks are harder than the first ones"),
        ),
        action="Read episodes with wrong answers (trajectories.jsonl), correct the reward or lower training.learning_rate, and "
        f"go on from a checkpoint before iteration {start}",
    )


def _count(rows: Sequence[Row]) -> float:
    return math.fsum(value(row, "episode/count") for row in rows)


def _earned(rows: Sequence[Row], name: str, share: Callable[[Row], float]) -> tuple[float, float]:
    """Returns the mean of a reward over all episodes of which `share` gives the part, and their number."""
    found = [(value(row, name), value(row, "episode/count") * share(row)) for row in rows if share(row) > 0]
    number = math.fsum(count for _, count in found)
    return (math.fsum(mean * count for mean, count in found) / number if number else math.nan), number


def _parts(rows: Sequence[Row]) -> list[str]:
    """Returns the metrics of the parts of the reward."""
    whole = ("reward/mean", "reward/std", "reward/greedy")
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


def _best(rows: Sequence[Row]) -> float:
    return max((mean for row in rows if not math.isnan(mean := value(row, "reward/mean"))), default=-math.inf)
