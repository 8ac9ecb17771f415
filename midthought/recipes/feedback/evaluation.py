"""Evaluation metrics: accuracy at the first try and at the end, call rates, corrected and spoiled answers. Reads only rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from midthought.recipes.feedback.rounds import Round
from midthought.recipes.metrics import wilson_interval
from midthought.types import Trajectory

RETRY_ONLY = "none"
"""The critic of the retry-only arm."""


def feedback_metrics(episodes: Sequence[Sequence[Round]], max_rounds: int) -> dict[str, float]:
    """Returns the metrics of one arm: shares of all episodes unless noted otherwise, NaN if there is no case.

    | key | share |
    | --- | --- |
    | exact_match, first_try | right at the end; at the first try |
    | feedback_used | at least one call |
    | call_rate_needed, call_rate_needless | of first answers that were wrong (right): with a call about it |
    | goes_on_after_right | of episodes with an answer confirmed as right: another call after it |
    | calls_after_right | calls per episode in turns after an answer was confirmed as right |
    | wrong_to_right, right_to_wrong, still_wrong | with a call: change from the first to the last answer |
    | wrong_unasked | wrong at the end without a call |
    | accuracy_at.K | right if the episode had ended with round K |
    """
    asked = [rounds for rounds in episodes if any(each.num_asks for each in rounds)]
    wrong_first = [rounds for rounds in episodes if not _right(rounds[:1])]
    right_first = [rounds for rounds in episodes if _right(rounds[:1])]
    told_right = [rounds for rounds in episodes if any(each.told_right for each in rounds)]
    share = _share_of(len(episodes))
    metrics = {
        "exact_match": share(sum(map(_right, episodes))),
        "first_try": share(len(right_first)),
        "feedback_used": share(len(asked)),
        "call_rate_needed": _share_of(len(wrong_first))(sum(_asks_first(rounds) for rounds in wrong_first)),
        "call_rate_needless": _share_of(len(right_first))(sum(_asks_first(rounds) for rounds in right_first)),
        "goes_on_after_right": _share_of(len(told_right))(sum(_asks_after_right(rounds) > 0 for rounds in told_right)),
        "calls_after_right": share(sum(map(_asks_after_right, episodes))),
        "wrong_to_right": share(sum(not _right(rounds[:1]) and _right(rounds) for rounds in asked)),
        "right_to_wrong": share(sum(_right(rounds[:1]) and not _right(rounds) for rounds in asked)),
        "still_wrong": share(sum(not _right(rounds[:1]) and not _right(rounds) for rounds in asked)),
        "wrong_unasked": share(
            sum(not _right(rounds) for rounds in episodes) - sum(not _right(rounds) for rounds in asked)
        ),
        "calls_per_question": share(sum(each.num_asks for rounds in episodes for each in rounds)),
    }
    for number in range(1, max_rounds + 1):
        metrics[f"accuracy_at.{number}"] = share(sum(_right(rounds[:number]) for rounds in episodes))
    for key in ("exact_match", "first_try"):
        low, high = wilson_interval(metrics[key], len(episodes))
        metrics |= {f"{key}.low": low, f"{key}.high": high}
    return metrics


def metrics_by_label(done: Sequence[Trajectory], episodes: Sequence[Sequence[Round]], label: str) -> dict[str, float]:
    """Returns the accuracy at the first try and at the end for every value of a label; empty if no task has the label."""
    metrics: dict[str, float] = {}
    for value in sorted({str(each.task.labels[label]) for each in done if label in each.task.labels}):
        own = [rounds for each, rounds in zip(done, episodes, strict=True) if str(each.task.labels.get(label)) == value]
        share = _share_of(len(own))
        metrics[f"first_try_of.{value}"] = share(sum(_right(rounds[:1]) for rounds in own))
        metrics[f"exact_match_of.{value}"] = share(sum(map(_right, own)))
    return metrics


def gains(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Returns the trained policy's gains from feedback, as far as they were measured.

    `gain.over_first_try`, `gain.over_retry_only` (same policy; feedback says only that the answer is wrong), `gain.over_wrong`
    (incorrect feedback), `gain.over_sft` (final accuracy), `gain.first_try_over_sft` (negative: first answers got worse).
    """
    pairs = {
        "over_first_try": ("after.exact_match", "after.first_try"),
        "over_retry_only": ("after.exact_match", f"after.{RETRY_ONLY}.exact_match"),
        "over_wrong": ("after.exact_match", "after.wrong.exact_match"),
        "over_sft": ("after.exact_match", "before.exact_match"),
        "first_try_over_sft": ("after.first_try", "before.first_try"),
    }
    found = {name: (metrics.get(one), metrics.get(other)) for name, (one, other) in pairs.items()}
    return {
        f"gain.{name}": one - other for name, (one, other) in found.items() if one is not None and other is not None
    }


def _right(rounds: Sequence[Round]) -> bool:
    return bool(rounds) and rounds[-1].is_right


def _asks_first(rounds: Sequence[Round]) -> bool:
    return bool(rounds) and rounds[0].num_asks > 0


def _asks_after_right(rounds: Sequence[Round]) -> int:
    told = next((place for place, each in enumerate(rounds) if each.told_right), len(rounds))
    return sum(each.num_asks for each in rounds[told + 1 :])


def _share_of(whole: int) -> Callable[[int], float]:
    return lambda part: part / whole if whole else math.nan
