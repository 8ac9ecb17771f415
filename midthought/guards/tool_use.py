"""Guards of the tools and of the engine's load: unused, at the limit, repeated, failing, slow; an engine that waits."""

from __future__ import annotations

import math
from collections.abc import Iterator

from midthought.guards.finding import Finding, by_evidence
from midthought.guards.history import History, Row, broke_down, last_names, mean_of, step_of, total, value
from midthought.guards.registry import LOWER_LEARNING_RATE, guard

NUM_ITERS = 3
"""Iterations in a row after which a problem of the tools is reported."""
NUM_NEVER, MIN_CALLS = 10, 32
"""Iterations without a call, and episodes; calls with equal results."""
MIN_SECONDS = 1.0
"""Shorter calls are not slow."""
MIN_ROLLOUT_SECONDS = 5.0
"""Shorter rollouts do not starve the engine."""


@guard("tool_unused", rollback=LOWER_LEARNING_RATE)
def tool_unused(history: History) -> Iterator[Finding]:
    """The policy has stopped calling its tools, or never did."""
    given = history.streak(lambda row: value(row, "episode/tools") > 0 and value(row, "episode/calls") == 0)
    if given == history.iterations and len(given) >= NUM_NEVER and total(given, "episode/count") >= MIN_CALLS:
        yield Finding(
            observation=f"no tool was called in the first {len(given)} iterations",
            start_step=step_of(given[0]),
            causes=(
                "the policy writes no calls in this call format: it was taught another one (call_format), or none (sft)",
                "the prompt does not describe the tools (describe_tools), or the tasks can be answered without them",
            ),
            action="Use the model's own format (call_format='auto'), warm up with demonstrations, or read trajectories.jsonl",
        )
    first = history.early("episode/calls")
    rows = history.streak(lambda row: value(row, "episode/calls") < 0.05 * first)
    if len(rows) < NUM_ITERS or not first >= 0.1:
        return
    before = history.iterations[: len(history.iterations) - len(rows)]
    costs = [name for name in last_names(before) if _is_cost(history, name)]
    failures = _worst_failures(history)
    yield Finding(
        observation=f"the policy stopped calling tools: {history.recent('episode/calls'):.2g} calls per episode in the last "
        f"{len(rows)} iterations, {first:.2g} at first",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            (failures >= 0.5, f"calls did not pay because they failed ({failures:.0%} of them)"),
            (
                history.early("episode/invalid_calls") > 0.5 * first,
                "calls did not pay because they name no tool or cannot be parsed (call_format)",
            ),
            (bool(costs), f"a call costs more than it earns: {', '.join(costs)} was negative and is now 0"),
            broke_down(history, rows),
            (None, "the tasks can be answered without the tool"),
        ),
        action="Lower the cost of a call (reward.call_cost), see that results help, and continue from a checkpoint before",
    )


@guard("tool_limit", rollback=LOWER_LEARNING_RATE)
def tool_limit(history: History) -> Iterator[Finding]:
    """Most episodes ask for more calls than they have."""
    rows = history.streak(lambda row: value(row, "episode/no_calls_left") > 0.5)
    if len(rows) < NUM_ITERS:
        return
    rose = _has_more_calls(history)
    repeated = history.recent("episode/repeated_calls")
    failures = _worst_failures(history)
    limit = history.setting("inference.max_tool_calls_per_cot")
    yield Finding(
        observation=f"{history.recent('episode/no_calls_left'):.0%} of the episodes of the last {len(rows)} iterations asked for "
        f"more calls than the limit ({history.recent('episode/calls'):.2g} per episode)",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            (failures >= 0.5, f"the policy repeats calls because they fail ({failures:.0%} of them)"),
            (rose, "the reward pays for calls, not for what they find"),
            (None, f"inference.max_tool_calls_per_cot={limit} is too small for these tasks"),
            (repeated >= 0.5, f"the same call is repeated ({repeated:.0%} of the calls)"),
        ),
        action="Give each call a cost, pay only for calls that helped, or raise inference.max_tool_calls_per_cot",
    )


