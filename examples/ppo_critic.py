"""PPO with a critic: generalized advantage estimation in an environment of several turns.

python examples/ppo_critic.py                              # tiny model, CPU, seconds
python examples/ppo_critic.py --model Qwen/Qwen3-0.6B --iterations 200

A tiny model has a separate critic. A real model on a GPU shares its layers with the critic (`model.critic=auto`).
"""

from __future__ import annotations

from collections.abc import Sequence

from options import example_parser, make_config, print_rewards

from midthought import BaseEnvironment, Trainer


class GuessTheNumber(BaseEnvironment):
    """The policy guesses a number from 1 to 9 and is told whether the number is larger or smaller."""

    def reset(self, seed: int = 0) -> str:
        self.number = seed % 9 + 1
        return "Guess my number from 1 to 9. Answer with one digit."

    def step(self, action: str):
        digits = [int(character) for character in action if character in "123456789"]
        if not digits:
            return "That is not a digit from 1 to 9.", 0.0, False, {}
        guess = digits[-1]
        if guess == self.number:
            return "Correct.", 1.0, True, {"success": True}
        return f"The number is {'larger' if self.number > guess else 'smaller'}.", 0.0, False, {"success": False}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    options = example_parser(__doc__).parse_args(arguments)
    config = make_config(options, adv_estimator="gae", gamma=1.0, lam=0.95, critic_learning_rate=1e-4)
    config.environment.max_steps = 4
    with Trainer(config, GuessTheNumber, run_path=options.run) as trainer:
        history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()
