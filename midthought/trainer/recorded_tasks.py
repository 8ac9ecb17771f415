"""Recorded episodes as what a trainer trains on, in place of rollouts."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from midthought.config import ConfigStore, RecipeConfig, TrainingConfig
from midthought.env.environment import BaseEnvironment
from midthought.env.reward_functions import WeightedReward
from midthought.env.rewards import combine_rewards, weighted
from midthought.errors import SettingsError
from midthought.rollout.rollout_batch import ShuffledTasks
from midthought.tokenization import Renderer
from midthought.trainer.tasks import DatasetTasks, EnvironmentTasks, TrainingTasks
from midthought.types import RolloutBatch, RolloutData, Trajectory


class RecordedTasks(DatasetTasks):
    """Episodes that were recorded before, with their rewards. An iteration trains on all episodes of `num_groups` tasks; an
    epoch is a pass over the tasks. Validation plays episodes as usual."""

    def __init__(
        self,
        episodes: Sequence[Trajectory],
        reward: WeightedReward | None,
        config: ConfigStore,
        *,
        validation: Any = None,
    ) -> None:
        """`reward` judges the validation only. Raises SettingsError if no episode has a reward, RecordError for an
        episode without tokens."""
        groups: dict[tuple[str, str], list[Trajectory]] = defaultdict(list)
        for episode in episodes:
            episode.require_tokens()
            if episode.reward is not None:
                groups[episode.task.task_id, episode.task.prompt].append(episode)
        if not groups:
            raise SettingsError(f"dataset: none of the {len(episodes)} episodes has a reward; set Trajectory.reward")
        tasks = [group[0].task for group in groups.values()]
        super().__init__(tasks, reward, config, validation=validation, needs_answer=False)
        self._groups = ShuffledTasks([*groups.values()], config.training.seed)

    def open(self, renderer: Renderer) -> None:
        """Raises SettingsError for a token that the tokenizer does not have."""
        super().open(renderer)
        num_tokens = len(renderer.tokenizer)
        for group in self._groups.tasks:
            for episode in group:
                largest = max(max(segment.token_ids) for segment in episode.segments)
                if largest >= num_tokens:
                    raise SettingsError(
                        f"dataset: the episode of task {episode.task.task_id!r} has the token {largest}, and the tokenizer has "
                        f"{num_tokens} tokens; train the model that the episodes were recorded with"
                    )

    def recorded(self, training: TrainingConfig, iteration: int) -> RolloutBatch:
        trajectories = []
        for number, group in enumerate(self._groups.draw(iteration, training.num_groups)):
            for episode in map(copy.copy, group):
                episode.group = number
                trajectories.append(episode)
        return RolloutBatch(data=RolloutData(trajectories=trajectories), usable=trajectories, is_recorded=True)


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
        raise SettingsError("give the trainer an environment (environment=) or tasks (dataset=): one of the two")
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