@guard("repeated_calls", rollback=LOWER_LEARNING_RATE)
def repeated_calls(history: History) -> Iterator[Finding]:
    """Episodes make the same call, with the same arguments, again."""
    name = "episode/repeated_calls"
    rows = history.streak(lambda row: value(row, name) >= 0.4 and value(row, name) * value(row, "episode/calls") >= 0.4)
    if len(rows) < NUM_ITERS:
        return
    failures = _worst_failures(history)
    rose = _has_more_calls(history)
    yield Finding(
        observation=f"{history.recent(name):.0%} of the calls of the last {len(rows)} iterations repeat an earlier call of their "
        f"episode ({history.recent('episode/calls'):.2g} calls per episode)",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            (failures >= 0.5, f"the tool fails ({failures:.0%} of its calls), and the policy tries again"),
            (rose, "the reward pays for every call, also for one without a new result"),
            (None, "the result does not help or is cut off (inference.max_result_tokens), so the policy asks again"),
        ),
        action="Pay only for calls with a new result, give each call a cost, and read the results in trajectories.jsonl",
    )


@guard("tool_fails")
def tool_fails(history: History) -> Iterator[Finding]:
    """Most calls of a tool fail, or all have the same result, which looks like an error or like nothing."""
    for name in _tools(history):
        rows = history.streak(
            lambda row, name=name: _failed(row, name) > 0.5 and value(row, f"tool/{name}/calls") >= 0.05  # type: ignore[misc]
        )
        if len(rows) < NUM_ITERS:
            continue
        shares = {
            outcome: history.recent(f"tool/{name}/{outcome}")
            for outcome in ("bad_arguments", "raised", "timed_out", "unavailable")
        }
        raised, late, wrong = (
            mean_of(rows, f"tool/{name}/{outcome}") for outcome in ("raised", "timed_out", "bad_arguments")
        )  # over all rows: later, the circuit breaker refuses most calls
        yield Finding(
            observation=f"{_failures(history, name):.0%} of the calls of {name} failed in the last {len(rows)} iterations: "
            + ", ".join(f"{share:.0%} {outcome}" for outcome, share in shares.items() if share > 0),
            start_step=step_of(rows[0]),
            subject=name,
            causes=by_evidence(
                (raised >= max(late, wrong), f"{name} raises: a service that is down, a missing file or key, a defect"),
                (
                    late > raised and late >= wrong,
                    f"{name} is slower than inference.tool_timeout_seconds="
                    f"{history.setting('inference.tool_timeout_seconds', 10.0):g}",
                ),
                (
                    None,
                    f"the policy writes wrong arguments: the description of {name} is unclear, or a warm-up is missing",
                ),
            ),
            action=f"Call {name} once by hand with arguments from trajectories.jsonl, and repair it or its description",
        )
    yield from _invalid_calls(history)
    yield from _equal_results(history)


def _equal_results(history: History) -> Iterator[Finding]:
    for name in _tools(history):
        rows = [row for row in history.iterations if f"tool/{name}/other_results" in row][-NUM_NEVER:]
        is_equal = len(rows) >= NUM_ITERS and all(value(row, f"tool/{name}/other_results") == 0 for row in rows)
        is_none = all(value(row, f"tool/{name}/without_result") == 1 for row in rows)  # `saved` confirms every call
        if is_equal and is_none and total(rows, "episode/count", f"tool/{name}/calls") >= MIN_CALLS:
            yield Finding(
                observation=f"{name} returned the same text for different arguments in the last {len(rows)} iterations with any, "
                "and it looks like an error or like no result",
                start_step=step_of(rows[0]),
                subject=f"results of {name}",
                causes=(
                    f"{name} returns an error message as a result (HTTP status 200), or finds nothing",
                    f"{name} does not use its arguments",
                ),
                action=f"Call {name} once by hand with arguments from trajectories.jsonl, and raise an exception for an error",
            )


def _invalid_calls(history: History) -> Iterator[Finding]:
    rows = history.streak(lambda row: value(row, "episode/invalid_calls") > 0.5 * max(value(row, "episode/calls"), 0.1))
    if len(rows) >= NUM_ITERS:
        yield Finding(
            observation=f"{history.recent('episode/invalid_calls'):.2g} of {history.recent('episode/calls'):.2g} calls per "
            "episode name no tool or cannot be parsed",
            start_step=step_of(rows[0]),
            subject="calls",
            causes=(
                "the policy does not know the tool's name or the call format: another format than the model's own, no warm-up",
                "tools that are named in the prompt and not registered",
            ),
            action="Use the model's own format (call_format='auto'), warm up with demonstrations, or read trajectories.jsonl",
        )


