"""Train in a Gymnasium environment. Two functions convert observations to text and text to actions.

python examples/gymnasium_environment.py                   # tiny model, CPU, seconds
python examples/gymnasium_environment.py --model Qwen/Qwen3-0.6B --iterations 200

Needs the extra `gym`. The functions are optional: without them the policy reads and writes numbers.
FrozenLake is part of Gymnasium: walk over the ice to the goal and avoid the holes.
"""

from __future__ import annotations

from collections.abc import Sequence

from options import example_parser, make_config, print_rewards

from midthought import BaseEnvironment, Trainer
from midthought.env.gym import GymnasiumEnvironment

ACTIONS = ("left", "down", "right", "up")
MAP = ("SFFF", "FHFH", "FFFH", "HFFG")


def observation_to_text(cell: int) -> str:
    row, column = divmod(int(cell), 4)
    return (
        f"Map (S start, F ice, H hole, G goal): {' / '.join(MAP)}. "
        f"You are in row {row + 1}, column {column + 1}. Move {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}."
    )


def text_to_action(text: str) -> int:
    """The last direction in the text. A ValueError is an invalid action: the policy reads the message."""
    found = max(ACTIONS, key=text.lower().rfind)
    if found not in text.lower():
        raise ValueError(f"name one of {', '.join(ACTIONS)}")
    return ACTIONS.index(found)


def make_environment() -> BaseEnvironment:
    import gymnasium

    lake = gymnasium.make("FrozenLake-v1", desc=list(MAP), is_slippery=False)
    return GymnasiumEnvironment(lake, observation_to_text=observation_to_text, text_to_action=text_to_action)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    options = example_parser(__doc__).parse_args(arguments)
    config = make_config(options, adv_estimator="grpo", group_size=4)
    with Trainer(config, make_environment, run_path=options.run) as trainer:
        history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()
