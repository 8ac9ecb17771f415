"""Train in an environment of the package `verifiers`: v1 (from 0.4), or `MultiTurnEnv` of 0.1 to 0.3.

pip install verifiers
python examples/verifiers_environment.py                   # tiny model, CPU, seconds
python examples/verifiers_environment.py --model Qwen/Qwen3-0.6B --environment NAME

`--environment` loads an installed taskset or environment by its name; by default a small one is defined here: reverse a word;
with `MultiTurnEnv`, the first wrong answer gets a hint.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from options import example_parser, make_config, print_rewards

from midthought import Trainer
from midthought.env.verifiers import from_verifiers

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


def multi_turn_environment(name: str | None) -> Any:
    """A MultiTurnEnv of verifiers up to 0.3, with two turns. The rubric pays for a correct last answer."""
    import verifiers as vf
    from datasets import Dataset

    if name is not None:
        return vf.load_environment(name)

    class Reversal(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **options: Any) -> Any:
            return [{"role": "user", "content": f"The first letter is {state['answer'][0]}. Try again."}]

    def is_correct(completion: Any, answer: str, **options: Any) -> float:
        return float(answer in completion[-1]["content"])

    rows = [
        {"prompt": [{"role": "user", "content": f"Reverse the word {word}."}], "answer": word[::-1]} for word in WORDS
    ]
    return Reversal(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[is_correct]), max_turns=2)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    parser = example_parser(__doc__)
    parser.add_argument("--environment", help="name of an installed environment; default: a built-in one")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("verifiers") is None:
        raise SystemExit("This example needs the package verifiers: pip install verifiers")
    import verifiers

    has_multi_turn = hasattr(verifiers, "MultiTurnEnv")
    loaded = multi_turn_environment(options.environment) if has_multi_turn else taskset(options.environment)
    config = make_config(options, adv_estimator="grpo", group_size=4)
    with Trainer(config, from_verifiers(loaded), run_path=options.run) as trainer:
        history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()
