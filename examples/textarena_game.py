"""Train against a fixed opponent in a game of TextArena: the policy plays tic-tac-toe, from a seat that the seed draws.

python examples/textarena_game.py                          # tiny model, CPU, seconds
python examples/textarena_game.py --model Qwen/Qwen3-0.6B --iterations 200

Needs the extra `textarena`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from options import example_parser, make_config, print_rewards

from midthought import Trainer
from midthought.env.textarena import from_textarena


def random_move(seen: str) -> str:
    """Chooses one of the cells that the newest board offers. It sees everything that was shown to its player, and draws its
    random number from that: a game can be repeated."""
    return random.Random(seen).choice(re.findall(r"'(\[\d+\])'", seen.rpartition("Available Moves:")[2]))


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    options = example_parser(__doc__).parse_args(arguments)
    config = make_config(options, adv_estimator="grpo", group_size=4)
    game = from_textarena("TicTacToe-v0", opponent=random_move, player=None)
    with Trainer(config, game, run_path=options.run) as trainer:
        history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()
