"""Tasks of the recipe: the problems by part, with the feedback tool, and the metrics of episodes, computed from their rounds.

Problems are read by `midthought.data`, or they are sums and products of known difficulty, generated from a seed, with a solver
that looks one column ahead. A column whose digits sum to 9 passes on the carry that it receives. A solver that writes from the
left and looks one column ahead cannot see this carry: the column is open, and the digit before it is a guess. Easy problems have
0 open columns, hard ones 4.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from midthought.config import settled
from midthought.data.problem_sets import OPTIONS_LABEL, QUESTION_LABEL, load_problems
from midthought.data.tasks import DATASET_LABEL
from midthought.env.answer_matching import NUM_WORKERS
from midthought.errors import SettingsError
from midthought.feedback.critics import calculation_of
from midthought.feedback.tool import FeedbackTool
from midthought.recipes.evaluation import RecipeTasks, share_of, with_interval
from midthought.recipes.feedback.reward import CALL_FORMAT, FeedbackEnvironment, Round, rounds_of
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.trainer.sources import PromptBuilder
from midthought.types import Task, Trajectory

Parts = dict[str, list[Task]]
NUM_DIGITS = 9
OPEN_PLACES = (1, 3, 5, 7)
"""Open columns of a hard problem, from the left. No two are neighbours, so each hides one carry."""
CHECKED_AS = "multiplication"
"""Data set whose answers are checked in the same way: the last number counts."""
DIFFICULTY_LABEL = "difficulty"

_SECOND = {"*": 3, "+": 555_555_555}
"""The second operand. A small model learns one such digit in minutes; all ten would take hours."""
_DIGITS = {
    "*": {"none": (0, 1, 2), "carry": (4, 5, 6), "open": (3,)},
    "+": {"none": (0, 1, 2, 3), "carry": (5, 6, 7, 8, 9), "open": (4,)},
}
"""Digits of the first operand whose column, with a carry of at most 1, passes on no carry, a carry of 1, or what it receives."""
_PRODUCT_SHARE = 0.65
RETRY_ONLY = "none"
"""The critic of the retry-only arm."""
_VALIDATION_METRICS = (
    *("exact_match", "first_try", "call_rate_needed", "call_rate_needless"),
    *("wrong_to_right", "right_to_wrong"),
)


def prepare_problems(config: FeedbackRecipeConfig) -> Parts:
    """Returns disjoint tasks by part; they depend only on the settings. Raises `DataError`, `SettingsError`."""
    settings, seed = config.problems, config.training.seed
    sizes = {
        "test": settled(settings.num_test, settings.test_sizes["num_test"]),
        "validation": config.training.num_validation_questions,
        "train": settings.num_train,
    }
    if settings.dataset == "arithmetic" and settings.test_dataset is not None:
        raise SettingsError("problems.test_dataset needs a problems.dataset of its kind; arithmetic makes its own test")
    if settings.dataset == "arithmetic":
        draw, taken, made = random.Random(f"arithmetic-{seed}"), set[str](), Parts()
        for part, number in sizes.items():
            share, name = settings.hard_share, f"{part}-{seed}"
            made[part] = make_problems(number, hard_share=share, draw=draw, name=name, taken=taken)
            taken.update(task.prompt for task in made[part])
        return made
    train = test = list(load_problems(settings.dataset, settings.source, split=settings.split, seed=seed))
    if settings.test_dataset or settings.test_source or settings.test_split:
        dataset = settings.test_dataset or settings.dataset
        test = list(load_problems(dataset, settings.test_source, split=settings.test_split, seed=seed))
    return _split(train, test, sizes, seed)


def question_key(*texts: str) -> str:
    """Returns the texts in lower case, a blank after each word. Prompts of data sets end with different requests, so questions
    are compared."""
    return "".join(f"{word} " for word in " ".join(texts).casefold().split())


def _key(task: Task) -> str:
    return question_key(str(task.labels[QUESTION_LABEL]), *sorted(map(str, task.labels.get(OPTIONS_LABEL) or ())))


def _split(train: list[Task], test: list[Task], sizes: dict[str, int], seed: int) -> Parts:
    """Takes test and validation from `test`, training from the rest of `train`, all at random; no question is in two parts. With
    too few problems each part gets a share."""
    num_shares, different = 6 if test is train else 3, list({_key(task): task for task in test}.values())
    test = random.Random(f"problems-{seed}").sample(different, len(different))
    num_test = min(sizes["test"], max(1, 2 * len(test) // num_shares))
    num_validation = min(sizes["validation"], max(1, len(test) // num_shares))
    parts = {"test": test[:num_test], "validation": test[num_test : num_test + num_validation]}
    held_out = {_key(task) for tasks in parts.values() for task in tasks}
    left = [task for task in train if _key(task) not in held_out]
    parts["train"] = random.Random(f"train-{seed}").sample(left, min(sizes["train"], len(left)))
    if empty := [name for name, tasks in parts.items() if not tasks]:
        raise SettingsError(f"too few problems: none is left for {', '.join(empty)}; give more, or another test set")
    return parts


# -- sums and products ---------------------------------------------------------------------------------------------


def make_problems(
    num_problems: int, *, hard_share: float, draw: random.Random, name: str, taken: Collection[str] = ()
) -> list[Task]:
    """Returns `num_problems` distinct problems, none with a prompt in `taken`; hard and easy ones in random order.

    >>> easy, _ = make_problems(2, hard_share=0.0, draw=random.Random(0), name="test")
    >>> Columns.of(easy).answer([]) == easy.answer
    True
    """
    seen, tasks = set(taken), list[Task]()
    num_hard = round(hard_share * num_problems)
    for number in draw.sample(range(num_problems), num_problems):
        tasks.append(draw_problem(draw, is_hard=number < num_hard, task_id=f"{name}-{len(tasks)}", taken=seen))
        seen.add(tasks[-1].prompt)
    return tasks


def draw_problem(draw: random.Random, *, is_hard: bool, task_id: str, taken: Collection[str] = ()) -> Task:
    """Draws one problem whose prompt is not in `taken`."""
    while True:
        sign = "*" if draw.random() < _PRODUCT_SHARE else "+"
        kinds = ["none", *(draw.choice(("none", "carry")) for _ in range(NUM_DIGITS - 1))]
        if is_hard:
            kinds = ["open" if place in OPEN_PLACES else kind for place, kind in enumerate(kinds)]
        known = [[digit for digit in _DIGITS[sign][kind] if digit or place] for place, kind in enumerate(kinds)]
        first, second = int("".join(str(draw.choice(digits)) for digits in known)), _SECOND[sign]
        question = f"Calculate {first} {sign} {second}."
        if question not in taken:
            labels = {
                DATASET_LABEL: CHECKED_AS,
                QUESTION_LABEL: question,
                DIFFICULTY_LABEL: "hard" if is_hard else "easy",
                "kind": "product" if sign == "*" else "sum",
            }
            answer = first * second if sign == "*" else first + second
            return Task(task_id=task_id, prompt=question, answer=str(answer), labels=labels)


# -- solving with one column of look-ahead -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a problem, from the left: the value of each before any carry."""

    values: tuple[int, ...]

    @classmethod
    def of(cls, task: Task) -> Columns:
        """Returns the columns of a task. Raises `DataError` if the task is not a calculation."""
        asked = calculation_of(task)
        digits = str(asked.first)
        if asked.sign == "+":
            return cls(tuple(int(a) + int(b) for a, b in zip(digits, str(asked.second), strict=True)))
        return cls(tuple(int(digit) * asked.second for digit in digits))

    @property
    def guessed(self) -> list[int]:
        """Places, from the left, whose carry comes through an open column and cannot be seen."""
        return [place for place, value in enumerate(self.values[1:-1]) if value == 9]

    def answer(self, carries: Sequence[bool]) -> str:
        """Returns the result with these carries at the guessed places; all other carries are exact."""
        guesses = dict(zip(self.guessed, carries, strict=True))
        pairs = enumerate(zip(self.values, (*self.values[1:], 0), strict=True))
        return "".join(str((value + guesses.get(place, after > 9)) % 10) for place, (value, after) in pairs)


