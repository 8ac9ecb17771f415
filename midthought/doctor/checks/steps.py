"""Checks of what replies to the policy: environments are played, tools are judged by sampled calls."""

from __future__ import annotations

import functools
import math
import pickle
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from midthought.doctor.checks.data import announces
from midthought.doctor.checks.sampling import samples_of
from midthought.doctor.registry import check
from midthought.doctor.setup import Setup, SkippedError
from midthought.doctor.shared_state import tool_states
from midthought.env.environment_tasks import FAILED_RESET
from midthought.env.episode import EnvironmentEpisode, EnvironmentTurn, call_blocking, takes_seed
from midthought.errors import EpisodeError
from midthought.guards.finding import Finding
from midthought.guards.tool_use import MIN_SECONDS
from midthought.types import Task, ToolOutcome, Trajectory

NUM_STARTS = 8
MAX_SECONDS = 5.0
"""After this many seconds no further episode is repeated."""
MAX_STEPS = 5
WRITTEN = ("1", "yes", "a")
"""Actions if nothing is sampled."""
WAITED_FOR = ("a network, a process that is started every time, a search without an index",)
FASTER = "make it faster, concurrent (async) or cached (pure=True), or use inference.partial_rollouts"
Reply = tuple[str, float, bool]
"""Observation, reward, and whether it was the last."""


@dataclass(slots=True)
class _World:
    """An environment: some of its starts, and sampled episodes of them."""

    setup: Setup
    starts: Sequence[Task]
    sampled: Sequence[Trajectory]

    def episode(self, number: int) -> EnvironmentEpisode:
        """Returns an episode at a start."""
        episode = self.setup.parts.episode(self.starts[number])
        assert isinstance(episode, EnvironmentEpisode)
        return episode

    def play(self, number: int, actions: Sequence[str]) -> tuple[tuple[Reply, ...], float]:
        """Executes actions from a start until the episode ends. Returns the replies, and the seconds per step."""
        episode, replies, began = self.episode(number), [], time.perf_counter()
        call = functools.partial(call_blocking, seconds=episode.environment.config.step_timeout_seconds, what="step")
        try:
            for action in actions:
                replies.append(call(functools.partial(episode.environment.step, action))[:3])
                if replies[-1][2]:
                    break
            return tuple(replies), (time.perf_counter() - began) / len(replies)
        except EpisodeError as error:
            raise SkippedError(f"the environment fails: {error}") from None
        finally:
            call(episode.close)

    def earned(self, number: int, action: str) -> float:
        """Returns the sum of the rewards if this action is repeated."""
        return math.fsum(reward for _, reward, _ in self.play(number, [action] * MAX_STEPS)[0])

    def seen(self, number: int) -> dict[tuple[str, ...], list[tuple[Reply, ...]]]:
        """Returns by action sequence the replies of sampled episodes of this start, as far as no tool acted on them. If
        nothing was sampled: written actions."""
        found: dict[tuple[str, ...], list[tuple[Reply, ...]]] = {}
        for episode in self.sampled:
            turns = [turn for turn in episode.turns if isinstance(turn, EnvironmentTurn)]
            if episode.task.task_id == self.starts[number].task_id and turns and not episode.tool_events:
                replies = tuple((turn.observation or "", turn.reward, turn.done) for turn in turns)
                found.setdefault(tuple(turn.answer or "" for turn in turns), []).append(replies)
        return found or {WRITTEN: []}


def _environment_of(setup: Setup) -> _World | None:
    """Returns the environment of the run; None for a data set."""
    if not setup.has_replies or setup.draw is None:
        return None
    if "world" not in setup.memo:
        sampled = [] if setup.why_not_sampled else samples_of(setup).episodes
        setup.memo["world"] = _World(setup, setup.draw(NUM_STARTS), sampled)
    world: _World = setup.memo["world"]
    if any(FAILED_RESET in task.labels for task in world.starts):
        raise SkippedError("the environment cannot be reset")
    return world


@check("starts")
def starts(setup: Setup) -> Iterator[Finding]:
    """The start of an environment depends on its seed, and on nothing else."""
    world = _environment_of(setup)
    if world is None or setup.draw is None:
        return
    before, world.starts = world.starts, setup.draw(NUM_STARTS)  # only the newest starts can be played
    changed = sum(old.prompt != new.prompt for old, new in zip(before, world.starts, strict=True))
    if changed:
        yield Finding(
            observation=f"{changed} of {NUM_STARTS} starts are different the second time, with the same seed, so a run cannot be "
            "repeated",
            causes=("random numbers that are not drawn from the seed", "state that all episodes share"),
            action="give reset a parameter `seed`, and draw everything from random.Random(seed)",
        )
    elif len({task.prompt for task in before}) == 1 and _have_equal_state(world):
        yield Finding(
            observation=f"all {NUM_STARTS} starts are the same, although their seeds differ: the policy sees one task only",
            causes=("reset does not use its seed",),
            action="draw the task in reset from random.Random(seed); without other tasks, leave out the parameter `seed`",
        )


def _have_equal_state(world: _World) -> bool:
    """Whether all starts have the same attributes, and `reset` takes a seed. What cannot be compared counts as different."""
    episodes = [world.episode(number) for number in range(len(world.starts))]
    try:
        states = {pickle.dumps(sorted(vars(each.environment).items(), key=str)) for each in episodes}
        return len(states) == 1 and takes_seed(episodes[0].environment)
    except Exception:  # of the user's classes
        return False
    finally:
        for each in episodes:
            call_blocking(each.close, each.environment.config.step_timeout_seconds, "close")


