"""Checks of each iteration of a run: episodes, numbers, rewards and tools. They read metrics, errors and unread calls."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from midthought.checks.examination import History, Row, mean_of, step_of, value
from midthought.checks.inputs import MIN_CHANGE, MIN_STEP, hindrance
from midthought.checks.registry import Finding, Policy, check

NUM_ITERS, NUM_FEW = 5, 3
"""Iterations in a row after which a property of the episodes is reported; for failures of all episodes, and for tools."""
CUT_SHARE, LOST_SHARE = 0.9, 0.5
"""Shares of the episodes that end at a limit, and that fail."""
NUM_BEFORE, MIN_BEFORE = 20, 5
"""Earlier iterations with which a value is compared."""
MIN_CALLS = 0.05
"""Calls of a tool per episode, below which its failures are not judged."""
SPIKE_FACTOR, SPIKE_FLOORS = 10.0, {"value_loss": 5.0, "approx_kl": 0.05, "kl_reference": 1.0}
"""A spike is this many times the largest of the earlier values, and larger than its floor."""
MAX_APPROX_KL, MAX_CHANGE = 0.3, 0.1
"""KL divergence of an update (nats per token; PPO's usual target is 0.01), and relative change of the weights per step."""
MAX_NOISE = 1e-6
"""Rewards that differ less, relative to their size or to 1, are equal."""
LIMITS = {"length": "inference.max_tokens", "max_turns": "inference.max_turns", "max_steps": "environment.max_steps"}
LARGE_DIFFERENCE, WRONG_DIFFERENCE = 0.05, 0.5
"""Nats between sampled and recomputed log-probabilities, on average, of a warning and of a stop."""
STALE_FACTOR, STALE_FLOOR = 10.0, 1e-4
"""With `training.max_staleness`, tokens differ too much from this many times what the newest ones of earlier iterations did, plus
the floor in nats: episodes go on while weights change, so a fault in that shows as a jump."""
MIN_STALE = 128
"""Tokens below which their mean is not judged so: single differences in bfloat16 are large."""
NO_SIGNAL_ITERS = 10
"""Iterations without a training signal (all rewards equal) that end a run: its first ones, or as many in a row later."""
SLOWER = "lower training.learning_rate, and resume from the last checkpoint"
CORRECT = "correct what the error names"
TEACH = "warm up with demonstrations (sft), or set call_format='auto'"


def _since(row: Row, observation: str, action: str, subject: str = "", policy: Policy = "warn") -> Finding:
    return Finding(observation, action, subject, policy, step_of(row))


@check("episodes_fail", "iteration")
def episodes_fail(history: History) -> Iterator[Finding]:
    """Not all episodes fail: at once if none had a reward before or the engine fails, else in `NUM_FEW` iterations."""
    error = f"most often: {history.error}" if history.error else "the errors are in trajectories.jsonl"
    rows = history.streak(lambda row: value(row, "episode/failed") == 1)
    had_rewards = any(math.isfinite(value(row, "reward/mean")) for row in history.iterations)
    is_engine = str(history.error).startswith("EngineError")
    if rows and (len(rows) >= NUM_FEW or is_engine or not had_rewards):
        observation = f"all {value(rows[-1], 'episode/count'):.0f} episodes of iteration {history.step} failed, {error}"
        has_servers = history.setting("inference.base_url") and history.setting("inference.backend") != "local"
        remedy = "see that the servers answer (inference.base_url), and resume"
        yield _since(rows[0], observation, remedy if is_engine and has_servers else CORRECT, policy="stop")
    rows = history.streak(lambda row: LOST_SHARE <= value(row, "episode/failed") < 1)
    if len(rows) >= NUM_ITERS:
        share = f"{mean_of(rows, 'episode/failed'):.0%} of the episodes of {len(rows)} iterations"
        yield _since(rows[0], f"{share} failed, {error}", CORRECT, "some")


@check("truncated", "iteration")
def truncated(history: History) -> Iterator[Finding]:
    """Most episodes end by themselves, not at a limit; a policy may learn to reach that of steps."""
    for reason, name in LIMITS.items():
        limit, key = history.setting(name), f"episode/{reason}"
        least = LOST_SHARE if (reason, limit) == ("max_turns", 1) else CUT_SHARE
        rows = history.streak(lambda row, key=key, least=least: value(row, key) >= least)  # type: ignore[misc]
        if len(rows) >= NUM_ITERS and (reason != "max_steps" or len(rows) == len(history.iterations)):
            shown = f"{name}={limit}" if limit else f"{name}, or a limit of its own"
            observation = f"{mean_of(rows, key):.0%} of the episodes of {len(rows)} iterations end at {shown}"
            yield _since(rows[0], observation, f"raise {name}, or see in trajectories.jsonl how they end", reason)


@check("logprob_difference", "scoring")
def logprob_difference(history: History) -> Iterator[Finding]:
    """Sampled and recomputed log-probabilities are equal: a warning above `LARGE_DIFFERENCE` nats, a stop above
    `WRONG_DIFFERENCE`."""
    mean = value(history.iterations[-1], "logprob_difference_mean")
    if mean > LARGE_DIFFERENCE:  # NaN: no token of the current policy
        rows = history.streak(lambda row: value(row, "logprob_difference_mean") > LARGE_DIFFERENCE)
        is_large = mean > WRONG_DIFFERENCE
        limit = f"the limit is {WRONG_DIFFERENCE if is_large else LARGE_DIFFERENCE:g}"
        observation = f"sampled and recomputed log-probabilities differ by {mean:.3g} nats on average; {limit}"
        remedy = "set inference.backend=local, or let the server return the log-probabilities of what it samples"
        if history.setting("inference.sync_tolerance") is not None:
            remedy = "leave inference.sync_tolerance at its default, which finds old weights after each update"
        yield _since(rows[0], observation, remedy, policy="stop" if is_large else "warn")
    earlier = [value(row, "logprob_difference_mean") for row in history.iterations[:-1]]
    most = STALE_FLOOR + STALE_FACTOR * max(filter(math.isfinite, earlier), default=math.inf)
    for which, name in (("newest", "mean"), ("older", "older_mean")):
        mean = value(history.iterations[-1], f"logprob_difference_{name}")
        if mean > most and value(history.iterations[-1], f"batch/num_{which}_tokens") >= MIN_STALE:
            observation = f"tokens of the {which} weights differ by {mean:.3g} nats on average; the limit is {most:.3g}"
            remedy = "weights or labels of versions are wrong: set training.max_staleness=0, and report it"
            yield _since(history.iterations[-1], observation, remedy, "versions", policy="stop")
            return


@check("not_finite", "iteration")
def not_finite(history: History) -> Iterator[Finding]:
    """Gradients are finite: a warning if some of an iteration's are not, a stop if none is."""
    row, rows = history.iterations[-1], history.streak(lambda row: value(row, "num_skipped_steps") > 0)
    if rows:
        num_steps, num_skipped = value(row, "num_optimizer_steps"), value(row, "num_skipped_steps")
        mean, std, loss = (value(row, name) for name in ("reward/mean", "reward/std", "loss"))
        observation = f"{num_skipped:.0f} of {num_steps:.0f} gradients of iteration {history.step} were not finite"
        observation += f": loss {loss:g}, mean reward {mean:g}"
        remedy = SLOWER if max(abs(mean), std) < 1e6 else "scale the reward to about 1"
        yield _since(rows[0], observation, remedy, policy="stop" if num_skipped >= num_steps else "warn")


@check("policy_unchanged", "iteration")
def policy_unchanged(history: History) -> Iterator[Finding]:
    """Updates change the policy if the rewards differ, and not by a tenth of its size, which only adapters survive."""
    last, rows = history.iterations[-1], [row for row in history.iterations if value(row, "reward/std") > 0]
    if not history.setting("model.lora_rank", 0) and value(last, "weight_change") > MAX_CHANGE:
        observation = f"a step changes the weights by {value(last, 'weight_change'):.2g} of their size"
        yield _since(last, observation, "lower training.learning_rate, and start again", "large steps")
    rows = [row for row in rows if "weight_change" in row]
    is_still = [value(row, "weight_change") < MIN_CHANGE or value(row, "step_size") < MIN_STEP for row in rows]
    if len(rows) >= NUM_ITERS and all(is_still):
        name = hindrance(history, value(rows[-1], "learning_rate"))
        shown = f": {name}={history.setting(name)}" if name else ""
        remedy = f"leave {name} at its default" if name else "train weights that the answer depends on (requires_grad)"
        yield _since(rows[0], f"none of the {len(rows)} updates so far has changed the policy{shown}", remedy)


@check("spike", "iteration")
def spike(history: History) -> Iterator[Finding]:
    """No value loss or KL divergence is far above all of the last iterations, and no update changes the policy too much."""
    rows = history.iterations
    for name, floor in SPIKE_FLOORS.items():
        now, before = value(rows[-1], name), [value(row, name) for row in rows[-1 - NUM_BEFORE : -1]]
        earlier = [found for found in before if found > floor / 10_000]
        is_spike = len(earlier) >= MIN_BEFORE and now > max(floor, SPIKE_FACTOR * max(earlier))
        if is_spike or (name == "approx_kl" and now > MAX_APPROX_KL):
            most = f", and was at most {max(earlier):.3g} in {len(earlier)} iterations before" if earlier else ""
            yield _since(rows[-1], f"{name} is {now:.3g} in iteration {history.step}{most}", SLOWER, name)


@check("entropy", "iteration")
def entropy(history: History) -> Iterator[Finding]:
    """The entropy does not fall to a tenth without a better reward."""
    early = [row for row in history.iterations if math.isfinite(value(row, "entropy"))][:2]
    first, std = mean_of(early, "entropy"), mean_of(early, "reward/std")
    rows = history.streak(lambda row: value(row, "entropy") < 0.1 * first)
    gain = mean_of(rows[-NUM_ITERS:], "reward/mean") - mean_of(early, "reward/mean")
    if len(rows) >= NUM_ITERS and first > 0.05 and gain <= 0.5 * std:
        observation = f"the entropy fell from {first:.3g} to {mean_of(rows, 'entropy'):.3g} nats per token"
        yield _since(rows[0], observation, "lower training.learning_rate, and go on from a checkpoint before the fall")


@check("equal_rewards", "iteration")
def equal_rewards(history: History) -> Iterator[Finding]:
    """Some of the last `NO_SIGNAL_ITERS` iterations had something to learn from. If their rewards became equal and lower
    after iterations of which most had, the policy or the reward has collapsed."""
    rows = history.iterations
    if len(rows) < NO_SIGNAL_ITERS or value(rows[-1], "episode/failed") == 1:
        return
    signals = [_has_signal(history, number) for number in range(len(rows))]
    means = [mean for row in rows if math.isfinite(mean := value(row, "reward/mean"))]
    equal = history.streak(lambda row: _is_flat(row) and _is_equal(row, rows[-1]))
    had_signals = 2 * sum(signals) >= len(rows) - len(equal)
    if not any(signals):
        observation = f"none of the {len(rows)} iterations so far had anything to learn from (reward {means[-1]:g})"
        remedy = "give tasks that the policy solves sometimes, and a reward that tells episodes apart"
        yield _since(rows[0], observation, remedy, policy="stop")
    elif len(equal) >= NO_SIGNAL_ITERS and means[-1] < max(means) - MAX_NOISE and had_signals:
        observation = f"all rewards of {len(equal)} iterations are {means[-1]:g}; before, up to {max(means):g}"
        yield _since(equal[0], observation, f"{SLOWER} or an earlier one", policy="stop")


def _has_signal(history: History, number: int) -> bool:
    """Whether iteration `number` (from 0) had episodes, a gradient, and rewards that differ, in it or from those before."""
    row, before = history.iterations[number], history.iterations[max(number - 1, 0)]
    by_time = row.keys() & {"reward/turns", "reward/per_call"} and history.setting("training.gamma", 1.0) < 1
    has_gradient = bool(row.get("batch/num_episodes", 1)) and row.get("grad_norm") != 0
    return has_gradient and bool(by_time or not (_is_flat(row) and _is_flat(before) and _is_equal(row, before)))


def _is_flat(row: Row) -> bool:
    """Whether all rewards of an iteration are equal, and no teacher gives another signal."""
    return value(row, "reward/std") <= MAX_NOISE * max(1.0, abs(value(row, "reward/mean"))) and "kl_teacher" not in row


def _is_equal(row: Row, other: Row) -> bool:
    return math.isclose(value(row, "reward/mean"), value(other, "reward/mean"), rel_tol=MAX_NOISE, abs_tol=MAX_NOISE)


@check("reward_hacking", "iteration")
def reward_hacking(history: History) -> Iterator[Finding]:
    """If the reward of training rises, the held-out exact match does not fall by more than chance."""
    judged = [row for row in history.validations if math.isfinite(value(row, "exact_match"))]
    if len(judged) >= 2:
        best, last = max(judged[:-1], key=lambda row: row["exact_match"]), judged[-1]
        high, low = best["exact_match"], last["exact_match"]
        variance = high * (1 - high) / best["episode/count"] + low * (1 - low) / last["episode/count"]
        before = [row for row in history.iterations if step_of(row) <= max(step_of(best), 1)][-NUM_ITERS:]
        rise = mean_of(history.iterations[-NUM_ITERS:], "reward/mean") - mean_of(before, "reward/mean")
        if high - low >= max(0.1, 3 * math.sqrt(variance)) and rise > 0:
            observation = f"the mean reward rose by {rise:.3g}, and exact_match fell from {high:.3g} to {low:.3g}"
            remedy = f"pay a right answer more, and go on from the checkpoint of iteration {step_of(best)} or before"
            yield _since(best, observation, remedy)


@check("tool_fails", "iteration")
def tool_fails(history: History) -> Iterator[Finding]:
    """Most calls of a tool succeed, and most calls name a tool and can be read."""
    for name in [key.split("/")[1] for key in history.iterations[-1] if re.fullmatch("tool/.*/failures", key)]:
        keys = [f"tool/{name}/{kind}" for kind in ("bad_arguments", "raised", "timed_out", "unavailable")]

        def fails(row: Row, keys: Sequence[str] = keys, calls: str = f"tool/{name}/calls") -> bool:
            return sum(row.get(key, 0.0) for key in keys) > 0.5 and row.get(calls, 0.0) >= MIN_CALLS

        rows = history.streak(fails)
        if len(rows) >= NUM_FEW:
            shares = [f"{mean_of(rows, key):.0%} {key.rpartition('/')[2]}" for key in keys if mean_of(rows, key)]
            observation = f"most calls of {name} failed in the last {len(rows)} iterations: {', '.join(shares)}"
            remedy = f"call {name} by hand with arguments from trajectories.jsonl"
            if mean_of(rows, keys[2]) + mean_of(rows, keys[3]) > 0.25:
                remedy = "raise inference.tool_timeout_seconds"
            yield _since(rows[0], observation, remedy, name)
    rows = history.streak(lambda row: value(row, "episode/invalid_calls") > 0.5 * max(value(row, "episode/calls"), 0.1))
    if len(rows) >= NUM_FEW:
        invalid, number = mean_of(rows, "episode/invalid_calls"), mean_of(rows, "episode/calls")
        yield _since(rows[0], f"{invalid:.2g} of {number:.2g} calls per episode name no tool or cannot be read", TEACH)


@check("tool_unused", "iteration")
def tool_unused(history: History) -> Iterator[Finding]:
    """The policy calls its tools, and does not stop to. It also calls those that an agent requires (`tool_choice`)."""
    rows = history.streak(lambda row: value(row, "agent/required_missed") > LOST_SHARE)
    if len(rows) >= NUM_FEW:
        missed = mean_of(rows, "agent/required_missed")
        share = f"{missed:.0%} of the answers that must be a call (tool_choice) are none"
        yield _since(rows[0], share, "ask for the call in the prompt, or warm up with demonstrations (sft)", "required")
    first = mean_of(history.iterations[:NUM_FEW], "episode/calls")
    rows = history.streak(lambda row: value(row, "episode/tools") > 0 and value(row, "episode/calls") == 0)
    if rows == history.iterations and len(rows) >= 2 * NUM_ITERS:
        yield _since(rows[0], f"no tool was called in the first {len(rows)} iterations", TEACH)
    rows = history.streak(lambda row: value(row, "episode/calls") < 0.05 * first)
    if len(rows) >= NUM_FEW and first >= 0.1:
        observation = f"{mean_of(rows, 'episode/calls'):.2g} tools are called per episode, and {first:.2g} at first"
        yield _since(rows[0], observation, "lower the cost of a call (reward.call_cost)")


@check("unread_calls", "iteration")
def unread_calls(history: History) -> Iterator[Finding]:
    """Calls of known tools that the policy writes are run."""
    last = [each for each in history.unread[-NUM_FEW:] if each is not None and each.is_frequent]
    if len(last) == NUM_FEW:
        yield _since(history.iterations[-NUM_FEW], str(last[-1]), last[-1].remedy)
