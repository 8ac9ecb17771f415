"""Guards of the episodes: all fail, all are truncated, their length changes, thoughts are empty or repeat themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import correlation, pstdev

from midthought.config import InferenceConfig
from midthought.guards.finding import Finding, by_evidence
from midthought.guards.history import History, Row, broke_down, last_names, mean_of, step_of, too_hot, value
from midthought.guards.registry import LOWER_LEARNING_RATE, guard
from midthought.report.run_record import JUDGING_PARTS

MAX_FAILED_ITERS = 3
"""Iterations in a row whose episodes all fail. The run stops after them, or after one if no episode had a reward before."""
MIN_FAILED_SHARE = 0.5
"""Share of failed episodes that is reported after `NUM_ITERS` iterations."""
ENGINE_ERROR = "EngineError"
"""Start of an error of the engine, which stops the run at once."""
NUM_ITERS = 5
"""Iterations in a row after which a property of the episodes is reported."""
TRUNCATED_SHARE = 0.9
MIN_FILLED = 0.75
"""Episodes that are truncated fill at least this share of the budget, unless a result did not fit into the rest."""
LENGTH_FACTOR = 2.0
"""Change of the mean length that is reported, if the answers do not get better."""
MIN_LENGTH_CHANGE = 16
"""In tokens."""
MAX_REPETITION = 0.5


@guard("episodes_fail", policy="stop")
def episodes_fail(history: History) -> Iterator[Finding]:
    """All episodes fail: at once if no episode had a reward before or the engine fails, else in `MAX_FAILED_ITERS` iterations."""
    failed = history.streak(lambda row: value(row, "episode/failed") == 1)
    before = history.iterations[: len(history.iterations) - len(failed)]
    had_rewards = any(not math.isnan(value(row, "reward/mean")) for row in before)
    is_engine = str(history.error).startswith(ENGINE_ERROR)
    if not failed or (had_rewards and not is_engine and len(failed) < MAX_FAILED_ITERS):
        return
    count = value(failed[-1], "episode/count")
    episodes = "all episodes" if math.isnan(count) else f"all {count:.0f} episodes"
    action = (
        "See that the engine works (servers: inference.base_url; inference.server_wait_seconds says how long they are waited "
        "for), and resume"
        if is_engine
        else "See that the environment and the reward function work on a single episode: trainer.rollout() runs episodes "
        "without learning"
    )
    yield Finding(
        observation=f"{episodes} of iteration {step_of(failed[-1])} failed, so there is nothing to learn from",
        start_step=step_of(failed[0]),
        causes=(f"the most frequent error: {history.error}",)
        if history.error
        else ("the errors in trajectories.jsonl",),
        action=action,
    )


@guard("some_episodes_fail")
def some_episodes_fail(history: History) -> Iterator[Finding]:
    """At least half of the episodes fail in several iterations in a row. Nothing is learned from them."""
    rows = history.streak(lambda row: MIN_FAILED_SHARE <= value(row, "episode/failed") < 1)
    if len(rows) < NUM_ITERS:
        return
    yield Finding(
        observation=f"{history.recent('episode/failed'):.0%} of the episodes of the last {len(rows)} iterations failed, and "
        "nothing is learned from them",
        start_step=step_of(rows[0]),
        causes=(
            f"the most frequent error: {history.error}" if history.error else "the errors in trajectories.jsonl",
            "a service that the reward, the environment or a tool needs is overloaded",
        ),
        action="Correct what the message names: a longer timeout, fewer concurrent episodes, a retry",
    )


@guard("truncated", rollback=LOWER_LEARNING_RATE)
def truncated(history: History) -> Iterator[Finding]:
    """Nearly all episodes end at the token limit instead of with an answer."""
    rows = history.streak(lambda row: value(row, "episode/length") >= TRUNCATED_SHARE)
    if len(rows) < NUM_ITERS:
        return
    policy, response = history.recent("episode/policy_tokens"), history.recent("episode/response_tokens")
    is_new = step_of(rows[0]) > step_of(history.iterations[0])
    limit = history.setting("inference.max_tokens", 0)
    budget = f"inference.max_tokens={limit}" if limit else "inference.max_tokens"
    is_hot, heat = too_hot(history, rows)
    has_calls = history.recent("episode/calls") >= 0.5
    yield Finding(
        observation=f"{history.recent('episode/length'):.0%} of the episodes of the last {len(rows)} iterations were truncated "
        f"at the token limit ({policy:.0f} policy tokens of {response:.0f} on average)",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            (is_hot, heat),
            (
                has_calls and response < policy + 1 and response < MIN_FILLED * limit,
                f"a tool result does not fit into the rest of {budget}: tools are called, and no episode has a result (lower "
                "inference.max_result_tokens)",
            ),
            (
                policy < 0.5 * response and has_calls,
                "tool results fill the token budget (inference.max_result_tokens)",
            ),
            (
                policy < 0.5 * response and not has_calls,
                "replies of the environment fill the token budget: it does not end its episodes (step returns done=False), or "
                "writes long replies",
            ),
            broke_down(history, rows) if is_new else (False, ""),
            (
                is_new,
                "episodes became longer during training: the reward pays for length or does not punish truncation",
            ),
            (not is_new, f"{budget} is too small for an answer of this model"),
            (
                None,
                "the policy does not know the end of an answer: another chat template than it was trained with, no warm-up",
            ),
        ),
        action="Raise inference.max_tokens, lower inference.max_result_tokens, or set training.overlong_buffer_tokens; read an "
        "episode in trajectories.jsonl to see its end",
    )


@guard("turn_limit")
def turn_limit(history: History) -> Iterator[Finding]:
    """Nearly all episodes end at the limit of turns or steps instead of by themselves; or half of them, if no reply is read."""
    yield from _cut_by_environment(history)
    limit = history.setting("inference.max_turns")
    share = 0.5 if limit == 1 else TRUNCATED_SHARE
    rows = history.streak(lambda row: value(row, "episode/max_turns") >= share)
    if len(rows) < NUM_ITERS:
        return
    name = f"inference.max_turns={limit}" if limit else "inference.max_turns"
    usual = InferenceConfig.model_fields["max_turns"].default
    yield Finding(
        observation=f"{mean_of(rows, 'episode/max_turns'):.0%} of the episodes of the last {len(rows)} iterations ended at the "
        f"limit of turns ({name}){_left_out(history)}",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            (None, "the environment does not end its episodes: step never returns done=True"),
            (
                (bool(limit) and limit < usual) or None,
                f"{name} is too small for this environment, or for calls that end a turn: a reply to the last turn is not read",
            ),
        ),
        action="Play one episode by hand (env.reset, env.step) to see what ends it; raise inference.max_turns. If its episodes "
        "have a fixed number of turns, return done=True in the last one",
    )


def _left_out(history: History) -> str:
    """What the settings do with such episodes."""
    is_masked = history.setting("training.mask_truncated_episodes", False)
    return "; training.mask_truncated_episodes=true leaves them out of the loss" if is_masked else ""


def _cut_by_environment(history: History) -> Iterator[Finding]:
    """From the first iteration on, nearly all episodes end at a limit of the environment. One that is reached later may be the
    aim of the task."""
    rows = history.streak(lambda row: value(row, "episode/max_steps") >= TRUNCATED_SHARE)
    if len(rows) < NUM_ITERS or len(rows) < len(history.iterations):
        return
    limit = history.setting("environment.max_steps")
    name = f"environment.max_steps={limit}" if limit else "environment.max_steps"
    yield Finding(
        observation=f"{mean_of(rows, 'episode/max_steps'):.0%} of the episodes of the last {len(rows)} iterations were cut by "
        f"the environment ({name}, or a limit of its own){_left_out(history)}",
        start_step=step_of(rows[0]),
        causes=("the environment does not end its episodes: step never returns done=True", f"{name} is too small"),
        action="Play one episode by hand (env.reset, env.step) to see what ends it; raise environment.max_steps. If its episodes "
        "have a fixed number of steps, return done=True in the last one",
    )


@guard("length_drift", rollback=LOWER_LEARNING_RATE)
def length_drift(history: History) -> Iterator[Finding]:
    """Episodes become twice as long, or half as long, and the answers do not get better."""
    name = "episode/policy_tokens"
    first = history.early(name)
    is_longer = history.recent(name, NUM_ITERS) > first
    factor = LENGTH_FACTOR if is_longer else 1 / LENGTH_FACTOR

    def is_far(row: Row) -> bool:
        now = value(row, name)
        is_beyond = now > factor * first if is_longer else now < factor * first
        return is_beyond and abs(now - first) >= MIN_LENGTH_CHANGE

    rows = history.streak(is_far)
    if len(rows) < 3 or _answers_rose(history):
        return
    now = mean_of(rows[-NUM_ITERS:], name)
    part, sign = _part_that_follows(history, name)
    follows = bool(part) and (sign > 0) == is_longer
    direction = "longer" if is_longer else "shorter"
    yield Finding(
        observation=f"episodes became {direction}: from {first:.0f} to {now:.0f} policy tokens on average, and no right answers "
        "were gained",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            too_hot(history, rows),
            (follows, f"the reward pays for {direction} episodes: reward/{part} changed with the length"),
            broke_down(history, rows),
            (
                None,
                "wrong long answers cost less per token than short ones (training.loss_agg: token-mean, or a constant)",
            ),
            (None, "the policy repeats itself, or skips its thoughts: read trajectories.jsonl"),
        ),
        action="Take the length out of the reward or limit its part; set training.overlong_buffer_tokens against long episodes"
        if is_longer
        else "Take the length out of the reward or limit its part; reward right answers more than short ones",
    )


@guard("empty_thoughts", rollback=LOWER_LEARNING_RATE)
def empty_thoughts(history: History) -> Iterator[Finding]:
    """The policy had thoughts, and now leaves them empty."""
    name = "episode/empty_thoughts"
    rows = history.streak(lambda row: value(row, name) > 0.8)
    if len(rows) < 3 or not history.early(name, 2) < 0.5:
        return
    part, sign = _part_that_follows(history, "episode/policy_tokens")
    yield Finding(
        observation=f"{history.recent(name):.0%} of the thoughts of the last {len(rows)} iterations are empty; at first "
        f"{history.early(name, 2):.0%} were",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            (
                bool(part) and sign < 0,
                f"the reward pays for short episodes: reward/{part} rose while they became shorter",
            ),
            broke_down(history, rows),
            (None, "the tasks can be answered without a thought"),
        ),
        action="Lower the weight of the length, reward a thought (well_formed), or give tasks that need one",
    )


@guard("repetitive_text", rollback=LOWER_LEARNING_RATE)
def repetitive_text(history: History) -> Iterator[Finding]:
    """The policy repeats the same words within an episode."""
    name = "episode/repetition"
    first = history.early(name, 2)
    rows = history.streak(lambda row: value(row, name) > MAX_REPETITION and value(row, name) > first + 0.2)
    if len(rows) < 3:
        return
    part, sign = _part_that_follows(history, "episode/policy_tokens")
    yield Finding(
        observation=f"{history.recent(name):.0%} of the sequences of four policy tokens repeat earlier ones of the same episode; "
        f"at first {first:.0%} did",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            (bool(part) and sign > 0, f"the reward pays for repetition: reward/{part} rose as episodes became longer"),
            broke_down(history, rows),
            (None, "entropy that is too low (metric entropy)"),
        ),
        action="Take what can be repeated out of the reward; lower training.learning_rate",
    )


def _answers_rose(history: History) -> bool:
    """Whether a part of the reward that judges answers has risen."""
    names = (f"reward/{name}" for name in JUDGING_PARTS)
    return any(history.recent(name, NUM_ITERS) > history.early(name) + 0.05 for name in names)


def _part_that_follows(history: History, name: str) -> tuple[str, float]:
    """Returns the part of the reward whose mean is correlated most with a metric over the last iterations, and the correlation;
    an empty name if none is by more than 0.7 in absolute value."""
    rows = history.iterations[-30:]
    best, strongest = "", 0.7
    sign = 0.0
    for key in last_names(rows):
        part = key.removeprefix("reward/")
        if part == key or part in ("mean", "std", *JUDGING_PARTS):
            continue
        found = _correlation([value(row, name) for row in rows], [value(row, key) for row in rows])
        if abs(found) > strongest:
            best, strongest, sign = part, abs(found), found
    return best, sign


def _correlation(first: list[float], second: list[float]) -> float:
    """Returns Pearson's correlation; 0 if one of both does not vary."""
    pairs = [pair for pair in zip(first, second, strict=True) if all(map(math.isfinite, pair))]
    columns = list(zip(*pairs, strict=True))
    vary = len(pairs) >= 3 and all(pstdev(column) > 1e-12 for column in columns)
    return correlation(*columns) if vary else 0.0
