"""Checks with sampled episodes: rewards differ within groups, some prompts are solved and some are not, answers end in time."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from midthought.config import ConfigStore
from midthought.doctor.registry import check
from midthought.doctor.setup import Setup, SkippedError
from midthought.doctor.shared_state import tool_states
from midthought.guards.finding import Finding, by_evidence
from midthought.types import StopReason, ToolEvent, ToolOutcome, Trajectory

NUM_PROMPTS = 16
GROUP_SIZE = 4
ROUND = 4
MIN_CALLS = 4
"""With fewer sampled calls of a tool, its failures are not reported."""
_FAILURES = (ToolOutcome.BAD_ARGUMENTS, ToolOutcome.RAISED, ToolOutcome.TIMED_OUT, ToolOutcome.UNAVAILABLE)
MAX_SECONDS = 20.0
"""After this many seconds no further round of `ROUND` prompts starts."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Groups of sampled episodes, and the reward from which on an answer counts as right (None: unknown)."""

    groups: Sequence[Sequence[Trajectory]]
    right_from: float | None

    @property
    def episodes(self) -> list[Trajectory]:
        """All episodes."""
        return [episode for group in self.groups for episode in group]

    def solved(self, group: Sequence[Trajectory]) -> list[bool]:
        """Whether each episode of a group has the right answer. Raises `SkippedError` if that is unknown."""
        if self.right_from is None:
            raise SkippedError("the reward of a right answer is not known")
        return [reward >= self.right_from for reward in rewards_of(group)]


def rewards_of(group: Sequence[Trajectory]) -> list[float]:
    """Returns the rewards of the episodes that have one."""
    return [episode.reward.total for episode in group if episode.reward is not None]


def samples_of(setup: Setup) -> Samples:
    """Samples `GROUP_SIZE` episodes of up to `NUM_PROMPTS` prompts, once per setup. Raises `SkippedError` if it cannot."""
    if "samples" in setup.memo:
        found: Samples = setup.memo["samples"]
        return found
    if setup.why_not_sampled:
        raise SkippedError(setup.why_not_sampled)
    if setup.source is None or setup.draw is None:
        raise SkippedError(setup.why_no_policy if setup.source is None else "the episodes were recorded before")
    setup.memo["tool_states"] = tool_states(setup.parts.registry)
    tasks, began = list(setup.draw(NUM_PROMPTS)), time.monotonic()
    groups: list[list[Trajectory]] = []
    for start in range(0, len(tasks), ROUND):
        if start and time.monotonic() - began > MAX_SECONDS:
            break
        repeated = [task for task in tasks[start : start + ROUND] for _ in range(GROUP_SIZE)]
        data = setup.source.rollout(repeated, iteration=0, group_size=GROUP_SIZE, attempt=start)
        groups += [data.trajectories[n : n + GROUP_SIZE] for n in range(0, len(data), GROUP_SIZE)]
    right_from = None
    if "judge" in setup.memo:
        _, gold, wrong, _ = setup.memo["judge"]
        right_from = (gold.mean + wrong.mean) / 2 if gold.mean > wrong.mean else None
    setup.memo["samples"] = Samples(groups, right_from)
    return samples_of(setup)


@check("episodes")
def episodes(setup: Setup) -> Iterator[Finding]:
    """Sampled episodes do not fail, and most of them end before the limits of tokens, turns and steps."""
    done = samples_of(setup).episodes
    failed = [episode for episode in done if episode.stop_reason is StopReason.FAILED]
    if failed:
        error, count = Counter(str(episode.error) for episode in failed).most_common(1)[0]
        yield Finding(
            observation=f"{len(failed)} of {len(done)} sampled episodes fail, {count} of them with: {error}",
            causes=("an error in the environment, a tool or the reward function",),
            action="correct what the message names",
            policy="stop" if len(failed) == len(done) else "warn",
        )
    inference = setup.config.inference
    yield from _at_limit(
        done,
        StopReason.LENGTH,
        f"are cut at inference.max_tokens={inference.max_tokens}",
        ("the budget is too small for this model", "the model does not write the token that ends an answer"),
        "raise inference.max_tokens, or check the chat template and eos_token",
    )
    yield from _at_limit(
        done,
        StopReason.MAX_TURNS,
        f"end at inference.max_turns={inference.max_turns}",
        ("the environment does not end its episodes", "its tasks need more turns"),
        "play one episode by hand (env.reset, env.step) to see what ends it, or raise inference.max_turns",
    )
    steps = f"={setup.config.environment.max_steps}" if isinstance(setup.config, ConfigStore) else ""
    yield from _at_limit(
        done,
        StopReason.MAX_STEPS,
        f"are cut by the environment, at environment.max_steps{steps} or a limit of its own",
        ("the environment does not end its episodes", "its tasks need more steps"),
        "play one episode by hand (env.reset, env.step) to see what ends it; raise environment.max_steps, or return done=True "
        "in the last step if the number of steps is fixed",
    )