@check("isolation")
def isolation(setup: Setup) -> Iterator[Finding]:
    """What happens in an episode does not depend on other episodes: the same actions have the same results."""
    yield from _tools_that_remember(setup)
    world, began = _environment_of(setup), time.monotonic()
    if world is None:
        return
    for number in range(len(world.starts)):
        for actions, seen in world.seen(number).items():
            if time.monotonic() - began > MAX_SECONDS:
                return
            seen += [world.play(number, actions)[0] for _ in range(1 if seen else 2)]
            for n, results in enumerate(zip_longest(*seen), start=1):
                if len(set(results)) > 1:
                    shown = ", then ".join(str(each and each[:2]) for each in dict.fromkeys(results))
                    yield Finding(
                        observation=f"from the same start, the same actions have different results in step {n}: {shown:.300}",
                        causes=(
                            "state that episodes share: an attribute of the class, a global, a file, a service",
                            "random numbers in step that are not drawn from the seed of reset",
                            "a model or a service behind step answers differently each time",
                        ),
                        action="create all state in reset, and draw everything from random.Random(seed); give a model behind "
                        "step a seed or temperature 0",
                    )
                    return


def _tools_that_remember(setup: Setup) -> Iterator[Finding]:
    """Reports tools that answer the first call with the same arguments differently in different episodes, and keep state."""
    if setup.policy is None or not setup.parts.registry or (setup.has_replies and setup.why_not_sampled):
        return
    first: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for episode in samples_of(setup).episodes:
        answered = [event.call for event in episode.tool_events if event.outcome is ToolOutcome.OK]
        calls = {call.tool_name or "": call for call in reversed(answered)}
        for name, call in calls.items():
            first[name, repr(call.parameters)][str(call.result)] = None
    before, now = setup.memo["tool_states"], tool_states(setup.parts.registry)
    for (name, arguments), results in first.items():
        if len(results) > 1 and before.get(name) != now.get(name):
            yield Finding(
                subject=name,
                observation=f"the first call of {name!r} with {arguments:.60} has different results in different episodes: "
                + ", ".join(f"{each!r:.60}" for each in list(results)[:3]),
                causes=("the tool keeps state that outlives an episode: an attribute, a global, a default argument",),
                action="let Tool.open return a new object with the state of one episode",
            )
            return


@check("announced_answer")
def announced_answer(setup: Setup) -> Iterator[Finding]:
    """The start of an environment does not announce what earns most."""
    world = _environment_of(setup)
    if world is None:
        return
    candidates = [_announced(task.prompt) for task in world.starts]
    paid: list[tuple[int, str]] = []
    num_played, began = 0, time.monotonic()
    for number, own in enumerate(candidates):
        if time.monotonic() - began > MAX_SECONDS:
            break
        num_played += 1
        other = next((each[0] for each in candidates if each and own and each[0] not in own), None)
        if other is not None:
            least = world.earned(number, other)
            paid += [(number, each) for each in own if world.earned(number, each) > least][:1]
    if len(paid) > max(1, 0.5 * num_played):
        first, answer = paid[0]
        yield Finding(
            observation=f"the prompt of {len(paid)} of {num_played} starts states what earns most, for example {answer!r} "
            f"in {world.starts[first].prompt[-80:]!r}",
            causes=("the answer or a hint was left in the observation of reset or in get_prompt_prefix",),
            action="take it out of the text; the policy would learn to copy",
        )


def _announced(prompt: str) -> list[str]:
    """Returns the words, and the rests of sentences, that follow words such as `answer:`."""
    found = []
    for word in re.finditer(r"[^\s\"'`(){}\[\],;:]+", prompt):
        if announces(prompt[: word.start()]) and word.group().casefold() not in ("is", "="):
            rest = re.split(r"[\n.\"'`){}\[\],;]", prompt[word.start() :])[0].strip()
            found += [word.group().rstrip(".!?"), rest]
    return list(dict.fromkeys(found))[:3]


@check("waiting")
def waiting(setup: Setup) -> Iterator[Finding]:
    """Steps of the environment and calls of tools do not take longer than sampling; without samples, steps take no seconds."""
    waits: dict[str, tuple[float, float]] = {}
    world = _environment_of(setup)
    episodes = samples_of(setup).episodes if world is None else world.sampled
    if world is not None:
        actions = next(iter(world.seen(0)))
        seconds_per_step = world.play(0, actions)[1]
        if not episodes and seconds_per_step >= MIN_SECONDS:
            what = "a step of the environment"
            yield Finding(
                subject=what, observation=f"{what} takes {seconds_per_step:.2g} s", causes=WAITED_FOR, action=FASTER
            )
        waits["a step of the environment"] = seconds_per_step, float(len(actions))
    if not episodes:
        return
    ran = (ToolOutcome.OK, ToolOutcome.RAISED, ToolOutcome.TIMED_OUT)
    events = [event for episode in episodes for event in episode.tool_events if event.outcome in ran]
    for name in dict.fromkeys(event.call.tool_name for event in events):
        seconds = [event.seconds for event in events if event.call.tool_name == name]
        waits[f"a call of {name!r}"] = math.fsum(seconds) / len(seconds), len(seconds) / len(episodes)
    sampling = math.fsum(episode.engine_seconds for episode in episodes) / len(episodes)
    count = setup.config.training.batch_size
    for what, (each, number) in waits.items():
        if each >= MIN_SECONDS and each * number > sampling:
            yield Finding(
                subject=what,
                observation=f"{what} takes {each:.2g} s, {number:.2g} times per episode (sampling: {sampling:.2g} s): an "
                f"iteration of {count} episodes waits at least {each * number:.2g} s, and {each * number * count:.3g} s if they "
                "wait one after another",
                causes=WAITED_FOR,
                action=FASTER,
            )
