"""What each chart of a run shows: topics, the charts of a topic, and the keys of the metrics that belong to a chart."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

# fmt: off
TOPICS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "Reward": (
        ("Reward", ("reward", "reward/mean", "reward/total", "reward_mean")),
        ("Return", ("env/return_mean",)),
        ("Success", ("env/success_share",)),
        ("Exact match", ("*exact_match*",)),
        ("Reward, standard deviation", ("reward/std",)),
        ("Reward by part", ("reward/*",)),
    ),
    "Tool use": (
        ("Calls per episode", ("episode/calls", "calls", "calls/mean", "calls/per_question", "calls_per_question",
         "num_calls*")),
        ("Call rate", ("*call_rate*", "calls/need*")),
        ("Failed calls per episode", ("tool/*/failures", "tool/*/bad_arguments", "tool/*/raised", "tool/*/timed_out",
         "tool/*/unavailable")),
        ("Repeated and invalid calls", ("episode/repeated_calls", "episode/invalid_calls", "episode/no_calls_left")),
        ("Seconds per tool call", ("time/tool/*",)),
    ),
    "Lengths and ends": (
        ("Tokens per episode", ("episode/policy_tokens", "episode/response_tokens")),
        ("How episodes end", ("episode/answered", "episode/length", "episode/max_turns", "episode/max_steps",
         "episode/failed")),
        ("Repeated text", ("episode/repetition", "episode/empty_thoughts")),
    ),
    "Policy": (
        ("KL to the reference model", ("kl", "kl/mean", "kl/reference", "kl_reference")),
        ("Entropy", ("entropy", "entropy/mean", "episode/sampled_nats")),
        ("KL of an update", ("approx_kl",)),
        ("Clip fraction", ("clip_fraction", "value_clip_fraction")),
        ("Sampled − recomputed log-probability", ("logprob_difference_*",)),
        ("Stale tokens", ("partial/stale_token_share", "partial/max_staleness")),
    ),
    "Loss": (
        ("Policy loss", ("policy_loss", "loss/policy")),
        ("Value loss", ("value_loss", "loss/value")),
        ("Loss", ("loss", "loss/sft", "loss/mean", "loss/total", "loss/train", "loss/validation")),
        ("Gradient norm", ("grad_norm", "critic_grad_norm", "gradient_norm")),
    ),
    "Time": (
        ("Seconds per stage", ("time/rollout_seconds", "time/scoring_seconds", "time/update_seconds",
         "time/weight_update_seconds")),
        ("Tokens per second", ("time/tokens_per_second",)),
    ),
}
"""Titles and patterns of the keys that belong to a chart; a key may also have a prefix (`learner/entropy`)."""
# fmt: on


def subjects() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields topic, title and patterns of each chart, in the order of the page."""
    for topic, charts in TOPICS.items():
        for title, patterns in charts:
            yield topic, title, patterns


def belongs(key: str, patterns: tuple[str, ...]) -> bool:
    """Whether a metric belongs to a chart.

    >>> belongs("learner/entropy", ("entropy",)), belongs("time/tool/search_seconds", ("time/tool/*",))
    (True, True)
    """
    return any(fnmatchcase(f"/{key}", f"*/{pattern}") for pattern in patterns)
