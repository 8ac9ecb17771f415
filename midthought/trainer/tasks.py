"""What a trainer trains on: the tasks of a data set, the episodes of an environment, or the tasks of a recipe."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from midthought.config import ConfigStore, RecipeConfig
from midthought.data.tasks import load_tasks
from midthought.env.environment import BaseEnvironment
from midthought.env.environment_tasks import FAILED_RESET, EnvironmentTaskSampler
from midthought.env.episode import EnvironmentEpisode, episode_statistics
from midthought.env.question import QuestionEnvironment, answer_reward
from midthought.env.reasoning import last_answer, matches
from midthought.env.reward_functions import AsyncReward, WeightedReward
from midthought.env.rewards import combine_rewards, weighted
from midthought.errors import SettingsError
from midthought.rollout.episode import EpisodeEnvironment
from midthought.rollout.rollout_batch import ShuffledTasks, TaskStream
from midthought.rollout.rollout_metrics import rollout_metrics
from midthought.tokenization import Renderer
from midthought.types import Task, Trajectory

NUM_SAMPLES = 200
"""Prompts whose words a made tokenizer is made from."""


class TrainingTasks(ABC):
    """Tasks, the environment of their episodes, and how the answers are judged in an evaluation."""

    stream: TaskStream
    """The tasks of each iteration."""
    num_tasks: int | None
    """Tasks of one epoch. None: an environment has no end of them."""
    has_held_out: bool
    """Whether there are tasks to evaluate on."""
    best_by: str = "reward/mean"
    """The metric of `evaluation_metrics` by which the best checkpoint is chosen."""

    @abstractmethod
    def texts(self) -> Iterable[str]:
        """Some prompts and answers, for the tokenizer of a model that is created here."""

    @abstractmethod
    def open(self, renderer: Renderer) -> None:
        """Receives the tokenizer. Episodes can be created only after this call."""

    @abstractmethod
    def episode(self, task: Task) -> EpisodeEnvironment:
        """The environment of a training episode."""

    @abstractmethod
    def held_out(self, count: int) -> list[Task]:
        """At most `count` tasks that training does not see, the same ones every time. Raises SettingsError if there are none."""

    @abstractmethod
    def held_out_episode(self, task: Task) -> EpisodeEnvironment:
        """The environment of a held-out task's episode."""

    def longest_prompt(self, num_tokens: Callable[[Task], int]) -> int | None:
        """Tokens of the longest prompt, given how many a task's prompt has. None: not known before the episodes run."""
        return None

    def statistics(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Metrics of these tasks, in addition to those of every rollout."""
        return {}

    def is_right(self, trajectory: Trajectory) -> bool | None:
        """Exact match of the answer after the thought. None: the task has no answer to compare with."""
        task = trajectory.task
        return matches(last_answer(trajectory), (task.answer, *task.aliases)) if task.answer else None

    def evaluation_metrics(self, done: Sequence[Trajectory]) -> dict[str, float]:
        """The metrics of a validation: those of a rollout, `statistics`, and `exact_match` if tasks have an answer."""
        metrics = rollout_metrics(done) | self.statistics(done)
        judged = [right for right in map(self.is_right, done) if right is not None]
        return metrics | ({"exact_match": sum(judged) / len(judged)} if judged else {})


def make_tasks(
    config: RecipeConfig,
    env: BaseEnvironment | Callable[[], BaseEnvironment] | None,
    dataset: Any,
    validation: Any,
    reward_fn: Callable[..., Any] | None,
    reward_funcs: Sequence[Any],
) -> TrainingTasks:
    """The tasks that a trainer's arguments describe.

    Raises SettingsError where they contradict each other, RewardError or SettingsError for a reward function that cannot be
    called, DataError for a data set that cannot be read or is empty.
    """
    if (env is None) == (dataset is None):
        raise SettingsError("give the trainer an environment (env=) or tasks (dataset=): one of the two")
    if reward_fn is not None and reward_funcs:
        raise SettingsError("reward_fn and reward_funcs say the same thing twice; put the function into reward_funcs")
    if isinstance(dataset, TrainingTasks):
        return dataset
    assert isinstance(config, ConfigStore)
    if env is not None:
        judge = combine_rewards(reward_funcs) if reward_funcs else reward_fn
        return EnvironmentTasks(env, judge, config, validation=validation)
    functions = [weighted(reward_fn, 1.0, name="reward_fn")] if reward_fn is not None else reward_funcs
    return DatasetTasks(dataset, combine_rewards(functions) if functions else None, config, validation=validation)


class DatasetTasks(TrainingTasks):
    """The tasks of a data set: one answer each, judged from the record."""

    def __init__(
        self, dataset: Any, reward: WeightedReward | AsyncReward | None, config: ConfigStore, *, validation: Any = None
    ) -> None:
        """`reward` None: that of the settings' `reward` section, for which every task needs an answer."""
        self._tasks = _load(dataset, "dataset", needs_answer=reward is None)
        self._held_out = [] if validation is None else _load(validation, "validation", needs_answer=reward is None)
        self._reward = reward
        self._config = config
        self._environment: QuestionEnvironment | None = None
        self.stream = ShuffledTasks(self._tasks, config.training.seed)
        self.num_tasks = len(self._tasks)
        self.has_held_out = bool(self._held_out)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to run episodes: their other side, not the tasks."""
        return {"_environment": self._environment}

    def texts(self) -> Iterable[str]:
        return [f"{task.prompt}\n{task.answer}" for task in self._tasks[:NUM_SAMPLES]]

    def open(self, renderer: Renderer) -> None:
        if self._reward is not None:
            self._environment = QuestionEnvironment(self._reward, self._config.environment.step_timeout_seconds)
            return
        end_tokens = [renderer.decode([token_id]) for token_id in sorted(renderer.eos_token_ids)]
        self._environment = QuestionEnvironment(answer_reward(self._config.reward, renderer.decode, end_tokens))

    def episode(self, task: Task) -> QuestionEnvironment:
        assert self._environment is not None
        return self._environment

    def held_out(self, count: int) -> list[Task]:
        if not self._held_out:
            raise SettingsError("there is nothing to evaluate on; give the trainer held-out tasks (validation=)")
        return self._held_out[:count]

    held_out_episode = episode


class EnvironmentTasks(TrainingTasks):
    """Episodes of an environment; held out are those of another one, or starts from other seeds."""

    num_tasks = None
    has_held_out = True

    def __init__(
        self,
        environment: BaseEnvironment | Callable[[], BaseEnvironment],
        reward_fn: Callable[..., Any] | None,
        config: ConfigStore,
        *,
        validation: BaseEnvironment | Callable[[], BaseEnvironment] | None = None,
    ) -> None:
        seed = config.training.seed
        environment = _configured(environment, config)
        other = environment if validation is None else _configured(validation, config)
        make = functools.partial(EnvironmentTaskSampler, seed=seed, config=config.environment)
        self._stream = make(environment, reward_fn)
        self._others = make(other, reward_fn, purpose="held out")
        self._samples = functools.partial(make, environment, purpose="held out")
        self.stream = self._stream

    def texts(self) -> Iterable[str]:
        return [task.prompt for task in self._samples().draw(0, NUM_SAMPLES) if FAILED_RESET not in task.labels]

    def open(self, renderer: Renderer) -> None:
        """Nothing: environments read words, not tokens."""

    def episode(self, task: Task) -> EnvironmentEpisode:
        return self._stream.episode(task)

    def held_out(self, count: int) -> list[Task]:
        return self._others.draw(0, count)

    def held_out_episode(self, task: Task) -> EnvironmentEpisode:
        return self._others.episode(task)

    def statistics(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        failed = {trajectory.task.task_id for trajectory in trajectories if FAILED_RESET in trajectory.task.labels}
        figures = {**episode_statistics(trajectories), "num_failed_resets": float(len(failed))}
        return {f"env/{name}": value for name, value in figures.items()}


def _load(source: Any, name: str, *, needs_answer: bool) -> list[Task]:
    tasks = load_tasks(source, needs_answer=needs_answer)
    unknown = next((task.task_id for task in tasks if needs_answer and not task.answer), None)
    if unknown is not None:
        raise SettingsError(
            f"{name}: task {unknown!r} has no answer to compare with; give it one, or judge by a reward_fn of your own"
        )
    return tasks


def _configured(environment: Any, config: ConfigStore) -> Any:
    """A class that takes a `config` is made with `config.environment`, which its `__init__` may read. An instance and what a
    factory makes get it from `EnvironmentTasks`."""
    if isinstance(environment, type) and "config" in inspect.signature(environment.__init__).parameters:  # type: ignore[misc]
        return functools.partial(environment, config=config.environment)
    return environment
