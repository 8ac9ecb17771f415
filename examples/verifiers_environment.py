"""Train in an environment of the package `verifiers` (versions 0.1 to 0.3).

pip install 'verifiers<0.4'
python examples/verifiers_environment.py                   # tiny model, CPU, seconds
python examples/verifiers_environment.py --model Qwen/Qwen3-0.6B --environment NAME

`--environment` loads an installed environment with `verifiers.load_environment`; by default a small one is defined here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from options import example_parser, make_config, print_rewards

from midthought import Trainer
from midthought.env.verifiers import from_verifiers

ROWS = [
    {"prompt": [{"role": "user", "content": f"Reverse the word {word}."}], "answer": word[::-1]}
    for word in ("stone", "tide", "paper", "lamp")
]


def built_in_environment(vf: Any) -> Any:
    """Two turns: the first wrong answer gets a hint. The rubric pays for a correct last answer."""

    class Reversal(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **options: Any) -> Any:
            return [{"role": "user", "content": f"The first letter is {state['answer'][0]}. Try again."}]

    def is_correct(completion: Any, answer: str, **options: Any) -> float:
        return float(answer in completion[-1]["content"])

    from datasets import Dataset

    return Reversal(dataset=Dataset.from_list(ROWS), rubric=vf.Rubric(funcs=[is_correct]), max_turns=2)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    parser = example_parser(__doc__)
    parser.add_argument("--environment", help="name of an installed verifiers environment; default: a built-in one")
    options = parser.parse_args(arguments)
    try:
        import verifiers as vf
    except ImportError:
        raise SystemExit("This example needs the package verifiers: pip install 'verifiers<0.4'") from None
    loaded = vf.load_environment(options.environment) if options.environment else built_in_environment(vf)
    config = make_config(options, adv_estimator="grpo", group_size=4)
    with Trainer(config, lambda: from_verifiers(loaded), run_path=options.run) as trainer:
        history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()
