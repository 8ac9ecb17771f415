"""Command-line options of all examples: a tiny model on the CPU by default, a real one with `--model`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from midthought import ConfigStore, create_default_config


def example_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with `--model`, `--iterations` and `--run`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="Hugging Face name or folder; default: a tiny model for the CPU")
    parser.add_argument("--iterations", type=int, default=2, help="training iterations")
    parser.add_argument("--run", help="run folder for metrics, trajectories, checkpoints and the report")
    return parser


def make_config(options: argparse.Namespace, **training: Any) -> ConfigStore:
    """Settings for the chosen model; `training` overrides settings of that section."""
    training["num_train_iters"] = options.iterations
    if options.model:  # the defaults suit it
        return create_default_config(model={"local_path": options.model}, training=training)
    sizes = {"batch_size": 8, "mini_batch_size": 8, "learning_rate": 1e-3, "validate_every": 0}
    return create_default_config(
        model={"hidden_size": 64, "num_layers": 2, "vocab_size": 400},
        inference={"max_tokens": 24},
        training={**sizes, **training},
    )


def print_rewards(history: Sequence[dict[str, float]]) -> None:
    """Print the mean reward of each iteration."""
    for metrics in history:
        print(f"iteration {int(metrics['iteration'])}: mean reward {metrics['reward/mean']:.3f}")
