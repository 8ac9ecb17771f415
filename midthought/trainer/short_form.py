"""Rewards and data sets by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from midthought.data.problem_sets import PROBLEM_SETS, SEED, load_problems
from midthought.env.answer_matching import exact_match, fuzzy_match, numeric_match, option_match
from midthought.env.reward_functions import AnyRewardFunction, RewardError, bare_name
from midthought.env.rewards import RewardPart, correct, matched, num_calls, num_failed_calls, used_tool, weighted
from midthought.errors import SettingsError, near_names
from midthought.types import Task

TRAINING_SPLITS = {"gsm8k": "train", "mmlu": "auxiliary_train", "trivia_qa": "train"}
"""Splits to train on, of data sets whose usual split (`PROBLEM_SETS`) is then used for validation."""


_OF_THE_ANSWER = {
    "correct": correct,
    **{match.__name__: matched(match) for match in (exact_match, numeric_match, fuzzy_match, option_match)},
}
NAMED_REWARDS: Mapping[str, AnyRewardFunction] = {
    **_OF_THE_ANSWER,
    "num_calls": num_calls,
    "num_failed_calls": num_failed_calls,
    "used_tool": used_tool,
}
"""Reward functions by name."""


def named_rewards(rewards: Any) -> list[Any]:
    """Returns the functions for `combine_rewards`. An item is a name of `NAMED_REWARDS`, a function, a pair (either, weight), or
    what `combine_rewards` takes. A mapping gives weights by name. A lambda is named by its place (`reward_1`). None: no rewards.
    Raises RewardError."""
    if rewards is None:
        return []
    if isinstance(rewards, str) or callable(rewards):
        rewards = [rewards]
    if not isinstance(rewards, Iterable):
        raise RewardError(f"rewards={rewards!r:.80}: give a list of names, functions, or pairs (reward, weight)")
    items = rewards.items() if isinstance(rewards, Mapping) else rewards
    return [_reward(item, f"reward_{number}") for number, item in enumerate(items, start=1)]


def _reward(item: Any, place: str) -> Any:
    if isinstance(item, tuple) and len(item) != 2:
        return item
    reward, weight = item if isinstance(item, tuple) else (item, 1.0)
    if isinstance(weight, str) or callable(weight):
        raise RewardError(f"{item!r:.80}: give (reward, weight), the weight is a number")
    if not isinstance(reward, str):
        return weighted(reward, weight, name=place if callable(reward) and bare_name(reward) == "<lambda>" else None)
    if reward not in NAMED_REWARDS:
        raise RewardError(f"unknown reward {reward!r}. {near_names(reward, NAMED_REWARDS)} Or give a function.")
    return RewardPart(reward, weight, NAMED_REWARDS[reward])


def needs_answers(functions: Iterable[AnyRewardFunction]) -> bool:
    """Whether one of these functions compares with the task's answer."""
    return any(function in _OF_THE_ANSWER.values() for function in functions)


def named_tasks(dataset: Any, validation: Any) -> tuple[Any, Any]:
    """Returns the tasks of a data set's name (`PROBLEM_SETS`), and, if `validation` is None, its usual split for validation.
    Generated sets are validated on the published problems, which are not in training. Other values are returned unchanged."""
    if not isinstance(dataset, str) or Path(dataset).exists() or "." in dataset or "/" in dataset:
        return dataset, validation
    if dataset not in PROBLEM_SETS:
        raise SettingsError(
            f"dataset={dataset!r} is neither a file nor a data set. {near_names(dataset, PROBLEM_SETS)}"
        )
    if PROBLEM_SETS[dataset].hub is None:
        held_out = load_problems(dataset)
        known = {task.prompt for task in held_out}
        tasks: list[Task] = [task for task in load_problems(dataset, seed=SEED + 1) if task.prompt not in known]
        return tasks, held_out if validation is None else validation
    split = TRAINING_SPLITS.get(dataset)
    if split is not None and validation is None:
        validation = load_problems(dataset)
    return load_problems(dataset, split=split), validation
