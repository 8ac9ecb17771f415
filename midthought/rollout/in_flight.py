"""Episodes that may outlive an iteration: groups are begun, handed over as they finish, and carried over where they do not.

Knows no estimator and no learner: how many are begun and when an iteration has enough is decided in `learning`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from midthought.config import InferenceConfig
from midthought.engines.background_loop import BackgroundLoop
from midthought.engines.pausable_engine import PausableEngine
from midthought.errors import EngineError
from midthought.rollout.episode import EpisodeEnvironment, RolloutParts, run_episode
from midthought.rollout.replay import replayed
from midthought.rollout.trajectory_json import trajectory_from_json, trajectory_to_json
from midthought.types import StopReason, Task, Trajectory

_MAX_GROUP_SIZE = 1 << 20


@dataclass(slots=True, eq=False)
class _Group:
    """Episodes of one task, begun and not handed over yet."""

    position: int
    """Its number over the whole run."""
    episodes: list[Trajectory]
    num_running: int = 0
    num_carried: int = 0
    """How often it was carried over."""


@dataclass(frozen=True, slots=True)
class _Start:
    """One episode of a group that is about to run, with parts of its own."""

    member: int
    trajectory: Trajectory
    parts: RolloutParts


class InFlightEpisodes:
    """Groups of episodes on one event loop. Between `pause` and the next `take` no token is sampled; tools that were asked go on.

    Use it from one thread. The order of calls in an iteration: `begin` and `take`, as often as needed, then `pause`.

    Args:
        parts: as for `run_episodes`.
        loop: the loop that all use of the engine goes through.
        seed: the seed of every episode follows from it and from the group's number.
        max_carry_overs: a group that was carried over so often is due: the iteration is to wait for it.
        deterministic: what has finished at a `take` follows from counts, not from time. All episodes sample up to
            `max_segment_length` tokens; when all of them have, or ended, what is finished is handed over in the order of its
            numbers, and only where that is not enough another such round begins.
    """

    def __init__(
        self, parts: RolloutParts, loop: BackgroundLoop, *, seed: int, max_carry_overs: int, deterministic: bool = False
    ) -> None:
        self.next_position = 0
        """The number of the group that is begun next."""
        self._loop = loop
        self._seed = seed
        self._max_carry_overs = max_carry_overs
        self._deterministic = deterministic
        self._turnstile = PausableEngine(
            parts.engine,
            tokens_per_round=parts.settings.max_segment_length if deterministic else None,
            on_waiting=self._tell,
        )
        self._parts = replace(parts, engine=self._turnstile)
        self._groups: dict[int, _Group] = {}
        self._ready: list[_Group] = []
        """Those of them that are finished."""
        self._running: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._change = asyncio.Event()
        self._rollout: contextlib.ExitStack | None = None
        """While tokens are sampled: the tool executor keeps the answers of pure calls."""

    @classmethod
    def from_config(cls, parts: RolloutParts, loop: BackgroundLoop, inference: InferenceConfig, *, seed: int) -> Self:
        """As the settings' `inference` section says."""
        return cls(
            parts,
            loop,
            seed=seed,
            max_carry_overs=inference.partial_max_carry_overs,
            deterministic=inference.deterministic,
        )

    @property
    def policy_version(self) -> int:
        return self._turnstile.policy_version

    @property
    def num_open(self) -> int:
        """Groups that were begun and not handed over."""
        return len(self._groups)

    @property
    def num_due(self) -> int:
        """Those of them that must not be carried over once more."""
        return sum(self._is_due(group) for group in self._groups.values())

    @property
    def num_episodes(self) -> int:
        """Episodes of open groups, finished ones as well."""
        return sum(len(group.episodes) for group in self._groups.values())

    @property
    def num_unfinished(self) -> int:
        """Episodes that have not ended."""
        return len(self._running)

    # -- an iteration ------------------------------------------------------------------------------------------

    def begin(self, task: Task, group_size: int) -> None:
        """Begin the next group: `group_size` episodes of this task, which wait for the next `take`.

        Their number in the run is the `group` of their records; seeds follow from it. A prompt that cannot be rendered
        raises.
        """
        starts = self._fresh(task, self.next_position, group_size)
        group = _Group(self.next_position, [start.trajectory for start in starts])
        self.next_position += 1
        self._loop.run(self._begin(group, starts))

    def take(self, *, due_only: bool = False) -> list[Trajectory]:
        """Wait until a group is finished, and hand it over, with its rewards; the first to finish comes first.

        `due_only`: of those alone that must not be carried over. EngineError where there is none to wait for.
        """
        return self._loop.run(self._take(due_only))

    def pause(self) -> None:
        """Interrupt what is running. It goes on, by the weights of then, with the next `take`."""
        self._loop.run(self._pause())

    async def _begin(self, group: _Group, starts: Sequence[_Start]) -> None:
        self._groups[group.position] = group
        group.num_running = len(starts)
        if not starts:
            self._ready.append(group)
        for start in starts:
            task = asyncio.ensure_future(self._run(group, start))
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # whoever ends without `drop` makes no mistake
            self._running.add(task)
            task.add_done_callback(self._look_at)

    async def _run(self, group: _Group, start: _Start) -> None:
        await run_episode(start.parts, start.trajectory, group.position * _MAX_GROUP_SIZE + start.member)
        group.num_running -= 1
        if not group.num_running:
            self._ready.append(group)

    def _look_at(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
        self._tell()

    def _tell(self) -> None:
        self._change.set()

    async def _take(self, due_only: bool) -> list[Trajectory]:
        while not (found := [group for group in self._ready if self._is_due(group) or not due_only]):
            if not self._running or not any(self._is_due(group) or not due_only for group in self._groups.values()):
                raise EngineError("there is no group to wait for: begin one first")
            await self._go_on()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
        self._ready.remove(found[0])
        del self._groups[found[0].position]
        return found[0].episodes

    async def _go_on(self) -> None:
        """Sample until something changes; in deterministic mode one round."""
        if self._rollout is None:
            self._rollout = contextlib.ExitStack()
            self._rollout.enter_context(self._parts.executor.rollout())
        self._change.clear()
        if not self._deterministic:
            self._turnstile.let_pass()
            await self._change.wait()
            return
        await self._settle()
        self._turnstile.let_pass()
        await self._settle()
        await self._turnstile.interrupt()

    async def _settle(self) -> None:
        """Wait until every episode that has not ended stands before the turnstile; what ends meanwhile is put in order."""
        num_before = len(self._ready)
        while self._turnstile.num_waiting < len(self._running):
            self._change.clear()
            await self._change.wait()
        self._ready[num_before:] = sorted(self._ready[num_before:], key=lambda group: group.position)

    async def _pause(self) -> None:
        await self._turnstile.interrupt()
        if self._deterministic:
            await self._settle()
        self._end_rollout()
        for group in self._groups.values():
            group.num_carried += 1

    def _end_rollout(self) -> None:
        if self._rollout is not None:
            self._rollout.close()
            self._rollout = None

    def _is_due(self, group: _Group) -> bool:
        return group.num_carried >= self._max_carry_overs

    # -- from one process to the next --------------------------------------------------------------------------

    def state(self, unlearned: Iterable[Trajectory] = ()) -> dict[str, Any]:
        """What `restore` needs, as JSON values. `unlearned`: episodes that were taken and are to be handed over again."""
        return self._loop.run(self._state(unlearned))

    async def _state(self, unlearned: Iterable[Trajectory]) -> dict[str, Any]:
        taken: dict[int, list[Trajectory]] = {}
        for trajectory in unlearned:
            taken.setdefault(trajectory.group, []).append(trajectory)
        unfinished = [group for group in self._groups.values() if group.num_running]
        groups = [_Group(position, episodes) for position, episodes in taken.items()]
        groups += [*self._ready, *sorted(unfinished, key=lambda group: group.position)]
        return {
            "next_position": self.next_position,
            "groups": [
                {
                    "position": group.position,
                    "num_carried": group.num_carried,
                    "episodes": [trajectory_to_json(trajectory) for trajectory in group.episodes],
                }
                for group in groups
            ],
        }

    def restore(self, state: Mapping[str, Any], draw: Callable[[int], Task]) -> None:
        """Go on from `state`; whatever is open now is dropped. `draw` gives the task of a group's number once more.

        Unfinished episodes are played again up to where they were, and a tool that was under way is asked again. Where the
        environment (no `follows_from_record`), or a tool that the episode has called (`is_stateful`), keeps a state of its
        own, they begin anew from the same start; where that is another one than it was, the whole group does.
        """
        self.drop()
        self.next_position = int(state["next_position"])
        for row in state["groups"]:
            episodes = [trajectory_from_json(episode) for episode in row["episodes"]]
            group = _Group(row["position"], episodes, num_carried=row["num_carried"])
            self._loop.run(self._begin(group, self._again(group, draw)))
        self._loop.run(asyncio.sleep(0))  # replays wait for nothing: all of them are done after one turn

    def drop(self) -> None:
        """End all that is open; nothing of it is handed over."""
        self._loop.run(self._drop())

    async def _drop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._groups.clear()
        self._ready.clear()
        self._end_rollout()

    # -- beginnings --------------------------------------------------------------------------------------------

    def _fresh(self, task: Task, position: int, group_size: int) -> list[_Start]:
        prompt_ids = self._parts.renderer.prompt(self._parts.messages(task))
        starts = []
        for member in range(group_size):
            trajectory = Trajectory(
                task, prompt_ids, seed=seed_of(self._seed, "group", position, member), group=position
            )
            starts.append(_Start(member, trajectory, self._with_environment(task)))
        return starts

    def _again(self, group: _Group, draw: Callable[[int], Task]) -> list[_Start]:
        """The unfinished episodes of a group that stood in a checkpoint; their records give way to those that run now."""
        unfinished = [member for member, record in enumerate(group.episodes) if not _is_finished(record)]
        starts = [self._replay(member, group.episodes[member]) for member in unfinished]
        if not all(_follows_from_record(start.parts, group.episodes[start.member]) for start in starts):
            known, task = group.episodes[0].task, draw(group.position)
            fresh = self._fresh(task, group.position, len(group.episodes))
            starts = [start for start in fresh if start.member in unfinished or task.prompt != known.prompt]
        for start in starts:
            group.episodes[start.member] = start.trajectory
        return starts

    def _replay(self, member: int, record: Trajectory) -> _Start:
        first = record.segments[0]
        trajectory = Trajectory(
            record.task, first.token_ids[: first.spans[0].end], seed=record.seed, group=record.group
        )
        trajectory.num_cut = record.num_cut
        trajectory.tool_seconds, trajectory.engine_seconds = record.tool_seconds, record.engine_seconds
        return _Start(member, trajectory, replayed(self._with_environment(record.task), record))

    def _with_environment(self, task: Task) -> RolloutParts:
        """The parts with an environment that is made now: some can be had of the newest task only. What raises is raised
        when the episode begins, and fails it."""
        try:
            environment = self._parts.environment(task)
        except Exception as error:
            return replace(self._parts, environment=functools.partial(_raise, error))
        return replace(self._parts, environment=lambda _: environment)


def _raise(error: Exception, task: Task) -> EpisodeEnvironment:
    raise error


def _is_finished(record: Trajectory) -> bool:
    return record.reward is not None or record.stop_reason is StopReason.FAILED


def _follows_from_record(parts: RolloutParts, record: Trajectory) -> bool:
    """Whether the episode can be played again from its record alone: neither its environment nor a tool that it has called
    keeps a state of its own."""
    try:
        environment = parts.environment(record.task)
    except Exception:
        return False
    called = {event.call.tool_name for event in record.tool_events}
    registry = parts.executor.registry
    if any(tool is not None and tool.is_stateful for tool in map(registry.get, filter(None, called))):
        return False
    return len(record.segments) == 1 and getattr(environment, "follows_from_record", False)


def seed_of(*parts: object) -> int:
    """A seed that follows from these values alone."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1
