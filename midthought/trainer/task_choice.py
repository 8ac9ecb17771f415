"""Chooses what a trainer trains on, from its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from midthought.config import ConfigStore, RecipeConfig
from midthought.env.environment import BaseEnvironment
from midthought.env.rewards import combine_rewards, weighted
from midthought.errors import SettingsError
from midthought.trainer.recorded_tasks import RecordedTasks
from midthought.trainer.tasks import DatasetTasks, EnvironmentTasks, TrainingTasks
from midthought.types import Trajectory


def make_tasks(
    config: RecipeConfig,
    env: BaseEnvironment | Callable[[], BaseEnvironment] | None,
    dataset: Any,
    validation: Any,
    reward_fn: Callable[..., Any] | None,
    rewards: Sequence[Any],
) -> TrainingTasks:
    """Creates the tasks from a trainer's arguments.

    Raises SettingsError if they contradict each other, RewardError or SettingsError for a reward function that cannot be
    called, DataError for a data set that cannot be read or is empty.
    """
    if (env is None) == (dataset is None):
        raise SettingsError("give the trainer an environment (env=) or tasks (dataset=): one of the two")
    if reward_fn is not None and rewards:
        raise SettingsError("reward_fn and rewards say the same thing twice; put the function into rewards")
    if isinstance(dataset, TrainingTasks):
        return dataset
    assert isinstance(config, ConfigStore)
    if env is not None:
        judge = combine_rewards(rewards) if rewards else reward_fn
        return EnvironmentTasks(env, judge, config, validation=validation)
    functions = [weighted(reward_fn, 1.0, name="reward_fn")] if reward_fn is not None else rewards
    reward = combine_rewards(functions) if functions else None
    if isinstance(dataset, Sequence) and dataset and isinstance(dataset[0], Trajectory):
        return RecordedTasks(dataset, reward, config, validation=validation)
    return DatasetTasks(dataset, reward, config, validation=validation)
