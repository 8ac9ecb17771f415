"""The tasks that a trainer trains on: from a data set, an environment, or a recipe."""

from __future__ import annotations

import contextlib
import functools
import heapq
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from midthought.config import ConfigStore, RecipeConfig
from midthought.data.problem_sets import PROBLEM_SETS, SEED, load_problems
from midthought.data.tasks import load_tasks
from midthought.env.answers import require_judges
from midthought.env.environment import BaseEnvironment
from midthought.env.environment_tasks import FAILED_RESET, EnvironmentTaskSampler
from midthought.env.episode import EnvironmentEpisode, QuestionEnvironment, episode_statistics
from midthought.env.reward_functions import REWARD_FN, WeightedReward
from midthought.env.rewards import answer_reward, combine_rewards, correct, needs_answers, weighted
from midthought.errors import MissingExtraError, SettingsError, near_names
from midthought.rollout.episode import EpisodeEnvironment
from midthought.rollout.rollout_metrics import rollout_metrics
from midthought.rollout.selection import ShuffledTasks, TaskStream
from midthought.types import Task, Trajectory

NUM_SAMPLES = 200
"""Number of prompts that a new tokenizer is trained on."""
NUM_OPEN_SAMPLES = 8
"""Environments that are open at once while their prompts are read."""
TRAINING_SPLITS = {"gsm8k": "train", "mmlu": "auxiliary_train", "trivia_qa": "train"}
"""Splits to train on, of data sets whose usual split (`PROBLEM_SETS`) is then used for validation."""
MAX_COUNTED = 10_000
"""Number of prompts, the longest texts of a data set, whose tokens are counted at the start."""


