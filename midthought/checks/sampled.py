"""Checks with sampled episodes: they end, their tools work, their calls are read, their rewards differ, they share no state."""

from __future__ import annotations

import functools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from midthought.checks.iterations import LIMITS
from midthought.checks.registry import Finding, Policy, check, of_unread_calls
from midthought.checks.setup import Setup, SkippedError
from midthought.env.episode import EnvironmentEpisode, call_blocking
from midthought.tools.call_formats.unread import UnreadCallReader
from midthought.types import StopReason, ToolEvent, ToolOutcome, Trajectory

NUM_PROMPTS, GROUP_SIZE, ROUND = 16, 4, 4
MAX_SECONDS = 20.0
"""After this many seconds no further round of `ROUND` prompts starts."""
MIN_CALLS, NUM_STARTS = 4, 4
"""Sampled calls of a tool, and starts of an environment, that are judged."""
WRITTEN = ["1", "yes", "a"]
"""Actions in an environment if nothing is sampled."""
_RAN = (ToolOutcome.OK, ToolOutcome.BAD_ARGUMENTS, ToolOutcome.RAISED, ToolOutcome.TIMED_OUT)


def groups_of(setup: Setup) -> Sequence[Sequence[Trajectory]]:
    """Samples `GROUP_SIZE` episodes of up to `NUM_PROMPTS` prompts, once per setup. Raises `SkippedError` if it cannot."""
    if setup.why_not_sampled or setup.source is None or setup.draw is None:
        raise SkippedError(setup.why_not_sampled or "there is no policy that samples episodes")
    if "groups" not in setup.memo:
        tasks, began, groups = list(setup.draw(NUM_PROMPTS)), time.monotonic(), []
        for start in range(0, len(tasks), ROUND):
            if not start or time.monotonic() - began < MAX_SECONDS:
                repeated = [task for task in tasks[start : start + ROUND] for _ in range(GROUP_SIZE)]
                data = setup.source.rollout(repeated, iteration=0, group_size=GROUP_SIZE, attempt=start)
                groups += [data.trajectories[n : n + GROUP_SIZE] for n in range(0, len(data), GROUP_SIZE)]
        setup.memo["groups"] = groups
    found: Sequence[Sequence[Trajectory]] = setup.memo["groups"]
    return found


def episodes_of(setup: Setup) -> list[Trajectory]:
    """Returns the episodes of `groups_of`."""
    return [episode for group in groups_of(setup) for episode in group]


@check("episodes", "check")
def episodes(setup: Setup) -> Iterator[Finding]:
    """Episodes do not fail, most end before the limits of tokens, turns and steps, and most calls of a tool return a text."""
    done = episodes_of(setup)
    if failed := [str(episode.error) for episode in done if episode.stop_reason is StopReason.FAILED]:
        error, count = Counter(failed).most_common(1)[0]
        observation = f"{len(failed)} of {len(done)} sampled episodes fail, {count} of them with: {error}"
        policy: Policy = "stop" if len(failed) == len(done) else "warn"
        yield Finding(observation, "correct what the message names", policy=policy)
    for reason, name in LIMITS.items():
        if (count := sum(episode.stop_reason == reason for episode in done)) >= 0.9 * len(done):
            section, _, key = name.partition(".")
            limit = f"{name}={getattr(getattr(setup.config, section, None), key, 'its own limit')}"
            remedy = f"raise {name}" + (", or let step return done=True" if reason != "length" else "")
            yield Finding(f"{count} of {len(done)} sampled episodes end at {limit}", remedy, reason)
    events: dict[str, list[ToolEvent]] = defaultdict(list)
    for event in (event for episode in done for event in episode.tool_events if event.outcome in _RAN):
        events[event.call.tool_name or ""].append(event)
    for name, called in events.items():
        failed = [str(event.call.result) for event in called if event.outcome is not ToolOutcome.OK]
        num_empty = sum(str(event.call.result).strip() in ("", "None", "null") for event in called)
        if len(called) >= MIN_CALLS and len(failed) > 0.5 * len(called):
            observation = f"{len(failed)} of {len(called)} calls of {name!r} fail, for example: {failed[0]:.200}"
            yield Finding(observation, f"call execute_tool({name!r}, …) yourself, and correct the tool", name)
        elif len(called) >= MIN_CALLS and num_empty > 0.9 * len(called):
            yield Finding(f"{num_empty} of {len(called)} calls of {name!r} return nothing", "return a text", name)


