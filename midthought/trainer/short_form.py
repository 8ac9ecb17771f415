"""The short form of a trainer's arguments: settings by their bare names, rewards and data sets by name."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from midthought.config import RecipeConfig
from midthought.config.section import Section
from midthought.data.problems.problem_sets import PROBLEM_SETS, SEED, load_problems
from midthought.env.answer_matching import exact_match, fuzzy_match, numeric_match, option_match
from midthought.env.reward_functions import AnyRewardFunction, RewardError, bare_name
from midthought.env.rewards import RewardPart, correct, matched, num_calls, num_failed_calls, used_tool, weighted
from midthought.errors import SettingsError, near_names
from midthought.types import Task

TRAINING_SPLITS = {"gsm8k": "train", "mmlu": "auxiliary_train", "trivia_qa": "train"}
"""Splits to train on, of data sets whose usual split (`PROBLEM_SETS`) is then used for validation."""


# -- settings --------------------------------------------------------------------------------------------------


def merge_settings(
    config: RecipeConfig,
    *,
    model: Any,
    algorithm: str | None,
    settings: Mapping[str, Any],
    arguments: Callable[..., Any],
) -> tuple[RecipeConfig, Any]:
    """Returns the settings, and the model if it is an object; a name or path becomes `model.local_path`.

    `settings` are bare names (`learning_rate=1e-5`) and sections (`training={"batch_size": 8}`), which replace values of `config`
    and of the algorithm's preset. `arguments`: the function whose parameters are named, too, if a name is unknown. Raises
    SettingsError for an unknown or ambiguous name, and for a wrong value.
    """
    changes = by_section(config, settings, [*inspect.signature(arguments).parameters])
    if algorithm is not None:
        _set(changes, "training", "algorithm", algorithm)
    if isinstance(model, str | Path):
        changes.setdefault("model", {})["local_path"] = str(model)
        model = None
    return (config.merged(changes) if changes else config), model


def by_section(
    config: RecipeConfig, settings: Mapping[str, Any], arguments: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Returns settings by section: `{"lam": 1, "model": {"dtype": "float32"}}` as `{"training": {"lam": 1}, "model": …}`.

    Raises SettingsError for a name that no section has; `arguments` are further names to suggest.
    """
    sections = {name: set(values) for name, values in config.to_dict().items() if isinstance(values, dict)}
    found: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in sections:
            value = value.given() if isinstance(value, Section) else value
            if not isinstance(value, Mapping):
                raise SettingsError(f"{name}={value!r:.80}: it is a section; give a mapping of its settings")
            for key, inner in value.items():
                _set(found, name, key, inner)
            continue
        section = next((section for section, names in sections.items() if name in names), None)
        if section is None:
            known = {*sections, *(each for names in sections.values() for each in names), *arguments}
            raise SettingsError(
                f"unknown argument or setting {name!r}. {near_names(name, known - {'self', 'settings'})} "
                "For names of TRL and verl see docs/coming_from.md"
            )
        _set(found, section, name, value)
    return found


def require_environment(settings: Mapping[str, Any], dataset: Any) -> None:
    """Raises SettingsError for `max_steps` beside a data set: it limits the steps of an environment."""
    if dataset is not None and "max_steps" in settings:
        raise SettingsError(
            f"max_steps={settings['max_steps']!r:.40}: it is the limit of steps in an environment (environment.max_steps), and "
            "there is a data set. The number of iterations is num_train_iters"
        )


def _set(found: dict[str, dict[str, Any]], section: str, name: str, value: Any) -> None:
    """Adds a setting. Raises SettingsError if it was given before with another value."""
    values = found.setdefault(section, {})
    if name in values and values[name] != value:
        raise SettingsError(f"{section}.{name} is given as {values[name]!r:.40} and as {value!r:.40}; give it once")
    values[name] = value


# -- rewards ---------------------------------------------------------------------------------------------------


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
    what `combine_rewards` takes. A mapping gives weights by name, or functions by names of your own. A lambda is named by its
    place (`reward_1`). None: no rewards. Raises RewardError."""
    if rewards is None:
        return []
    if isinstance(rewards, Mapping):
        rewards = [_of_name(*item) for item in rewards.items()]
    if isinstance(rewards, str) or callable(rewards) or _is_pair(rewards):
        rewards = [rewards]
    if not isinstance(rewards, Iterable):
        raise RewardError(f"rewards={rewards!r:.80}: give a list of names, functions, or pairs (reward, weight)")
    return [_reward(item, f"reward_{number}") for number, item in enumerate(rewards, start=1)]


def _is_pair(rewards: Any) -> bool:
    return isinstance(rewards, tuple) and len(rewards) == 2 and isinstance(rewards[1], numbers.Real)


def _of_name(name: Any, value: Any) -> Any:
    """Returns an item of a mapping as one of a list: of `{"name": function}` and `{"name": (function, weight)}` the named
    function, otherwise (reward, weight)."""
    function, weight = value if isinstance(value, tuple) and len(value) == 2 else (value, 1.0)
    return RewardPart(name, weight, function) if isinstance(name, str) and callable(function) else (name, value)


def _reward(item: Any, place: str) -> Any:
    weight: Any = 1.0
    if isinstance(item, tuple) and len(item) == 2:
        item, weight = item
        if isinstance(weight, str) or callable(weight):
            raise RewardError(f"{(item, weight)!r:.80}: give (reward, weight), the weight is a number")
    elif not isinstance(item, str | FunctionType):
        return item
    if not isinstance(item, str):
        return weighted(item, weight, name=place if callable(item) and bare_name(item) == "<lambda>" else None)
    if item not in NAMED_REWARDS:
        raise RewardError(f"unknown reward {item!r}. {near_names(item, NAMED_REWARDS)} Or give a function.")
    return RewardPart(item, weight, NAMED_REWARDS[item])


def needs_answers(functions: Iterable[AnyRewardFunction]) -> bool:
    """Whether one of these functions compares with the task's answer."""
    return any(function in _OF_THE_ANSWER.values() for function in functions)


# -- data sets -------------------------------------------------------------------------------------------------


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