def _at_limit(
    done: Sequence[Trajectory], reason: StopReason, what: str, causes: tuple[str, ...], action: str
) -> Iterator[Finding]:
    count = sum(episode.stop_reason is reason for episode in done)
    if count >= 0.9 * len(done):
        yield Finding(
            observation=f"{count} of {len(done)} sampled episodes {what}",
            causes=causes,
            action=action,
        )


@check("tools")
def tools(setup: Setup) -> Iterator[Finding]:
    """Most of the sampled calls of a tool succeed, and return a text."""
    calls: dict[str, list[ToolEvent]] = defaultdict(list)
    for event in (event for episode in samples_of(setup).episodes for event in episode.tool_events):
        calls[event.call.tool_name or ""].append(event)
    for name, events in calls.items():
        failed = [event for event in events if event.outcome in _FAILURES]
        if len(events) >= MIN_CALLS and len(failed) > 0.5 * len(events):
            called = [event for event in failed if event.outcome is not ToolOutcome.UNAVAILABLE] or failed
            said, count = Counter(str(event.call.result) for event in called).most_common(1)[0]
            yield Finding(
                subject=name,
                observation=f"{len(failed)} of {len(events)} sampled calls of {name!r} fail, {count} of them with: {said:.200}",
                causes=("the tool raises, hangs, or needs something that is missing here", "wrong arguments"),
                action=f"call the tool yourself, ToolRegistry.execute_tool({name!r}, …), and correct what the message names",
            )
        worked = [str(event.call.result).strip() for event in events if event.outcome is ToolOutcome.OK]
        empty = [text for text in worked if text in ("", "None", "null")]
        if len(worked) >= MIN_CALLS and len(empty) > 0.9 * len(worked):
            yield Finding(
                subject=name,
                observation=f"{len(empty)} of {len(worked)} sampled calls of {name!r} that succeed return nothing ({empty[0]!r})",
                causes=(
                    "the tool's function prints its result or lacks a return",
                    "it finds nothing for these arguments",
                ),
                action=f"call the tool yourself, ToolRegistry.execute_tool({name!r}, …), and let it return a text",
            )


@check("reward_variance")
def reward_variance(setup: Setup) -> Iterator[Finding]:
    """Rewards differ within some groups of one prompt; without that, there is no advantage and nothing is learned."""
    samples = samples_of(setup)
    groups = [rewards for group in samples.groups if len(rewards := rewards_of(group)) > 1]
    if not groups:
        raise SkippedError("no sampled episode has a reward")
    flat = [rewards for rewards in groups if math.isclose(min(rewards), max(rewards), abs_tol=1e-9)]
    by_group = "groups" in setup.config.training.needs
    temperature = setup.config.inference.temperature
    values = {round(reward, 9) for rewards in groups for reward in rewards}
    if len(values) == 1 or (by_group and len(flat) == len(groups)):
        yield Finding(
            observation=f"all {GROUP_SIZE} rewards of a prompt are equal in all {len(groups)} groups (reward "
            f"{min(values):g} to {max(values):g})",
            causes=by_evidence(
                (temperature < 0.5, f"too little exploration: inference.temperature={temperature:g}"),
                (None, "the reward does not tell these episodes apart"),
                (None, "all prompts are too hard or too easy for the policy"),
            ),
            action="take prompts of another difficulty, supervised steps before (sft), a finer reward, or a larger group_size",
        )


@check("never_solved")
def never_solved(setup: Setup) -> Iterator[Finding]:
    """The policy solves some prompts in some of the samples."""
    samples = samples_of(setup)
    solved = [any(samples.solved(group)) for group in samples.groups]
    if not any(solved):
        yield Finding(
            observation=f"none of {len(solved)} prompts is solved in {GROUP_SIZE} samples",
            causes=("the prompts are too hard for this model", "the prompt does not say in which form to answer"),
            action="take easier prompts or a larger model, show the form of an answer in system_prompt, or begin with sft()",
        )


@check("always_solved")
def always_solved(setup: Setup) -> Iterator[Finding]:
    """The policy does not solve all prompts in all samples already."""
    samples = samples_of(setup)
    solved = [all(samples.solved(group)) for group in samples.groups]
    if all(solved):
        yield Finding(
            observation=f"all {len(solved)} prompts are solved in all {GROUP_SIZE} samples",
            causes=("the prompts are too easy for this model", "the reward accepts wrong answers"),
            action="take harder prompts; there is nothing left to learn from these",
        )
