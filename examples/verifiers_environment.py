"""Train on a taskset of the package `verifiers` (from 0.4).

pip install verifiers
python examples/verifiers_environment.py                   # tiny model, CPU, seconds
python examples/verifiers_environment.py --model Qwen/Qwen3-0.6B --taskset NAME

`--taskset` loads an installed taskset by its name; by default a small one is defined here: reverse a word.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from options import example_parser, make_config, print_rewards

from midthought import Trainer
from midthought.env.verifiers import VerifiersEnvironment

WORDS = ("stone", "tide", "paper", "lamp")


def taskset(name: str | None) -> Any:
    """A taskset of verifiers.v1: its tasks have a prompt, and rewards that read the record."""
    import verifiers.v1 as vf

    if name is not None:
        return vf.load_taskset(vf.TasksetConfig(id=name))

    class Word(vf.TaskData):
        answer: str

    class Reverse(vf.Task[Word]):
        @vf.reward
        async def is_correct(self, task: Word, trace: Any) -> float:
            return float(task.answer in trace.last_reply)

    class Words(vf.Taskset[Reverse, vf.TasksetConfig]):
        def load(self) -> Any:
            for word in WORDS:
                yield Reverse(Word(prompt=f"Reverse the word {word}.", answer=word[::-1]))

    return Words(vf.TasksetConfig(id="words"))


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    parser = example_parser(__doc__)
    parser.add_argument("--taskset", help="name of an installed taskset; default: the one of this file")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("verifiers") is None:
        raise SystemExit("This example needs the package verifiers: pip install verifiers")
    config = make_config(options, adv_estimator="grpo", group_size=4)
    with Trainer(config, VerifiersEnvironment(taskset(options.taskset)), run_path=options.run) as trainer:
        history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()
