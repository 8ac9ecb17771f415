"""Groups of episodes that are trained on in the iteration that began them, or in a later one (`training.max_staleness`).

Does not decide when groups start and are taken: `Pace`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch

from midthought.engines.pausable_engine import PausableEngine
from midthought.errors import EngineError
from midthought.rollout.episode import RolloutParts, run_episode
from midthought.rollout.groups import Group, Pace, fresh_episodes, with_environment
from midthought.rollout.resuming import Journal
from midthought.tools.background_loop import BackgroundLoop, SilenceError, silence_check
from midthought.types import Task, Trajectory

T = TypeVar("T")
_log = logging.getLogger(__name__)

_MAX_GROUP_SIZE = 1 << 20
_POLL_SECONDS = 0.5
"""Time after which `take` sees that the run is stopping."""

NOTHING_OPEN: Mapping[str, Any] = {"next_position": 0, "postponed": [], "groups": [], "journal": 0}
"""State at the start of a run; what follows is in the journal."""


class InFlightEpisodes:
    """Groups of episodes on one event loop. They are sampled from `resume` or `take` until `pause`; running tools continue.

    Use it from one thread.

    Args:
        parts: as for `run_episodes`.
        loop: the event loop on which everything uses the engine.
        pace: when groups start and are taken.
        seed: an episode's seed depends on it, the group's number, and the episode's number in the group.
        deterministic: the result of a `take` depends on token counts, not on time. Episodes run in rounds of at most
            `max_segment_length` tokens each. After a round, finished groups are taken in the order of their numbers; the next
            round starts only if that is not enough.
        silence_seconds: every wait raises `EngineError` if the engine samples no token for this long. Tools and environments have
            limits of their own.
        journal: where finished groups and the batches that take them are written. None: nowhere; in deterministic mode a
            resumed run plays the same episodes again.
        checksum: of the policy's weights. A resumed run repeats updates; if one has another result, groups with tokens of the
            version that is lost start again.
    """

    def __init__(
        self,
        parts: RolloutParts,
        loop: BackgroundLoop,
        pace: Pace,
        *,
        seed: int,
        deterministic: bool = False,
        silence_seconds: float = math.inf,
        journal: Journal | None = None,
        checksum: Callable[[], int] = lambda: 0,
    ) -> None:
        self.pace, self.overlaps = pace, False
        """`overlaps`: episodes also run while the learner works, until new weights arrive."""
        self.next_position = 0
        """Number of the group that is started next."""
        self._postponed: list[int] = []
        """Numbers of groups that a resumed run must start again; they come first."""
        self.is_stopping: Callable[[], bool] = lambda: False
        """Whether `take` no longer waits."""
        self.num_dropped = 0
        """Groups that start again because they were too old, or because the weights that sampled them are lost."""
        self.journal = Journal(None) if deterministic or journal is None else journal
        """Open from `restore` to `drop`, but after groups had to start again only from the next checkpoint on."""
        self._checksum = checksum
        self._checksums: dict[int, int] = {}
        """Of the weights by version, as in the journal."""
        self._iteration = 0
        self._loop = loop
        self._seed = seed
        self._deterministic = deterministic
        self._silence_seconds, self._is_silent = silence_seconds, False
        self._change = asyncio.Event()
        self.engine = PausableEngine(
            parts.engine,
            tokens_per_round=parts.inference.max_segment_length if deterministic else None,
            on_waiting=self._change.set,
        )
        self._parts = replace(parts, engine=self.engine)
        self._groups: dict[int, Group] = {}
        self._taken: list[Group] = []
        """Groups of the last batch, until `begin_batch`."""
        self._ready: list[Group] = []
        """Finished groups, in the order in which `take` returns them."""
        self._running: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    @property
    def num_open(self) -> int:
        """Groups that were started and not taken."""
        return len(self._groups)

    @property
    def is_restored(self) -> bool:
        """Whether the last batch took a group that was started before `restore`."""
        return any(group.newest is not None for group in self._taken)

    @property
    def deadlines(self) -> list[int]:
        """Those of the open groups (`Pace.deadline`); a group whose batch is known has its version."""
        groups = self._groups.values()
        return [group.taken[1] if group.taken else self.pace.deadline(group.version) for group in groups]

    @property
    def num_unfinished(self) -> int:
        """Episodes that have not ended."""
        return len(self._running)

    def use_threads(self, number: int) -> None:
        """Sets the number of threads with which an engine of this process computes."""

        async def set_number() -> None:
            torch.set_num_threads(number)

        self._wait_for(set_number())

    def _wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        seconds = 0.0 if self._is_silent else self._silence_seconds
        try:
            return self._loop.run(coroutine, silence_check(lambda: self.engine.progress, seconds))
        except SilenceError:
            self._is_silent = True
            raise silent_engine(self._silence_seconds) from None

    # -- an iteration ------------------------------------------------------------------------------------------

    def begin_batch(self, iteration: int) -> None:
        """Forgets the groups of the last batch, which is trained on, and goes on sampling if that overlaps."""
        self._taken, self._iteration, self._is_silent = [], iteration, False
        for group in self._groups.values():
            if group.taken and group.taken[0] < iteration:  # which was done with other episodes
                group.taken = None
                self._ready.append(group)
        if self.overlaps and self._groups:
            self.resume()

    def put_back(self) -> None:
        """Opens the taken groups again, because the batch was not completed. The iteration's next `take` returns them."""
        self._groups |= {group.position: group for group in self._taken}
        self._taken = []

    def begin(self, draw: Callable[[int], Task], group_size: int) -> None:
        """Starts the next group: `group_size` episodes of the task that `draw` returns for the group's number.

        Their records carry the number as `group`; it determines their seeds. Raises if the prompt cannot be rendered.
        """
        position = self._postponed[0] if self._postponed else self.next_position
        task = draw(position)
        episodes = fresh_episodes(self._parts, task, position, group_size, self._seed)
        group = Group(position, self.engine.policy_version, episodes)
        parts = {member: with_environment(self._parts, task) for member in range(group_size)}
        if self._postponed:
            self._postponed.pop(0)
        else:
            self.next_position += 1
        self._groups[position] = group
        self._loop.start(self._begin(group, parts))

    def take(self, batch: int, room: int) -> list[list[Trajectory]]:
        """Waits until the batch with this `room` may take a finished group (`Pace.may_take`), removes as many as it may, the
        earliest deadlines first, and returns the episodes of each, with rewards. Returns none if the run `is_stopping`, except in
        deterministic mode. Raises `EngineError` if no group is open."""
        return self._wait_for(self._take(batch, room))

    def pause(self) -> None:
        """Interrupts all running episodes. `resume` or the next `take` continues them with the weights of that time."""
        self._wait_for(self._pause())

    def resume(self) -> None:
        """Continues all episodes."""
        self._wait_for(self._resume())

    @contextlib.contextmanager
    def between_tokens(self) -> Iterator[None]:
        """Interrupts all episodes meanwhile, for new weights."""
        self.pause()
        yield
        self._loop.run(self._note_weights())
        if self.overlaps and self._groups:
            self.resume()

    async def _begin(self, group: Group, parts: Mapping[int, RolloutParts]) -> None:
        """Starts the episodes of the group's members in `parts`; the others have ended."""
        group.num_running = len(parts)
        if not parts:
            self._ready.append(group)
        for member, own in parts.items():
            task = asyncio.ensure_future(self._run(group, member, own))
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # ending without `drop` is no error
            self._running.add(task)
            task.add_done_callback(self._look_at)

    async def _run(self, group: Group, member: int, parts: RolloutParts) -> None:
        await run_episode(parts, group.episodes[member], group.position * _MAX_GROUP_SIZE + member)
        group.num_running -= 1
        if not group.num_running:
            self._ready.append(group)
            if self.journal.is_open:
                self.journal.write(group.to_json())

    def _look_at(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
        self._change.set()

    async def _take(self, batch: int, room: int) -> list[list[Trajectory]]:
        found = [group for group in self._groups.values() if group.taken and group.taken[0] == self._iteration]
        if found:
            self._taken += [self._groups.pop(group.position) for group in found]
            return [group.episodes for group in found]
        while room > len(found):
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            first, left = min(self._ready, key=lambda group: group.version, default=None), room - len(found)
            if first and self.pace.may_take(self.deadlines, self.pace.deadline(first.version), batch, left):
                self._ready.remove(first)
                first.taken = self._iteration, batch
                self._taken.append(self._groups.pop(first.position))
                found.append(first)
                continue
            if found:
                break
            if self.is_stopping() and not self._deterministic:
                return []
            if not self._running:
                raise EngineError("there is no group to wait for: start one first with `begin`")
            await self._go_on()
        self._write_taken(found)
        return [group.episodes for group in found]

    def _write_taken(self, groups: list[Group]) -> None:
        for group in groups:
            self.journal.write({"position": group.position, "taken": group.taken})

    async def _resume(self) -> None:
        if not self._deterministic:
            self.engine.resume()

    async def _go_on(self) -> None:
        """Samples until something changes; in deterministic mode, samples one round."""
        self._change.clear()
        await self._resume()
        if not self._deterministic:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._change.wait(), _POLL_SECONDS)
            return
        await self._settle()
        self.engine.resume()
        await self._settle()
        await self.engine.pause()

    async def _settle(self) -> None:
        """Waits until every unfinished episode waits for the engine, then sorts the groups that finished meanwhile by number."""
        num_before = len(self._ready)
        while self.engine.num_waiting < len(self._running):
            self._change.clear()
            await self._change.wait()
        self._ready[num_before:] = sorted(self._ready[num_before:], key=lambda group: group.position)

    async def _pause(self) -> None:
        await self.engine.pause()
        if self._deterministic:
            await self._settle()

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state(self, *, with_taken: bool = False, in_run: bool = False) -> dict[str, Any]:
        """Returns the state for `restore` as JSON values. `with_taken`: the last batch is not trained on yet. `in_run`: it is for
        the run's newest checkpoint, so the journal continues in another file; after saving, call `Journal.keep`."""
        return self._wait_for(self._state(with_taken, in_run))

    async def _state(self, with_taken: bool, in_run: bool) -> dict[str, Any]:
        taken = [*(self._taken if with_taken else []), *(group for group in self._groups.values() if group.taken)]
        unfinished = [group for group in self._groups.values() if group.num_running]
        groups = [*taken, *self._ready, *sorted(unfinished, key=lambda group: group.position)]
        number = self.journal.begin() if in_run else None
        if number is not None:
            self._write_taken(taken)
        return {
            "next_position": self.next_position,
            "postponed": list(self._postponed),
            "groups": [group.to_json() for group in groups],
            "journal": number,
        }

    def restore(self, state: Mapping[str, Any], draw: Callable[[int], Task]) -> int:
        """Continues from `state` and the events that follow it in the journal; all groups that are open now are dropped. `draw`
        returns the task of a group's number.

        A finished group is not played again, and is taken by the same batch as before. Returns the number of groups that must
        start again, because the run now has a smaller staleness or batch.
        An unfinished episode is replayed from its record, and a tool call that was running is repeated. If the environment
        (no `follows_from_record`) or a tool that the episode called (`is_stateful`) has its own state, the unfinished
        episodes of the group restart from their task; if the task's prompt has changed, the whole group restarts.
        """
        self.drop()
        groups = {row["position"]: Group.from_json(row) for row in state["groups"]}
        for event in self.journal.read(state.get("journal")):
            if "episodes" in event:
                groups[event["position"]] = Group.from_json(event)
            elif "taken" in event:  # the last one in the dictionary is the last of its batch
                groups[event["position"]] = replace(groups.pop(event["position"]), taken=tuple(event["taken"]))
            else:
                self._checksums[event["version"]] = event["checksum"]
        self._postponed, self.num_dropped = list(state["postponed"]), 0
        for group in sorted((each for each in groups.values() if not each.taken), key=lambda group: group.version):
            deadlines = [*self.deadlines, self.pace.deadline(group.version)]
            if self.pace.is_kept(deadlines, self.engine.policy_version, self.pace.num_groups):
                self._groups[group.position] = group
                self._loop.run(self._begin(group, group.start_again(self._parts, self._seed, draw)))
            else:
                self._start_again(group)
        num_old = self.num_dropped
        self._groups |= {position: group for position, group in groups.items() if group.taken}
        self._loop.run(asyncio.sleep(0))  # replays never wait, so one turn of the loop finishes all of them
        first = int(state["next_position"])
        self.next_position = max([first, *(1 + position for position in [*groups, *self._postponed])])
        self._postponed = sorted({*self._postponed, *range(first, self.next_position)} - self._groups.keys())
        if self.num_dropped:
            self.journal.close()
        self._loop.run(self._note_weights())
        return num_old

    async def _note_weights(self) -> None:
        """Writes the checksum of a version. If the journal has another one, the batches that followed are forgotten, and groups
        whose tokens those weights sampled start again."""
        if not self.journal.is_open:
            return
        version, checksum, num_before = self.engine.policy_version, self._checksum(), self.num_dropped
        if self._checksums.get(version, checksum) == checksum:
            self.journal.write({"version": version, "checksum": checksum})
        else:
            for group in list(self._groups.values()):
                group.taken = None
                if group.newest is not None and group.newest >= version:
                    self._start_again(self._groups.pop(group.position))
            self._ready = [group for group in self._groups.values() if not group.num_running]
            self.journal.close()
            self._checksums = {}
            if num_lost := self.num_dropped - num_before:
                _log.warning(
                    "%d groups start again: the weights that sampled them, from version %d, are lost", num_lost, version
                )

    def _start_again(self, group: Group) -> None:
        self._postponed.append(group.position)
        self.num_dropped += 1

    def drop(self) -> None:
        """Cancels and removes all open groups."""
        self._wait_for(self._drop())

    async def _drop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self.journal.close()
        self._checksums = {}
        self._groups.clear()
        self._ready.clear()
        self._taken, self._failure = [], None


def silent_engine(seconds: float) -> EngineError:
    """Returns the error of an engine that made no progress for so long."""
    return EngineError(
        f"the engine has sampled no token for {seconds:g} s, and episodes wait for one; raise ray.silence_timeout_seconds "
        "if it needs more time"
    )