@check("unread_calls", "check")
def unread_calls(setup: Setup) -> Iterator[Finding]:
    """Calls of known tools that episodes write are run."""
    parts, done = setup.parts, episodes_of(setup)
    yield from of_unread_calls(UnreadCallReader(parts.renderer, parts.call_format, parts.registry).read(done))


@check("reward_variance", "check")
def reward_variance(setup: Setup) -> Iterator[Finding]:
    """Rewards differ within some groups of one prompt, and the policy solves some prompts and not all of them."""
    groups = [[each.reward.total for each in group if each.reward is not None] for group in groups_of(setup)]
    groups = [rewards for rewards in groups if len(rewards) > 1]
    if not groups:
        raise SkippedError("no sampled episode has a reward")
    flat = [rewards for rewards in groups if math.isclose(min(rewards), max(rewards), abs_tol=1e-9)]
    low, high = min(map(min, groups)), max(map(max, groups))
    if math.isclose(low, high, abs_tol=1e-9) or ("groups" in setup.config.training.needs and len(flat) == len(groups)):
        observation = f"the {GROUP_SIZE} rewards of each of {len(groups)} prompts are equal ({low:g} to {high:g})"
        yield Finding(observation, "set inference.temperature=1, or give prompts of another difficulty")
    right_from = setup.memo.get("right_from", math.nan)
    if high < right_from:
        remedy = "begin with sft(), or give easier prompts that say in which form to answer"
        yield Finding(f"none of {len(groups)} prompts is solved in {GROUP_SIZE} samples", remedy, "never solved")
    if low >= right_from:
        yield Finding(f"all {len(groups)} prompts are solved in all samples", "give harder prompts", "always solved")


@check("isolation", "check")
def isolation(setup: Setup) -> Iterator[Finding]:
    """An environment's start depends on its seed alone, and the same actions have the same results in every episode."""
    if not setup.has_replies or setup.draw is None:
        return
    before, starts = setup.draw(NUM_STARTS), setup.draw(NUM_STARTS)  # only the newest starts can be played
    if changed := sum(old.prompt != new.prompt for old, new in zip(before, starts, strict=True)):
        observation = f"{changed} of {NUM_STARTS} starts are different the second time, with the same seed"
        yield Finding(observation, "draw everything in reset from random.Random(seed)")
        return
    done = [] if setup.why_not_sampled or setup.source is None else episodes_of(setup)
    for task in starts:
        said = [[turn.answer or "" for turn in each.turns] for each in done if each.task.task_id == task.task_id]
        actions = next((each for each in said if each), WRITTEN)
        first, second = (_played(setup.parts.episode(task), actions) for _ in range(2))
        if first != second:
            step, both = next((n, both) for n, both in enumerate(zip(first, second), 1) if both[0] != both[1])  # noqa: B905
            observation = f"from the same start, step {step} of the same actions has different results: {both!s:.300}"
            yield Finding(observation, "create all state in reset, and draw from random.Random(seed)")
            return


def _played(episode: Any, actions: Sequence[str]) -> list[tuple[str, float, bool]]:
    """Executes actions until the episode ends. Returns observation, reward and whether it has ended, for each."""
    assert isinstance(episode, EnvironmentEpisode)
    environment, replies = episode.environment, []
    call = functools.partial(call_blocking, seconds=environment.config.step_timeout_seconds, what="step")
    try:
        for action in actions:
            replies.append(call(functools.partial(environment.step, action))[:3])
            if replies[-1][2]:
                break
    finally:
        call(episode.close)
    return replies