@guard("tool_slow")
def tool_slow(history: History) -> Iterator[Finding]:
    """Episodes wait longer for a tool than for the engine."""
    for name in _tools(history):
        key = f"time/tool/{name}_seconds"
        rows = history.streak(
            lambda row, key=key: (
                value(row, key) >= MIN_SECONDS  # type: ignore[misc]
                and value(row, "time/episode/tool_seconds") > value(row, "time/episode/engine_seconds")
            )
        )
        if len(rows) < NUM_ITERS:
            continue
        late = history.recent(f"tool/{name}/timed_out")
        yield Finding(
            observation=f"a call of {name} takes {history.recent(key):.2g} s on average, and episodes wait "
            f"{history.recent('time/episode/tool_seconds'):.2g} s for tools and "
            f"{history.recent('time/episode/engine_seconds'):.2g} s for the engine",
            start_step=step_of(rows[0]),
            subject=name,
            causes=by_evidence(
                (late > 0.5, f"{late:.0%} of the calls end at inference.tool_timeout_seconds"),
                (None, f"{name} is slow: a network, a model behind it, a search without an index"),
                (None, f"more concurrent calls than {name} or its service can run at once"),
            ),
            action=f"Cache equal calls (pure=True), run {name} in batches or on several servers, lower "
            "inference.tool_timeout_seconds, or use inference.partial_rollouts",
        )


@guard("starved_engine")
def starved_engine(history: History) -> Iterator[Finding]:
    """The engine works in a small part of the rollout only."""
    rows = history.streak(
        lambda row: (
            value(row, "time/rollout_seconds") >= MIN_ROLLOUT_SECONDS
            and value(row, "time/episode/engine_seconds") < 0.2 * value(row, "time/rollout_seconds")
        )
    )
    if len(rows) < NUM_ITERS:
        return
    total, engine = history.recent("time/rollout_seconds"), history.recent("time/episode/engine_seconds")
    tools = history.recent("time/episode/tool_seconds")
    rest = total - engine - (0.0 if math.isnan(tools) else tools)
    yield Finding(
        observation=f"an episode uses the engine for {engine:.2g} s of a rollout of {total:.2g} s ({tools:.2g} s for tools)",
        start_step=step_of(rows[0]),
        causes=by_evidence(
            (tools >= rest, "episodes wait for tools"),
            (rest > tools, "the environment or the reward function is slow, or a few long episodes are waited for"),
            (None, "too few episodes at once (training.batch_size, inference.max_num_seqs)"),
        ),
        action="Make tools, environment and reward faster or concurrent (async), raise training.batch_size, or use "
        "inference.partial_rollouts",
    )


def _tools(history: History) -> list[str]:
    """Returns the tools that were called in the last iteration."""
    names = last_names(history.iterations)
    return [name.split("/")[1] for name in names if name.startswith("tool/") and name.endswith("/failures")]


def _failed(row: Row, name: str) -> float:
    """Returns the share of a tool's calls that failed, without those that were refused at the limit of calls."""
    outcomes = ("bad_arguments", "raised", "timed_out", "unavailable")
    return math.fsum(value(row, f"tool/{name}/{outcome}") for outcome in outcomes)


def _worst_failures(history: History) -> float:
    """Returns the largest share of failed calls of a tool."""
    return max((_failures(history, name) for name in _tools(history)), default=0.0)


def _has_more_calls(history: History) -> bool:
    """Whether episodes make over 20 % more calls than at the start."""
    return history.recent("episode/calls") > 1.2 * history.early("episode/calls", 1)


def _failures(history: History, name: str) -> float:
    finite = [share for row in history.iterations[-NUM_ITERS:] if math.isfinite(share := _failed(row, name))]
    return math.fsum(finite) / len(finite) if finite else 0.0


def _is_cost(history: History, name: str) -> bool:
    """Whether a part of the reward was negative at first and is nearly 0 without calls."""
    if not name.startswith("reward/") or name in ("reward/mean", "reward/std"):
        return False
    first, now = history.early(name), history.recent(name)
    return first < 0 and now > 0.2 * first
