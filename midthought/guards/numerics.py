"""Guards of the numbers: log-probabilities that differ between engine and learner, values that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from midthought.guards.finding import Finding, by_evidence
from midthought.guards.history import RANDOM_ENTROPY, History, Row, fell, mean_of, step_of, too_hot, uncertainty, value
from midthought.guards.registry import LOWER_LEARNING_RATE, guard
from midthought.guards.rewards import TOO_LARGE

NUM_BEFORE = 20
"""Earlier iterations with which a value is compared."""
MIN_BEFORE = 5
SPIKE_FACTOR = 10.0
"""A spike is this many times the largest of the earlier values,"""
SPIKE_FLOORS = {"value_loss": 5.0, "approx_kl": 0.05, "kl_reference": 1.0}
"""and larger than this."""
GRADIENTS = ("grad_norm", "critic_grad_norm")
"""Their floor is `training.max_grad_norm`. A large gradient is clipped to it, so a single one is not reported by itself."""
NUM_AFTER = 3
"""Iterations after a large gradient that show whether it did harm."""
MAX_APPROX_KL = 0.3
"""KL divergence of an update, in nats per token, that is reported by itself. The usual target of PPO is 0.01."""
MIN_RANDOM = 3
"""Iterations in a row with random samples."""
MAX_DECAY = 0.01
"""Share of the weights that weight decay may remove per step."""
LOW_TEMPERATURE, MIN_NATS = 0.5, 0.02
"""Below both, the temperature leaves nothing to explore."""
MAX_STALE_SHARE = 0.5
KL_FACTOR = 10.0
"""A KL penalty that is this many times the rewards (in the loss: the largest policy gradient, 1) is reported."""

LOGPROB_CAUSES = (
    "the engine computes in another precision or with another runner than the learner (model.dtype, inference.backend)",
    "a server returns log-probabilities of another distribution than the one it samples from (vLLM: --logprobs-mode "
    "processed_logprobs)",
    "the engine does not apply the adapters (model.lora_rank)",
    "the engine did not load the last update's weights (inference.sync_tolerance is too large)",
    "the model's forward pass is random, or depends on what else is in the batch",
)


@guard("logprob_difference", policy="stop", is_before_update=True)
def logprob_difference(history: History) -> Iterator[Finding]:
    """Sampled and recomputed log-probabilities differ: a warning above `training.logprob_difference_warn`, a stop above
    `training.logprob_difference_stop`."""
    row = history.iterations[-1]
    mean = value(row, "logprob_difference_mean")
    warn = history.setting("training.logprob_difference_warn", 0.05)
    stop = history.setting("training.logprob_difference_stop", 0.5)
    if not mean > warn:  # NaN: no token of the current policy
        return
    dtype = history.setting("model.dtype", "float32")
    is_other = history.setting("inference.backend", "local") != "local" or dtype != "float32"
    is_large = stop is not None and mean > stop
    limit = f"training.logprob_difference_stop is {stop:g}. No step was taken from them" if is_large else ""
    yield Finding(
        observation=f"sampled and recomputed log-probabilities differ by {mean:.3g} nats on average (at most "
        f"{value(row, 'logprob_difference_max'):.3g}), over the tokens of the current policy; "
        + (limit or f"training.logprob_difference_warn is {warn:g}"),
        start_step=step_of(history.streak(lambda row: value(row, "logprob_difference_mean") > warn)[0]),
        causes=LOGPROB_CAUSES if is_other else (LOGPROB_CAUSES[-1], *LOGPROB_CAUSES[:-1]),
        action="training.logprob_difference_stop=null disables this check"
        if is_large
        else "Further iterations: logprob_difference_mean in the metrics",
        at_most="rollback" if is_large else "warn",
    )


@guard("not_finite", policy="stop", rollback=LOWER_LEARNING_RATE)
def not_finite(history: History) -> Iterator[Finding]:
    """Steps whose gradient is not finite: a warning if some of an iteration's are not, a stop if none is."""
    row = history.iterations[-1]
    num_steps, num_skipped = value(row, "num_optimizer_steps"), value(row, "num_skipped_steps")
    if not num_skipped > 0:
        return
    is_all = num_skipped >= num_steps
    share = "no gradient" if is_all else f"{num_skipped:.0f} of {num_steps:.0f} gradients"
    yield Finding(
        observation=f"{share} of iteration {step_of(row)} was finite: loss {value(row, 'loss'):g}, gradient norm "
        f"{value(row, 'grad_norm'):g}"
        if is_all
        else f"{share} of iteration {step_of(row)} were not finite, and their steps were not taken",
        start_step=step_of(history.streak(lambda row: value(row, "num_skipped_steps") > 0)[0]),
        causes=_causes_of_nan(history),
        action=f"{TOO_LARGE}, or scale the reward. No step was taken from this gradient; its episodes are in RUN/guards",
        at_most="rollback" if is_all else "warn",
    )