class FeedbackTasks(RecipeTasks):
    """The problems with the tool `get_feedback`."""

    config: FeedbackRecipeConfig

    def __init__(self, config: FeedbackRecipeConfig, problems: Parts) -> None:
        system = "\n\n".join(config.system_messages)
        prompts = PromptBuilder(system, tools_of_run(config), CALL_FORMAT, describes_tools=False)
        super().__init__(config, problems, prompts, FeedbackEnvironment(config.reward))

    def rounds(self, done: Sequence[Trajectory]) -> list[list[Round]]:
        """Returns the rounds of every episode. Answers not yet judged in this process (Ray workers) are judged in parallel."""
        with ThreadPoolExecutor(NUM_WORKERS) as pool:
            return list(pool.map(rounds_of, done))

    def is_right(self, trajectory: Trajectory) -> bool:
        """Whether the last answer is right."""
        return _is_right(rounds_of(trajectory))

    def evaluation_metrics(self, done: Sequence[Trajectory]) -> dict[str, float]:
        metrics = feedback_metrics(self.rounds(done), self.config.inference.max_turns)
        return {key: metrics[key] for key in _VALIDATION_METRICS if metrics[key] == metrics[key]}

    def executor(self, critic: str) -> ToolExecutor:
        """Returns an executor of the tool with this critic instead of the one in the settings."""
        tool = FeedbackTool.from_settings(self.config.feedback.changed(critic=critic))
        return ToolExecutor(ToolRegistry([tool]), timeout_seconds=self.config.inference.tool_timeout_seconds)


