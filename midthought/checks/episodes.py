"""Checks with episodes: written ones are rewarded as they should be, and sampled ones end, call their tools and differ."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

from midthought.checks.examination import Setup, SkippedError
from midthought.checks.iterations import LIMITS
from midthought.checks.registry import Finding, Policy, check
from midthought.env.answer_matching import normalised
from midthought.env.episode import call_blocking
from midthought.errors import DataError, EpisodeError, SettingsError
from midthought.rollout.written import THOUGHT, PolicyParts, example_calls, play, written
from midthought.tools.call_formats.unread import UnreadCallReader
from midthought.types import Reward, StopReason, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory

NUM_PROMPTS, GROUP_SIZE, ROUND, MAX_SECONDS = 16, 4, 4, 20.0
"""Sampled prompts, episodes of each, prompts of a round, and seconds after which no further round starts."""
MIN_CALLS, NUM_STARTS = 4, 4
"""Sampled calls of a tool, and starts of an environment, that are judged."""
WRITTEN = ["1", "yes", "a"]
"""Actions in an environment if nothing is sampled."""
NUM_TASKS, SHARE = 4, 0.25
"""Rewarded tasks. A shortcut pays if it earns more than a wrong answer by this share of what the gold answer earns more."""
FORMS = ("{}", r"\boxed{{{}}}", "The answer is {}", "#### {}", "<answer>{}</answer>", "({})")
"""Ways to write an answer, of which a reward may accept only some."""
WHOLE = "compare the answer after the last thought as a whole (correct, exact_match)"
EVENTS = "read tool results from trajectory.tool_events, which only the executor writes"
Text = Callable[[Task], str]


@check("reward", "check")
def reward(setup: Setup) -> Iterator[Finding]:
    """The gold answer earns more than a wrong one, in one of `FORMS`, and the same again. No shortcut pays."""
    tasks: dict[str, Task] = {}
    for task in setup.known_tasks:
        tasks.setdefault(normalised(task.answer), task)
    if not (usable := [task for task in tasks.values() if task.answer][: NUM_TASKS + 1]):
        raise SkippedError("the tasks have no gold answer")
    wrongs = {task.task_id: _wrong(task, other) for task, other in zip(usable, usable[1:] + usable[:1], strict=True)}

    def earned(text: Text, form: str = "{}", **said: Any) -> float:
        return fmean(_reward_of(setup, task, form.format(text(task)), said) for task in usable[:NUM_TASKS])

    def wrong(task: Task) -> str:
        return wrongs[task.task_id]

    right, tried = operator.attrgetter("answer"), []
    for form in FORMS:
        tried.append((earned(right, form), earned(wrong, form), form))
        if tried[-1][0] > tried[-1][1]:
            break
    best, worst, form = max(tried, key=lambda each: (each[0] > each[1], abs(each[0] - each[1])))
    change = max(abs(best - earned(right, form)), abs(worst - earned(wrong, form)))
    if change > SHARE * abs(best - worst):
        remedy = "let the reward depend on the trajectory alone (a judge: temperature 0)"
        yield Finding(f"the reward of the same episode differs by {change:.3g} when it is computed again", remedy)
    elif best <= worst:
        texts = f"{usable[0].answer!r:.60} earns {best:g}, and the wrong answer {wrong(usable[0])!r:.60} {worst:g}"
        remedy = "let the reward function compare the answer with task.answer and pay the right one more"
        yield Finding(f"the gold answer {texts}", remedy, policy="stop")
    else:
        setup.memo["right_from"] = (best + worst) / 2
        with contextlib.suppress(SkippedError):  # of a call format that only reads calls
            for what, amount, limit, remedy in _shortcuts(setup.parts, earned, wrong, form, best, worst):
                if amount > limit:
                    observation = f"{what} earns {amount:g}, a wrong answer {worst:g} and the gold answer {best:g}"
                    yield Finding(observation, remedy, what)
                    if what == "a longer thought":  # the other shortcuts are longer, too
                        return


def _shortcuts(parts: PolicyParts, earned: Any, wrong: Text, form: str, best: float, worst: float) -> Iterator[Any]:
    """Returns what is written, what it earns, what it may earn at most, and the remedy."""

    def mixed(task: Task) -> str:
        return f"First: {wrong(task)}. Then: {task.answer}. At last: {wrong(task)}"

    def forged(task: Task) -> str:
        call = ToolCall(tool_name=next(iter(parts.registry)), parameters={}, success=True, result=task.answer)
        result = parts.call_format.render_results([ToolEvent(call=call, outcome=ToolOutcome.OK)])
        return f"{THOUGHT}\n{result.strip()}\n"

    limit, long = worst + SHARE * (best - worst), " ".join([THOUGHT] * 10)
    yield "a longer thought", earned(wrong, form, thought=long), limit, "leave the length out of the reward"
    yield "the empty answer", earned(lambda task: ""), limit, "return the lowest reward for an empty answer"
    yield "a copy of the prompt", earned(lambda task: task.prompt), limit, WHOLE
    if call := next(example_calls(parts.registry), None):
        asked = earned(wrong, call=call, result="nothing")
        yield "a call without a result", asked, best - 1e-9 * (best - worst), "pay a call less than a right answer"
        after = max(limit, asked + limit - worst)
        yield "a copy of a tool result", earned(mixed, call=call, result=mixed), after, WHOLE
        yield "an empty answer after a tool result", earned(lambda task: "", call=call, result=mixed), after, WHOLE
        yield "a tool result that the policy writes", earned(wrong, form, thought=forged), limit, EVENTS


def _reward_of(setup: Setup, task: Task, answer: str, said: dict[str, Any]) -> float:
    """Plays an answer. Values of `said` (`written`) may be functions of the task."""
    said = {name: value(task) if callable(value) else value for name, value in said.items()}
    try:
        script = written(setup.parts, task, answer, **said)
    except (DataError, SettingsError) as error:
        raise SkippedError(f"the answer cannot be written in a conversation: {error}") from None
    episode = play(setup.parts, setup.config.inference, script, setup.parts.episode, said.get("result", ""))
    if episode.reward is None:
        raise DataError(f"the reward of a written episode fails: {episode.error}; correct the reward function")
    if episode.reward == Reward():
        raise SkippedError("the agent gives the reward of an episode")
    return episode.reward.total


def _wrong(task: Task, other: Task) -> str:
    """Returns a wrong answer: that of another task, or a changed one."""
    rights = {normalised(answer) for answer in (task.answer, *task.aliases)}
    if normalised(other.answer) not in rights and len(task.answer) > 1:
        return other.answer
    if re.fullmatch(r"[A-Za-z]", task.answer):
        return "B" if task.answer.upper() == "A" else "A"
    return str(int(task.answer) + 7) if re.fullmatch(r"\d{1,9}", task.answer) else f"{task.answer[::-1]}xq"


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
    for event in (event for episode in done for event in episode.tool_events if event.outcome.is_of_tool):
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
    parts = setup.parts
    found = UnreadCallReader(parts.renderer, parts.call_format, parts.registry).read(episodes_of(setup))
    if found.is_frequent:
        yield Finding(str(found), found.remedy)


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
        actions = next(filter(None, said), WRITTEN)
        first, second = (_played(setup.parts, task, actions) for _ in range(2))
        if first != second:
            step, both = next((n, both) for n, both in enumerate(zip(first, second), 1) if both[0] != both[1])  # noqa: B905
            observation = f"from the same start, step {step} of the same actions has different results: {both!s:.300}"
            yield Finding(observation, "create all state in reset, and draw from random.Random(seed)")
            return


def _played(parts: PolicyParts, task: Task, actions: Sequence[str]) -> list[tuple[str, float, bool]]:
    """Executes actions until the episode ends. Returns observation, reward and whether it has ended, for each."""
    replies: list[tuple[str, float, bool]] = []
    try:
        with contextlib.ExitStack() as stack:
            episode: Any = parts.episode(task)
            seconds = episode.environment.config.step_timeout_seconds
            stack.callback(call_blocking, episode.close, seconds, "close")
            for action in actions:
                if not (replies and replies[-1][2]):
                    step = functools.partial(episode.environment.step, action)
                    replies.append(call_blocking(step, seconds, "step")[:3])
    except EpisodeError as error:
        raise SkippedError(f"the environment fails: {error}") from None
    return replies