def _causes_of_nan(history: History) -> tuple[str, ...]:
    row = history.iterations[-1]
    mean, std = value(row, "reward/mean"), value(row, "reward/std")
    weights = "weights that are too large or not finite"
    rewards = f"rewards of this size (mean {mean:g})"
    is_extreme = not math.isfinite(mean) or max(abs(mean), std) > 1e6
    return (rewards, weights) if is_extreme else (weights, rewards)


@guard("spike", rollback=LOWER_LEARNING_RATE)
def spike(history: History) -> Iterator[Finding]:
    """A value loss or KL divergence is far above all of the last iterations, or an update changes the policy too much; or a
    gradient norm is, and the rewards of the iteration are too, or the `NUM_AFTER` iterations after it are worse."""
    limit = history.setting("training.max_grad_norm", 1.0)
    for name in GRADIENTS:
        is_late = not _rewards_jumped(history.iterations)  # otherwise there is no need to wait for what it does
        if not is_late or _did_harm(history, name):
            floor = limit if math.isfinite(limit) else 0.0
            then = f", and the {NUM_AFTER} iterations after it are worse than those before" if is_late else ""
            yield from _spike_of(history.iterations[: -NUM_AFTER if is_late else None], name, floor, then)
    for name, floor in SPIKE_FLOORS.items():
        yield from _spike_of(history.iterations, name, floor)


def _spike_of(rows: Sequence[Row], name: str, floor: float, then: str = "") -> Iterator[Finding]:
    """Reports the last row if its value is a spike. `then`: what followed."""
    if not rows:
        return
    now = value(rows[-1], name)
    earlier = [found for row in rows[-1 - NUM_BEFORE : -1] if (found := value(row, name)) > floor / 10_000]
    is_spike = len(earlier) >= MIN_BEFORE and now > max(floor, SPIKE_FACTOR * max(earlier))
    if not is_spike and not (name == "approx_kl" and now > MAX_APPROX_KL):
        return
    compared = f", {now / max(earlier):.0f} times the largest of {len(earlier)} earlier iterations" if is_spike else ""
    mean, std = value(rows[-1], "reward/mean"), value(rows[-1], "reward/std")
    yield Finding(
        observation=f"{name} is {now:.3g} in iteration {step_of(rows[-1])}{compared}{then}",
        start_step=step_of(rows[-1]),
        subject=name,
        causes=by_evidence(
            (
                _rewards_jumped(rows) or _rewards_grew(rows),
                f"rewards of another size (mean {mean:.3g}, standard deviation {std:.3g}): a task or a reward",
            ),
            (None, "steps that are too large (training.learning_rate, training.max_grad_norm, training.ppo_epochs)"),
            (None, "episodes that older policies sampled, or an engine that samples from other weights"),
        ),
        action="Lower training.learning_rate, limit the reward, and read this iteration's episodes in trajectories.jsonl",
    )


def _rewards_jumped(rows: Sequence[Row]) -> bool:
    """Whether the rewards of the last row differ among each other by more than five times the size of all rewards before them."""
    largest = max(filter(math.isfinite, map(_size, rows[-1 - NUM_BEFORE : -1])), default=0.0)
    return largest > 0 and value(rows[-1], "reward/std") > 5 * largest


