"""Guards of right answers: the reward does not judge them, none is right, or they are lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from midthought.guards.finding import Finding, by_evidence
from midthought.guards.history import (
    History,
    Row,
    broke_down,
    episodes_per_task,
    mean_of,
    step_of,
    too_hot,
    total,
    value,
)
from midthought.guards.registry import LOWER_LEARNING_RATE, guard
from midthought.guards.rewards import (
    MATCH_ERRORS,
    MAX_NOISE,
    MIN_EQUAL_ITERS,
    MIN_MATCH_DROP,
    best_reward,
    never_right,
    parts_of,
)
from midthought.report.run_record import JUDGING_PARTS

MIN_JUDGED, NUM_JUDGED, MAX_JUDGED = 3, 5, 20
"""Iterations whose rewards are compared with the right answers; the run must have `NUM_JUDGED`."""
MIN_ANSWERS, MIN_REPEATED = 2, 8
"""Right answers, and wrong ones, that are compared; episodes with the prompt or the text of another one."""
COUNT = "episode/count"
TOP_SHARE = 0.9
MIN_EPISODES = 32
"""Episodes without a right answer that are reported, after `NUM_JUDGED` iterations twice."""
LOST_ERRORS = 4.0
"""Smallest fall of the share of right answers in training, in standard errors. It is compared after every iteration."""
GROWS = "the reward grows with the length of the text"
JUDGED_PARTS = {f"reward/{name}" for name in JUDGING_PARTS}


@guard("reward_misjudges")
def reward_misjudges(history: History) -> Iterator[Finding]:
    """The reward does not follow the right answers: it is random, wrong answers earn more, it is the length or depends on the
    prompt alone, or nearly all episodes earn the same highest reward from the start."""
    rows = history.iterations[-MAX_JUDGED:]
    if len(rows) < (MIN_EQUAL_ITERS if history.is_over else NUM_JUDGED):
        return
    parts = ", ".join(name.removeprefix("reward/") for name in parts_of(rows)) or "reward function"
    noise = _variance_among(rows, "same_text")
    if noise > max(MAX_NOISE**2, *(0.5 * value(row, "reward/std") ** 2 for row in history.iterations)):
        yield _found(
            rows,
            "noise",
            f"episodes with the same prompt and the same text earn rewards that differ by {math.sqrt(noise):.3g} (standard "
            "deviation), as much as all others",
            (f"the reward is random: it does not depend on the text ({parts})", "a judge with a high temperature"),
        )
        return
    for part in (rows, rows[-NUM_JUDGED:], rows[-MIN_JUDGED:]):
        right, num_right, wrong, num_wrong = _earned(part)
        variance, by_length = _variance(part), _share_of_length(part)
        if min(num_right, num_wrong) < MIN_ANSWERS:
            continue
        count = num_right + num_wrong
        by_right = num_right * num_wrong / count**2 * (wrong - right) ** 2 / variance if variance else 0.0
        error = MATCH_ERRORS * math.sqrt(variance * episodes_per_task(history) * (1 / num_right + 1 / num_wrong))
        is_length = by_length > max(0.5, by_right)
        is_prompt = variance > 0 and _variance_among(part, "same_prompt") <= MAX_NOISE * variance and by_right < 0.5
        is_worse = wrong - right > max(error, MAX_NOISE * max(1.0, abs(wrong)))
        if is_worse or (part is rows and (is_prompt or (by_length > TOP_SHARE and is_length and wrong >= right))):
            yield _found(
                part,
                "wrong answers",
                f"wrong answers earn {wrong:.3g} ({num_wrong:.0f} of them), and right ones {right:.3g} ({num_right:.0f})",
                by_evidence(
                    (is_length, f"{GROWS}, which explains {by_length:.0%} of its variance ({parts})"),
                    (is_prompt, f"the reward depends on the prompt and not on the answer ({parts})"),
                    (None, f"the sign of the reward: a negative weight, a comparison the wrong way round ({parts})"),
                    (None, "the reward compares with another answer than the task's"),
                ),
            )
            return
    right, num_right, wrong, num_wrong = _earned(rows)
    is_paid = not num_right or (num_wrong >= NUM_JUDGED and wrong > 0.5 * right)
    if is_paid and len(rows) == len(history.iterations) and not JUDGED_PARTS.intersection(parts_of(rows)):
        yield from _content(rows, parts, num_wrong / (num_right + num_wrong) if num_right else math.nan)


def _found(rows: Sequence[Row], subject: str, observation: str, causes: Sequence[str]) -> Finding:
    return Finding(
        observation=f"{observation}, in the last {len(rows)} iterations",
        start_step=step_of(rows[0]),
        subject=subject,
        causes=causes,
        action="Let the right answer earn the most; midthought doctor compares right and wrong answers before a run",
    )


def _content(rows: Sequence[Row], parts: str, wrong: float) -> Iterator[Finding]:
    """Reports a reward that is content with every answer. `wrong`: the share of wrong answers; NaN if it is not known."""
    is_top = all(mean_of(part, "episode/top_reward") >= TOP_SHARE for part in (rows[:MIN_EQUAL_ITERS], rows))
    best = best_reward(rows)
    if not is_top or best <= 0 or any(value(row, "reward/mean") < TOP_SHARE * best for row in rows):
        return
    is_known, is_flat = math.isfinite(wrong), mean_of(rows, "reward/std") <= MAX_NOISE
    yield Finding(
        observation=f"{mean_of(rows, 'episode/top_reward'):.0%} of the episodes earn the highest reward from the first iteration "
        f"on (mean {mean_of(rows, 'reward/mean'):.3g})"
        + (f", although {wrong:.0%} of the answers are wrong" if is_known else ""),
        start_step=step_of(rows[0]),
        subject="highest reward",
        causes=by_evidence(
            (_share_of_length(rows) > 0.5, f"{GROWS} ({parts})"),
            (
                None,
                f"the reward, or its judge, is content with nearly every answer ({parts})"
                + (", or measures what all of these texts share (length, form)" if is_flat else ""),
            ),
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
    size = episodes_per_task(history)  # samples of a task are alike
    num = [max(1.0, total(rows, COUNT) / size) for rows in (before, now)]
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
                f"the reward can be earned without a right answer ({', '.join(parts_of(now)) or 'reward function'})",
            ),
            (is_broken or rise <= 0, breakdown),
            (None, "later tasks are harder than the first ones"),
        ),
        action="Read episodes with wrong answers (trajectories.jsonl), correct the reward or lower training.learning_rate, and "
        f"go on from a checkpoint before iteration {start}",
    )


@guard("never_right")
def no_right_answer(history: History) -> Iterator[Finding]:
    """None of the first answers is right, or far fewer than if the answers were dealt to the tasks at random. A reward that
    varies and does not compare with the answer, for example one of a summary with a reference, may have another aim."""
    rows = history.iterations[:MAX_JUDGED]
    is_known = all("episode/right" in row for row in rows)
    if not is_known or len(rows) < 2 * NUM_JUDGED or total(rows, COUNT) < MIN_EPISODES:
        return
    varies = any(value(row, "reward/std") > MAX_NOISE for row in rows)
    if varies and not JUDGED_PARTS.intersection(parts_of(rows)):
        return
    num_right, why = total(rows, COUNT, "episode/right"), never_right(history, rows)
    if not num_right or any(evidence for evidence, _ in why):
        yield Finding(
            observation=f"{num_right:.0f} answers of the first {len(rows)} iterations are right",
            start_step=step_of(rows[0]),
            causes=by_evidence(
                *why,
                (None, "the tasks are too hard for the policy: no warm-up, a smaller model than they need"),
                (None, "the policy reads text of another kind: tokenizer or chat template of another model"),
            ),
            action="Compare answers and gold answers in trajectories.jsonl; midthought doctor checks both before a run",
        )


def _variance(rows: Sequence[Row]) -> float:
    """Returns the variance of all rewards."""
    count, mean = total(rows, COUNT), total(rows, COUNT, "reward/mean")
    squares = sum(total(rows, COUNT, name, name) for name in ("reward/mean", "reward/std"))
    return max(0.0, squares / count - (mean / count) ** 2) if count else 0.0


def _variance_among(rows: Sequence[Row], name: str) -> float:
    """Returns the variance of the rewards among episodes with the same prompt, or text; NaN if too few are repeated."""
    count, std = total(rows, f"episode/{name}"), f"episode/{name}_std"
    return total(rows, f"episode/{name}", std, std) / count if count >= MIN_REPEATED else math.nan


def _share_of_length(rows: Sequence[Row]) -> float:
    """Returns the share of the variance within iterations that a line over the length explains."""
    within = (COUNT, "reward/std", "reward/std")
    return total(rows, *within, "episode/reward_by_length") / (total(rows, *within) or 1.0)


def _earned(rows: Sequence[Row]) -> tuple[float, float, float, float]:
    """Returns the mean reward of right answers and their number, and the same of wrong ones."""
    right, wrong = "episode/reward_if_right", "episode/reward_if_wrong"
    num_right = total(rows, COUNT, "episode/right")
    num_wrong = total([row for row in rows if "episode/right" in row], COUNT) - num_right
    of_wrong = total(rows, COUNT, wrong) - total(rows, COUNT, "episode/right", wrong)
    of_right = total(rows, COUNT, "episode/right", right) / (num_right or math.nan)
    return of_right, num_right, of_wrong / (num_wrong or math.nan), num_wrong