class TrainingTasks(ABC):
    """Tasks, the environment of their episodes, and how the answers are judged in an evaluation."""

    stream: TaskStream
    """The tasks of each iteration."""
    num_tasks: int | None
    """Tasks of one epoch. None: unlimited (an environment)."""
    has_held_out: bool
    """Whether there are tasks to evaluate on."""
    best_by: str = "reward/mean"
    """The metric of `evaluation_metrics` by which the best checkpoint is chosen."""

    @abstractmethod
    def texts(self) -> Iterable[str]:
        """Returns some prompts and answers, to train the tokenizer of a model that is created here."""

    @abstractmethod
    def episode(self, task: Task) -> EpisodeEnvironment:
        """Returns the environment of a training episode."""

    @abstractmethod
    def held_out(self, count: int) -> list[Task]:
        """Returns at most `count` tasks that are not in training, always the same. Raises SettingsError if there are none."""

    @abstractmethod
    def held_out_episode(self, task: Task) -> EpisodeEnvironment:
        """Returns the environment of a held-out task's episode."""

    def judge(self, task: Task) -> EpisodeEnvironment:
        """Returns the environment that rewards an episode that is written, not played (checks before a run)."""
        return self.episode(task)

    def longest_prompt(self, num_tokens: Callable[[Task], int]) -> int | None:
        """Returns the tokens of the longest prompt; `num_tokens` counts a task's. None: unknown before the episodes run."""
        return None

    def statistics(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Returns metrics of these tasks, in addition to `rollout_metrics`."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Releases what the tasks hold, such as open environments; by default nothing. Called after the rollouts have ended."""

    def is_right(self, trajectory: Trajectory) -> bool | None:
        """Returns whether the answer is right, as `rewards.correct` judges it. None: the task has no answer to compare
        with, or math-verify, which compares it, is not installed."""
        with contextlib.suppress(MissingExtraError):
            require_judges([trajectory.task])
            return bool(correct(trajectory)) if trajectory.task.answer else None
        return None

    def evaluation_metrics(self, done: Sequence[Trajectory]) -> dict[str, float]:
        """Returns the metrics of a validation: `rollout_metrics`, `statistics`, and `exact_match` if tasks have an answer."""
        metrics = rollout_metrics(done) | self.statistics(done)
        judged = [right for right in map(self.is_right, done) if right is not None]
        return metrics | ({"exact_match": sum(judged) / len(judged)} if judged else {})


class ListedTasks(TrainingTasks):
    """A list of tasks, all with one environment, and held-out tasks."""

    def __init__(
        self, tasks: Sequence[Task], held_out: Sequence[Task], environment: EpisodeEnvironment, seed: int
    ) -> None:
        self._tasks, self._held_out, self._environment = tasks, held_out, environment
        self.stream = ShuffledTasks(tasks, seed)
        self.num_tasks = len(tasks)
        self.has_held_out = bool(held_out)

    def __getstate__(self) -> dict[str, Any]:
        """Pickles only what another process needs to run episodes: the environment, not the tasks."""
        return {"_environment": self._environment}

    def texts(self) -> Iterable[str]:
        return [f"{task.prompt}\n{task.answer}" for task in self._tasks[:NUM_SAMPLES]]

    def longest_prompt(self, num_tokens: Callable[[Task], int]) -> int | None:
        def num_bytes(task: Task) -> int:
            return sum(len(message["content"].encode(errors="replace")) for message in task.messages())

        return max(map(num_tokens, heapq.nlargest(MAX_COUNTED, [*self._tasks, *self._held_out], key=num_bytes)))

    def episode(self, task: Task) -> EpisodeEnvironment:
        return self._environment

    def held_out(self, count: int) -> list[Task]:
        if not self._held_out:
            raise SettingsError("there is nothing to evaluate on; give the trainer held-out tasks (validation=)")
        return list(self._held_out[:count])

    held_out_episode = episode


class DatasetTasks(ListedTasks):
    """The tasks of a data set. Each episode gives one answer, which is scored from its trajectory."""

    def __init__(
        self, dataset: Any, reward: WeightedReward | None, config: ConfigStore, *, validation: Any = None
    ) -> None:
        """`reward` None: uses the settings' `reward` section. Then, and if a named reward compares with it, every task needs an
        answer."""
        functions = [] if reward is None else [function for _, function in reward.parts.values()]
        if reward is not None:
            reward.require_no_environment()
        is_compared = reward is None or needs_answers(functions)
        tasks = _load(dataset, "dataset", needs_answer=is_compared)
        held_out = [] if validation is None else _load(validation, "validation", needs_answer=is_compared)
        scored = reward or answer_reward(config.reward)
        environment = QuestionEnvironment(scored, config.environment.step_timeout_seconds)
        super().__init__(tasks, held_out, environment, config.training.seed)


class EnvironmentTasks(TrainingTasks):
    """Episodes of an environment. Held-out episodes use another environment, or starts from other seeds."""

    stream: EnvironmentTaskSampler
    num_tasks = None
    has_held_out = True

    def __init__(
        self,
        environment: BaseEnvironment | Callable[[], BaseEnvironment],
        reward: WeightedReward | None,
        config: ConfigStore,
        *,
        validation: BaseEnvironment | Callable[[], BaseEnvironment] | None = None,
    ) -> None:
        seed = config.training.seed
        if validation is not None and not isinstance(validation, BaseEnvironment) and not callable(validation):
            raise SettingsError(
                f"validation={validation!r:.80}: beside an environment it is another BaseEnvironment, or a function that "
                "returns one; None: other starts of environment, training.num_validation_questions of them"
            )
        for name, (_, function) in () if reward is None else reward.parts.items():
            if needs_answers([function]):
                problem = f"the reward {name!r} compares with task.answer, which is empty in an environment"
                raise SettingsError(f"{problem}; give f(trajectory, environment), or leave it out: the steps pay")
        environment = _configured(environment, config)
        other = environment if validation is None else _configured(validation, config)
        make = functools.partial(EnvironmentTaskSampler, seed=seed, config=config.environment)
        self.stream = make(environment, reward)
        self._others = make(other, reward, purpose="held out")
        self._samples = functools.partial(make, environment, purpose="held out")

    def texts(self) -> Iterable[str]:
        samples = self._samples()
        tasks = [
            task for number in range(NUM_SAMPLES // NUM_OPEN_SAMPLES) for task in samples.draw(number, NUM_OPEN_SAMPLES)
        ]
        samples.close()
        return [task.prompt for task in tasks if FAILED_RESET not in task.labels]

    def episode(self, task: Task) -> EnvironmentEpisode:
        return self.stream.episode(task)

    def held_out(self, count: int) -> list[Task]:
        return self._others.draw(0, count)

    def held_out_episode(self, task: Task) -> EnvironmentEpisode:
        return self._others.episode(task)

    def close(self) -> None:
        self.stream.close()
        self._others.close()

    def statistics(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        failed = {trajectory.task.task_id for trajectory in trajectories if FAILED_RESET in trajectory.task.labels}
        statistics = {**episode_statistics(trajectories), "num_failed_resets": float(len(failed))}
        return {f"env/{name}": value for name, value in statistics.items()}


def make_reward(reward_fn: Callable[..., Any] | None, rewards: Sequence[Any]) -> WeightedReward | None:
    """Returns the reward of a trainer's arguments; None if there is none."""
    if reward_fn is not None and rewards:
        raise SettingsError("reward_fn and rewards say the same thing twice; put the function into rewards")
    functions = [weighted(reward_fn, 1.0, name=REWARD_FN)] if reward_fn is not None else rewards
    return combine_rewards(functions) if functions else None


def make_tasks(
    config: RecipeConfig,
    env: BaseEnvironment | Callable[[], BaseEnvironment] | None,
    dataset: Any,
    validation: Any,
    reward_fn: Callable[..., Any] | None,
    rewards: Sequence[Any],
) -> TrainingTasks:
    """Creates the tasks from a trainer's arguments."""
    if (env is None) == (dataset is None):
        raise SettingsError("give the trainer an environment (environment=) or tasks (dataset=): one of the two")
    reward = make_reward(reward_fn, rewards)
    if isinstance(dataset, TrainingTasks):
        return dataset
    assert isinstance(config, ConfigStore)
    if env is not None:
        return EnvironmentTasks(env, reward, config, validation=validation)
    return DatasetTasks(dataset, reward, config, validation=validation)


def named_tasks(dataset: Any, validation: Any) -> tuple[Any, Any]:
    """Returns the tasks of data sets' names (`PROBLEM_SETS`), and, if `validation` is None, the data set's usual split for
    validation. Generated sets are validated on the published problems, which are not in training. Other values are returned
    unchanged."""
    if dataset is not None and _is_name(validation, "validation"):
        validation = load_problems(validation)
    if not _is_name(dataset, "dataset"):
        return dataset, validation
    if PROBLEM_SETS[dataset].hub is None:
        held_out = load_problems(dataset)
        known = {task.prompt for task in held_out}
        tasks: list[Task] = [task for task in load_problems(dataset, seed=SEED + 1) if task.prompt not in known]
        return tasks, held_out if validation is None else validation
    split = TRAINING_SPLITS.get(dataset)
    if split is not None and validation is None:
        validation = load_problems(dataset)
    return load_problems(dataset, split=split), validation


def _is_name(given: Any, what: str) -> bool:
    """Whether it names a data set. Raises SettingsError for a name of neither a data set nor a file."""
    if not isinstance(given, str) or Path(given).is_file() or "." in given or "/" in given:
        return False
    if given not in PROBLEM_SETS:
        raise SettingsError(f"{what}={given!r} is neither a file nor a data set. {near_names(given, PROBLEM_SETS)}")
    return True


def _load(source: Any, name: str, *, needs_answer: bool) -> list[Task]:
    tasks = load_tasks(source, needs_answer=needs_answer)
    unknown = next((task.task_id for task in tasks if needs_answer and not task.answer), None)
    if unknown is not None:
        raise SettingsError(
            f"{name}: task {unknown!r} has no answer to compare with; give it one, or judge by a reward_fn of your own"
        )
    if needs_answer:
        require_judges(tasks)
    return tasks


def _configured(environment: Any, config: ConfigStore) -> Any:
    """Binds `config.environment` to a class that takes a `config`, so that its `__init__` may read it. Instances and
    environments from a factory get it from `EnvironmentTaskSampler`."""
    if isinstance(environment, type) and "config" in inspect.signature(environment.__init__).parameters:  # type: ignore[misc]
        return functools.partial(environment, config=config.environment)
    return environment
