"""What old tokens cost in learning: the mean reward of a run (area under its curve) with `training.max_staleness` against that of
the synchronous run with the same seed, and with other corrections.

`python -m benchmarks.staleness [--seeds 0 1 2 3 4] [--arms S=2 …]`. A small random model learns to write one word: the
reward is the share of its tokens that are this word, so that a curve is smooth and seeds differ little. With `max_staleness` the
learner works in its own process while the engine samples (`inference.overlap`).
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence

import torch
from scipy.stats import t

from benchmarks.game import random_policy
from midthought import Trainer, Trajectory, create_default_config

ANSWER = "north"
BASE = "S=0"
ARMS: Mapping[str, Mapping[str, object]] = {
    BASE: {"max_staleness": 0},
    "S=2": {"max_staleness": 2},
    "S=4": {"max_staleness": 4},
    "S=4, no correction": {"max_staleness": 4, "rollout_correction": "none"},
    "S=4, masked": {"max_staleness": 4, "rollout_correction": "masked"},
    "S=4, sequence": {"max_staleness": 4, "rollout_correction": "sequence_truncated"},
    "S=4, dppo_tv": {"max_staleness": 4, "policy_loss": "dppo_tv"},
}
NUM_ITERS, MAX_TOKENS = 100, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    arguments = parser.parse_args()
    print(
        "| run | mean reward of each seed | last rewards | mean age | loss against S=0, upper end of 90 % |\n"
        + "| --- " * 5
        + "|"
    )
    base = [run(BASE, seed) for seed in arguments.seeds]
    for arm in arguments.arms:
        found = base if arm == BASE else [run(arm, seed) for seed in arguments.seeds]
        print(row(arm, found, base), flush=True)


def row(arm: str, found: Sequence[Mapping[str, float]], base: Sequence[Mapping[str, float]]) -> str:
    losses = [1 - one["area"] / other["area"] for one, other in zip(found, base, strict=True)]
    upper = f"{statistics.mean(losses):+.3f}, {upper_end(losses):+.3f}" if arm != BASE and len(losses) > 1 else ""
    areas, last, age = (", ".join(f"{each[name]:.3f}" for each in found) for name in ("area", "last", "age"))
    return f"| {arm} | {areas} | {last} | {age} | {upper} |"


def upper_end(losses: Sequence[float]) -> float:
    """Upper end of the one-sided 90 % interval of the mean (Student's t)."""
    error = statistics.stdev(losses) / math.sqrt(len(losses))
    return statistics.mean(losses) + float(t.ppf(0.9, len(losses) - 1)) * error


def run(arm: str, seed: int) -> dict[str, float]:
    """Mean reward of all iterations and of the last ten, and mean age of a token in updates."""
    torch.set_num_threads(1)
    model, tokenizer = random_policy(seed)
    config = create_default_config(
        preset="tiny",
        inference={"max_tokens": MAX_TOKENS, "overlap": bool(ARMS[arm]["max_staleness"])},
        training={
            "algorithm": "grpo",
            "group_size": 8,
            "batch_size": 64,
            "mini_batch_size": 64,
            "learning_rate": 1e-3,
            "num_train_iters": NUM_ITERS,
            "validate_every": 0,
            "seed": seed,
            **ARMS[arm],
        },
    )
    rows = [{"question": f"Take {word}", "answer": ANSWER} for word in ("south", "east", "west", "item")]
    own = tokenizer.convert_tokens_to_ids(ANSWER)

    def share(trajectory: Trajectory) -> float:
        return trajectory.token_ids.count(own) / MAX_TOKENS

    with Trainer(config, None, share, rows, model=model, tokenizer=tokenizer, progress=False) as trainer:
        history = trainer.fit()
    rewards = [metrics["reward/mean"] for metrics in history]
    age = statistics.mean(metrics.get("staleness/mean", 0.0) for metrics in history)
    return {"area": statistics.mean(rewards), "last": statistics.mean(rewards[-10:]), "age": age}


if __name__ == "__main__":
    main()