def _rewards_grew(rows: Sequence[Row]) -> bool:
    """Whether the rewards of the last row, even if they are all equal, are more than five times as large as all before them."""
    largest = max(filter(math.isfinite, map(_size, rows[-1 - NUM_BEFORE : -1])), default=0.0)
    return largest > 0 and _size(rows[-1]) > 5 * largest


def _size(row: Row) -> float:
    return abs(value(row, "reward/mean")) + value(row, "reward/std")


def _did_harm(history: History, name: str) -> bool:
    """Whether the rewards of the last `NUM_AFTER` iterations fell, or all of their gradients are still `SPIKE_FACTOR` times the
    median of those before."""
    before, after = history.iterations[:-NUM_AFTER], history.iterations[-NUM_AFTER:]
    earlier = [found for row in before[-1 - NUM_BEFORE : -1] if math.isfinite(found := value(row, name))]
    usual = median(earlier) if earlier else math.inf
    return fell(history, after) or all(value(row, name) > SPIKE_FACTOR * usual for row in after)


@guard("kl_outweighs_reward")
def kl_outweighs_reward(history: History) -> Iterator[Finding]:
    """The penalty for the distance from the reference policy is far larger than all rewards, so the policy cannot change."""

    def penalty(row: Row) -> float:
        coef = value(row, "kl_coef")
        coef = history.setting("training.kl_coef", 0.0) if math.isnan(coef) else coef
        return coef * abs(value(row, "kl_reference")) * value(row, "episode/policy_tokens")

    def outweighs(row: Row) -> bool:
        in_loss = history.setting("training.kl_loss_coef", 0.0) * abs(value(row, "kl_reference"))
        return (
            penalty(row) > KL_FACTOR * (abs(value(row, "reward/mean")) + value(row, "reward/std")) > 0
            or in_loss > KL_FACTOR
        )

    rows = history.streak(outweighs)
    if len(rows) < 3:
        return
    in_reward = penalty(rows[-1]) > KL_FACTOR * abs(value(rows[-1], "reward/mean"))
    name, coef = (
        ("training.kl_coef", history.setting("training.kl_coef", 0.0))
        if in_reward
        else ("training.kl_loss_coef", history.setting("training.kl_loss_coef", 0.0))
    )
    yield Finding(
        observation=f"the KL penalty outweighs the reward in the last {len(rows)} iterations: kl_reference is "
        f"{value(rows[-1], 'kl_reference'):.3g} nats per token, {name} {coef:g}, and the mean reward "
        f"{value(rows[-1], 'reward/mean'):.3g}",
        start_step=step_of(rows[0]),
        causes=(f"{name} is too large", "steps that are too large (training.learning_rate)"),
        action=f"Lower {name} (usual: 0.001 to 0.1), or lower training.learning_rate",
    )


@guard("random_samples")
def random_samples(history: History) -> Iterator[Finding]:
    """The policy samples nearly at random: at a high temperature from the start, else after it has written text."""
    rows = history.streak(lambda row: uncertainty(row) > RANDOM_ENTROPY)
    first = fmean(map(uncertainty, history.iterations[:2]))
    is_hot, cause = too_hot(history, rows)
    if len(rows) < MIN_RANDOM or not (is_hot or first < 0.5 * RANDOM_ENTROPY):
        return
    entropy = fmean(map(uncertainty, rows[-MIN_RANDOM:]))
    coef = history.setting("training.entropy_coef", 0.0)
    decay = history.setting("training.weight_decay", 0.0) * history.setting("training.learning_rate", 0.0)
    yield Finding(
        observation=f"the entropy of the last {len(rows)} iterations is {entropy:.2g} nats per token, as if "
        f"{math.exp(entropy):.0f} tokens were equally likely; it was {first:.2g} at first",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            (is_hot, cause),
            (bool(coef), f"a bonus for entropy that outweighs the reward (training.entropy_coef={coef:g})"),
            (
                decay >= MAX_DECAY,
                f"each step removes {decay:.0%} of the weights (training.weight_decay, training.learning_rate)",
            ),
            (False if is_hot else None, "steps that are too large (training.learning_rate)"),
        ),
        action="Set inference.temperature=1; read an episode in trajectories.jsonl to see whether it is text"
        if is_hot
        else "Lower what the first cause names, and go on from a checkpoint before the rise",
    )


