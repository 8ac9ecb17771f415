"""A small random model learns `SimpleGameEnvironment` on one core: its share of the best return, before and after PPO.

`python benchmarks/game.py [--estimators gae grpo] [--seeds 0 1 2] [--set training.max_staleness=2 …]` prints a row for each
estimator and seed. Each run is a separate process with one thread, so that CPU time equals wall time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from midthought import ConfigStore, RayPPOTrainer, Reward, SimpleGameEnvironment, create_default_config
from midthought.config.yaml_files import parse_assignments
from midthought.env.game import GameState

WORDS = (
    "user assistant . , Take take every item then complete move north south east west key The is here You have can Done"
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)
SETTINGS: dict[str, dict[str, Any]] = {
    "gae": {"batch_size": 48, "mini_batch_size": 16, "entropy_coef": 0.005, "gamma": 0.97, "lam": 0.95},
    "grpo": {"batch_size": 96, "mini_batch_size": 48, "entropy_coef": 0.01, "group_size": 16},
}
MAX_TOKENS = {"gae": 300, "grpo": 120}
NUM_ITERS = {"gae": 150, "grpo": 130}
NUM_EPISODES = 192


class Game(SimpleGameEnvironment):
    """Remembers its start."""

    def reset(self, seed: int | None = None) -> str:
        seen = super().reset(seed)
        self.first_state = self._state
        return seen

    def optimal_return(self) -> float:
        """Computes the best return of this episode from its start, within `max_steps`, by a search through all states."""
        longest = len(self.first_state.lying) * (2 * self.grid_size - 1) + 1
        if self.config.max_steps is not None:
            longest = min(longest, self.config.max_steps)
        best, layer = 0.0, {self.first_state: 0.0}
        for num_steps in range(longest):
            following: dict[GameState, float] = {}
            for state, so_far in layer.items():
                for reached in self._possible(state).values():
                    total = so_far + self._reward(state, reached, num_steps)
                    best = max(best, total)
                    if reached is not None:
                        following[reached] = max(total, following.get(reached, 0.0))
            layer = following
        return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--estimators", nargs="+", default=["gae", "grpo"], choices=sorted(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of all runs")
    parser.add_argument("--one", action="store_true", help="run the one given here and print its figures as JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run(arguments.estimators[0], arguments.seeds[0], arguments.set)))
        return
    print(
        "| estimator | seed | before: sampled, greedy | after: sampled, greedy | completed | mean reward | CPU seconds |\n"
        + "| --- " * 7
        + "|"
    )
    for estimator in arguments.estimators:
        for seed in arguments.seeds:
            command = [sys.executable, __file__, "--one", "--estimators", estimator, "--seeds", str(seed)]
            command += ["--set", *arguments.set]
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            print(row(estimator, seed, json.loads(told.splitlines()[-1])), flush=True)


def row(estimator: str, seed: int, figures: dict[str, float]) -> str:
    return (
        f"| {estimator} | {seed} | {figures['before_sampled']:.2f}, {figures['before_greedy']:.2f} "
        f"| {figures['after_sampled']:.2f}, {figures['after_greedy']:.2f} | {figures['after_completed']:.2f} "
        f"| {figures['mean_reward']:.3f} | {figures['cpu_seconds']:.0f} |"
    )


def run(estimator: str, seed: int, words: Sequence[str] = ()) -> dict[str, float]:
    """Shares of the best return that could be had from the same starts, which training never sees, and the mean reward of all
    iterations (the area under the curve)."""
    torch.set_num_threads(1)
    model, tokenizer = random_policy(seed)
    before = measure(model, tokenizer)
    began = time.process_time()
    config = settings(estimator, seed).merged(parse_assignments(words))
    with RayPPOTrainer(config, SimpleGameEnvironment, model=model, tokenizer=tokenizer, progress=False) as trainer:
        history = trainer.fit()
    cpu_seconds = time.process_time() - began
    after = measure(model, tokenizer)
    figures = {f"before_{name}": value for name, value in before.items()}
    figures |= {f"after_{name}": value for name, value in after.items()}
    names = {"mean_reward": "reward/mean", "mean_age": "staleness/mean"}
    means = {name: statistics.mean(metrics.get(key, 0.0) for metrics in history) for name, key in names.items()}
    return figures | means | {"cpu_seconds": cpu_seconds}


def settings(estimator: str, seed: int) -> ConfigStore:
    config = create_default_config(preset="tiny")
    config.inference.max_turns = 10
    config.inference.max_tokens = MAX_TOKENS[estimator]
    config.training.adv_estimator = estimator
    config.training.seed = seed
    config.training.num_train_iters = NUM_ITERS[estimator]
    config.training.learning_rate = config.training.critic_learning_rate = 3e-3
    config.training.ppo_epochs = 2
    config.training.micro_batch_tokens = 16384
    config.training.kl_coef = 0.0
    config.training.validate_every = 0
    return config.merged({"training": SETTINGS[estimator]})


def measure(model: Any, tokenizer: Any) -> dict[str, float]:
    """The policy as it is, over 192 starts of a seed of its own, sampled at temperature 1 and greedy."""
    config = create_default_config()
    config.inference.max_turns, config.inference.max_tokens = 10, 300
    config.training.seed = 1000
    config.training.batch_size = NUM_EPISODES
    best: list[float] = []

    def as_paid(trajectory: Any, environment: Any) -> Reward:
        best.append(environment.optimal_return())
        return Reward(turns=tuple(turn.reward for turn in trajectory.turns))

    with RayPPOTrainer(config, Game, as_paid, model=model, tokenizer=tokenizer, progress=False) as trainer:
        sampled = sum(trajectory.reward.total for trajectory in trainer.rollout()) / sum(best)
        best.clear()
        greedy = trainer.evaluate(NUM_EPISODES)
    share = greedy["reward/mean"] * NUM_EPISODES / sum(best)
    return {"sampled": sampled, "greedy": share, "completed": greedy.get("env/success_share", 0.0)}


def random_policy(seed: int, width: int = 48, num_layers: int = 2) -> tuple[Any, Any]:
    """A Qwen3 with random weights, and a tokenizer of the game's own words."""
    specials = ["<|pad|>", "<|im_start|>", "<|im_end|>", "[unk]"]
    vocabulary = {word: number for number, word in enumerate([*specials, *WORDS.split()])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[unk]"))
    words.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    words.add_special_tokens(specials[:3])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|pad|>", unk_token="[unk]", chat_template=TEMPLATE
    )
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=num_layers,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 16,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        initializer_range=width**-0.5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.5)
    torch.nn.init.normal_(model.lm_head.weight, std=0.02)
    return model, tokenizer


if __name__ == "__main__":
    main()
