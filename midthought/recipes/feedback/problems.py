"""The recipe's problems by part: train, validation, test. Generated here, or read by `midthought.data.problems`."""

from __future__ import annotations

import random

from midthought.config import settled
from midthought.data.problems.problem_sets import load_problems
from midthought.errors import SettingsError
from midthought.recipes.feedback.arithmetic import make_problems
from midthought.recipes.feedback.settings import ProblemsSection
from midthought.types import Task

Parts = dict[str, list[Task]]


def prepare_problems(settings: ProblemsSection, seed: int) -> Parts:
    """Returns disjoint tasks by part; they depend only on the settings and the seed. Raises `DataError`, `SettingsError`."""
    sizes = {
        "test": settled(settings.num_test, settings.test_sizes["num_test"]),
        "validation": settings.num_validation,
        "train": settings.num_train,
    }
    if settings.dataset == "arithmetic" and settings.test_dataset is None:
        return _made(settings, sizes, seed)
    if settings.dataset == "arithmetic":
        raise SettingsError("problems.test_dataset needs a problems.dataset of its kind; arithmetic makes its own test")
    train = list(load_problems(settings.dataset, settings.source, split=settings.split, seed=seed))
    test = train
    if settings.test_dataset or settings.test_source or settings.test_split:
        dataset = settings.test_dataset or settings.dataset
        test = list(load_problems(dataset, settings.test_source, split=settings.test_split, seed=seed))
    return _split(train, test, sizes, seed)


def _made(settings: ProblemsSection, sizes: dict[str, int], seed: int) -> Parts:
    draw = random.Random(f"arithmetic-{seed}")
    parts: Parts = {}
    for part, num_problems in sizes.items():
        taken = [task.prompt for tasks in parts.values() for task in tasks]
        parts[part] = make_problems(
            num_problems, hard_share=settings.hard_share, draw=draw, name=f"{part}-{seed}", taken=taken
        )
    return parts


def _split(train: list[Task], test: list[Task], sizes: dict[str, int], seed: int) -> Parts:
    """Takes test and validation from `test`, training from the rest of `train`; with too few problems each part gets a share."""
    num_shares = 6 if test is train else 3
    test = random.Random(f"problems-{seed}").sample(test, len(test))
    num_test = min(sizes["test"], max(1, 2 * len(test) // num_shares))
    num_validation = min(sizes["validation"], max(1, len(test) // num_shares))
    parts = {"test": test[:num_test], "validation": test[num_test : num_test + num_validation]}
    held_out = {task.prompt for tasks in parts.values() for task in tasks}
    parts["train"] = [task for task in train if task.prompt not in held_out][: sizes["train"]]
    if empty := [name for name, tasks in parts.items() if not tasks]:
        raise SettingsError(f"too few problems: none is left for {', '.join(empty)}; give more, or another test set")
    return parts
