"""Counts how large the core is: settings, validations of one setting, loaded modules, and frames from `fit` to the loss.

`python -m benchmarks core`. One small run on a CPU, in an interpreter that has loaded nothing else.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SETTINGS: dict[str, dict[str, Any]] = {
    "model": {"hidden_size": 32, "num_layers": 1, "vocab_size": 300},
    "inference": {"max_tokens": 8, "max_turns": 1, "backend": "local"},
    "training": {"batch_size": 2, "num_train_iters": 1, "validate_every": 0, "policy_loss": "counted"},
}
ROWS = [{"question": "Write.", "answer": "a"}]


def num_modules() -> int:
    """Returns the number of loaded modules of the package."""
    return sum(name.partition(".")[0] == "midthought" for name in sys.modules)


def num_settings(store: Any) -> int:
    """Returns the number of settings in all sections of a class of settings."""
    return sum(len(field.annotation.model_fields) for field in store.model_fields.values())


@contextmanager
def counted_validations(section: Any) -> Iterator[list[str]]:
    """Yields a list that gets an item for each complete validation of a section, which is one of each of its settings."""
    validator, found = section.__init__, []

    def init(self: Any, **values: Any) -> None:
        found.append("created")
        validator(self, **values)

    section.__init__ = init
    try:
        yield found
    finally:
        section.__init__ = validator


def frames_of_the_package() -> list[str]:
    """Returns the files of the package on the stack, from `fit` to the caller's caller."""
    package = f"{Path(sys.modules['midthought'].__file__ or '').parent}/"
    stack = [frame for frame in traceback.extract_stack()[:-2] if frame.filename.startswith(package)]
    first = next(number for number, frame in enumerate(stack) if frame.name == "fit")
    return [frame.filename for frame in stack[first:]]


def main() -> None:
    """Prints the figures."""
    from midthought import Trainer

    figures = {"modules after importing Trainer": num_modules()}
    from midthought.algo.policy_losses import policy_loss, ppo
    from midthought.config import TrainingConfig, create_default_config

    frames: list[str] = []

    @policy_loss("counted")
    def counted(inputs: Any) -> Any:
        frames[:] = frames_of_the_package()
        return ppo(inputs)

    with (
        counted_validations(TrainingConfig) as of_trainer,
        Trainer(create_default_config(**SETTINGS), dataset=ROWS, progress=False) as trainer,
    ):
        trainer.fit()
    figures["modules after one fit"] = num_modules()
    from midthought.recipes import find_recipe  # after the modules of a fit, which needs no recipe

    podcast = find_recipe("podcast")
    figures["fields of TrainingConfig"] = len(TrainingConfig.model_fields)
    figures["settings of train podcast"] = num_settings(podcast.config_class())
    with counted_validations(TrainingConfig) as of_recipe:
        podcast.begin(Path(), words=["training.seed=1"])
    figures["validations of a setting in podcast's settings"] = len(of_recipe)
    figures["validations of a setting from ConfigStore through fit"] = len(of_trainer)
    figures["frames from fit to the loss"], figures["their modules"] = len(frames), len({*frames})
    for name, number in figures.items():
        print(f"{number:5}  {name}")