def tools_of_run(config: FeedbackRecipeConfig, run_path: Path | None = None) -> ToolRegistry:
    """Returns the tool of a run."""
    return ToolRegistry([FeedbackTool.from_settings(config.feedback)])


# -- metrics -------------------------------------------------------------------------------------------------------


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
    first = [_is_right(rounds[:1]) for rounds in episodes]
    by_first = list(zip(first, episodes, strict=True))
    changes = Counter((any(r.num_asks for r in each), was, _is_right(each)) for was, each in by_first)
    asked = [(was, bool(each) and each[0].num_asks > 0) for was, each in by_first]
    confirmed = [_calls_after_right(rounds) for rounds in episodes if any(each.told_right for each in rounds)]
    metrics = {
        "exact_match": _mean(map(_is_right, episodes)),
        "first_try": _mean(first),
        "feedback_used": share_of(sum(n for (asked, *_), n in changes.items() if asked), len(episodes)),
        "call_rate_needed": _mean(has_asked for was, has_asked in asked if not was),
        "call_rate_needless": _mean(has_asked for was, has_asked in asked if was),
        "goes_on_after_right": _mean(calls > 0 for calls in confirmed),
        "calls_after_right": share_of(sum(confirmed), len(episodes)),
        "wrong_to_right": share_of(changes[True, False, True], len(episodes)),
        "right_to_wrong": share_of(changes[True, True, False], len(episodes)),
        "still_wrong": share_of(changes[True, False, False], len(episodes)),
        "wrong_unasked": share_of(changes[False, False, False] + changes[False, True, False], len(episodes)),
        "calls_per_question": _mean(sum(each.num_asks for each in rounds) for rounds in episodes),
    }
    for number in range(1, max_rounds + 1):
        metrics[f"accuracy_at.{number}"] = _mean(_is_right(rounds[:number]) for rounds in episodes)
    for key in ("exact_match", "first_try"):
        metrics |= with_interval(key, metrics[key], len(episodes))
    return metrics


def _is_right(rounds: Sequence[Round]) -> bool:
    return bool(rounds) and rounds[-1].is_right


def _calls_after_right(rounds: Sequence[Round]) -> int:
    told = next(place for place, each in enumerate(rounds) if each.told_right)
    return sum(each.num_asks for each in rounds[told + 1 :])


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return share_of(sum(known), len(known))
