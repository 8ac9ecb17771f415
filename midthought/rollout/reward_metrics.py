"""What the rewards of an iteration follow: the length, the prompt, or nothing that was written. Guards read it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from statistics import StatisticsError, correlation, fmean

from midthought.types import Trajectory


def reward_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns metrics of the episodes that have a reward, as far as there is something to compare.

    `episode/reward_by_length`: share of the rewards' variance that a straight line over the length explains (in tokens or in
    characters, the larger one), negative if longer episodes earn less. `episode/same_prompt` and `episode/same_text`: number of
    episodes with the task (and all tokens) of an earlier one; `…_std`: standard deviation of the rewards among such episodes.
    """
    judged = [(trajectory, trajectory.reward.total) for trajectory in trajectories if trajectory.reward is not None]
    totals = [total for _, total in judged]
    tokens = [each.num_sampled for each, _ in judged]
    characters = [sum(len(turn.model_output) for turn in each.turns) for each, _ in judged]
    found = [r for lengths in (tokens, characters) if math.isfinite(r := _correlation(lengths, totals))]
    strongest = max(found, key=abs, default=0.0)
    metrics = {"episode/reward_by_length": strongest * abs(strongest)} if found else {}
    keys: dict[str, list[Hashable]] = {
        "same_prompt": [each.task.task_id for each, _ in judged],
        "same_text": [(each.task.task_id, *each.token_ids) for each, _ in judged],
    }
    for name, values in keys.items():
        groups: dict[Hashable, list[float]] = defaultdict(list)
        for key, total in zip(values, totals, strict=True):
            groups[key].append(total)
        if repeated := len(totals) - len(groups):
            squares = math.fsum((total - fmean(group)) ** 2 for group in groups.values() for total in group)
            metrics |= {f"episode/{name}": repeated, f"episode/{name}_std": math.sqrt(squares / repeated)}
    return metrics


def _correlation(lengths: Sequence[float], totals: Sequence[float]) -> float:
    """Returns Pearson's correlation; NaN for fewer than two values, and if one of both does not vary or is too large."""
    try:
        return correlation(lengths, totals)
    except (StatisticsError, OverflowError):
        return math.nan