@guard("no_exploration")
def no_exploration(history: History) -> Iterator[Finding]:
    """At a low temperature, the samples hardly differ."""
    temperature = history.setting("inference.temperature", 1.0)
    nats = [value(row, "episode/sampled_nats") for row in history.iterations[-MIN_BEFORE:]]
    if temperature < LOW_TEMPERATURE and len(nats) == MIN_BEFORE and median(nats) < MIN_NATS:
        yield Finding(
            observation=f"sampled tokens have a negative log-probability of {median(nats):.2g} nats (median of {MIN_BEFORE} "
            "iterations): nearly all samples of a prompt are equal",
            start_step=step_of(history.iterations[-MIN_BEFORE]),
            causes=(f"too little exploration: inference.temperature={temperature:g}",),
            action="Set inference.temperature=1",
        )


@guard("entropy_collapse", rollback=LOWER_LEARNING_RATE)
def entropy_collapse(history: History) -> Iterator[Finding]:
    """The entropy has fallen to a tenth without a better reward: the policy no longer explores."""
    logged = [row for row in history.iterations if math.isfinite(value(row, "entropy"))]
    early = logged[:2]
    first, std = mean_of(early, "entropy"), mean_of(early, "reward/std")
    low = history.streak(lambda row: value(row, "entropy") < 0.1 * first)
    if len(low) < MIN_BEFORE or not first > 0.05:
        return
    gain = mean_of(low[-MIN_BEFORE:], "reward/mean") - mean_of(early, "reward/mean")
    if gain > 0.5 * std:
        return
    coef = history.setting("training.entropy_coef", 0.0)
    kl = max((value(row, "approx_kl") for row in history.iterations[-NUM_BEFORE:]), default=math.nan)
    is_flat = mean_of(low[-3:], "reward/std") < 0.1 * std
    yield Finding(
        observation=f"the entropy of the policy fell from {first:.3g} to {mean_of(low[-3:], 'entropy'):.3g} nats per token, "
        f"while the mean reward changed by {gain:.3g}",
        start_step=step_of(low[0]),
        causes=by_evidence(
            (kl > 0.05, "steps that are too large: training.learning_rate"),
            (
                is_flat and gain > -0.5 * std,
                "one answer gets nearly the best reward: the reward does not tell episodes apart any more",
            ),
            (not coef, "no bonus for entropy (training.entropy_coef=0)"),
            (None, "clipping that stops unlikely tokens from becoming likely (training.clip_ratio_high)"),
        ),
        action="Lower training.learning_rate, set training.entropy_coef or training.clip_ratio_high=0.28, and continue from a "
        "checkpoint before the fall",
    )


@guard("stale_share")
def stale_share(history: History) -> Iterator[Finding]:
    """Partial rollouts: older policies sampled most of the tokens."""
    rows = history.streak(lambda row: value(row, "partial/stale_token_share") > MAX_STALE_SHARE)
    if len(rows) < 3:
        return
    over, limit = history.setting("inference.partial_over_sampling", 1.5), history.setting("inference.max_tokens", 256)
    tools, engine = (history.recent(f"time/episode/{name}_seconds") for name in ("tool", "engine"))
    yield Finding(
        observation=f"older policies sampled {history.recent('partial/stale_token_share'):.0%} of the tokens of the last "
        f"{len(rows)} iterations; the oldest are {history.recent('partial/max_staleness'):.0f} updates old",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            (tools > engine, "slow tools keep episodes in flight over several iterations"),
            (over > 1.5, f"too many episodes in flight (inference.partial_over_sampling={over:g})"),
            (
                None,
                f"episodes that are long compared with an iteration (inference.max_tokens={limit}), or a small batch",
            ),
        ),
        action="Lower inference.partial_over_sampling or inference.partial_max_carry_overs, or raise training.batch_size",
    )
